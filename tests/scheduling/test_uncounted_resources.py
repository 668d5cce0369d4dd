"""Of resources without a column that a bound pod requests, the amounts of a few are kept, until nodes offer them."""

import gc
import tracemalloc

import pytest

from tests.helpers import NVIDIA, make_node, make_pod
from tests.scheduling.driver import Driver, held
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.selectors import Affinity, PodAffinity, PodAffinityTerm
from topo_scheduler.scheduling.intake.claims import MAX_UNCOUNTED_NAMES
from topo_scheduler.state.nodes.resources import GPU, MAX_UNOFFERED_NAMES

OFFERED = "example.com/rdma"


def _driver() -> Driver:
    """An engine for which a pod has taken all columns that names of pods get."""
    d = Driver([make_node("n1")])
    taking = make_pod("takes", node="n1")
    taking.spec.containers[0].resources.requests |= {f"example.com/u{n}": "1" for n in range(MAX_UNOFFERED_NAMES)}
    d.apply(taking)
    return d


def _pod(name: str, *resources: str, amount: str = "2") -> Pod:
    pod = make_pod(name, node="n1")
    pod.spec.containers[0].resources.requests |= dict.fromkeys(resources, amount)
    return pod


def _offer(d: Driver, *resources: str) -> None:
    node = make_node("n1")
    node.metadata.resource_version = "9"
    node.status.allocatable |= dict.fromkeys(resources, "8")
    d.nodes(node)


def test_it_counts_once_a_node_offers_the_resource_and_is_forgotten_with_the_pod() -> None:
    d = _driver()
    pod = _pod("p", OFFERED, "example.com/other")
    d.apply(pod)
    occupant = d.engine.world.ledger._entries[pod.metadata.uid].occupant
    _offer(d, OFFERED)
    column = d.engine.world.resources.find(OFFERED)
    assert column > 0
    assert held(d, "n1", column) == 2
    assert d.engine.world.ledger._entries[pod.metadata.uid].occupant == occupant
    assert list(d.engine.world.claims._uncounted[pod.metadata.uid].amounts) == ["example.com/other"]
    d.delete(pod)
    assert held(d, "n1", column) == 0
    assert not d.engine.world.claims._uncounted


def test_a_pod_that_requests_it_no_more_is_not_charged() -> None:
    d = _driver()
    pod = _pod("p", OFFERED)
    d.apply(pod)
    del pod.spec.containers[0].resources.requests[OFFERED]
    d.apply(pod)
    _offer(d, OFFERED)
    assert held(d, "n1", d.engine.world.resources.find(OFFERED)) == 0


def test_gpus_of_a_kind_that_no_node_offers_always_count() -> None:
    d = Driver([make_node("n1", gpus=0)])
    taking = make_pod("takes", node="n1")
    taking.spec.containers[0].resources.requests |= {f"example.com/u{n}": "1" for n in range(MAX_UNOFFERED_NAMES)}
    d.apply(taking)
    d.apply(_pod("p", NVIDIA, OFFERED))
    assert held(d, "n1", GPU) == 2


@pytest.mark.unrecorded  # the record holds each pod whole until it is written
def test_little_is_kept_of_each_pod() -> None:
    d = _driver()
    tracemalloc.start()
    try:
        for number in range(20):
            pod = _pod(f"p{number}", *(f"example.com/{number}-{n}" for n in range(2_000)))
            terms = [PodAffinityTerm(topology_key=f"k{n}") for n in range(2_000)]
            pod.spec.affinity = Affinity(None, None, PodAffinity(terms))
            d.engine.pods_applied([pod], d.now)
            assert len(d.engine.world.claims._uncounted[pod.metadata.uid].amounts) == MAX_UNCOUNTED_NAMES
            del pod, terms
        gc.collect()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 20 * 30_000
