"""What large pods wrote is forgotten once they are gone, and no decision depends on what is kept to be quick."""

import random
import tracemalloc
from collections.abc import Callable

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import ClaimSource, ContainerPort, GCEDisk, Pod, RBDDisk, Volume
from topo_scheduler.api.selectors import (
    Affinity,
    LabelSelector,
    NodeAffinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PreferredTerm,
    Requirement,
)
from topo_scheduler.scheduling import engine as module

pytestmark = pytest.mark.unrecorded

PODS = 40
VALUES = 15_000
MOST_MIB = 60
"""All of them together take more than 120 MiB while they are there."""


def values(number: int) -> tuple[str, ...]:
    return tuple(f"{number:04d}-{value:06d}-{'x' * 40}" for value in range(VALUES))


def likes_nodes(pod: Pod, number: int) -> None:
    term = NodeSelectorTerm((Requirement("zone", "NotIn", values(number)),))
    pod.spec.affinity = Affinity(NodeAffinity(None, (PreferredTerm(1, term),)))


def keeps_away(pod: Pod, number: int) -> None:
    selector = LabelSelector({}, (Requirement("app", "In", values(number)),))
    pod.spec.affinity = Affinity(
        None, None, PodAffinity([PodAffinityTerm(selector, topology_key="kubernetes.io/hostname")])
    )


def has_an_image(pod: Pod, number: int) -> None:
    pod.spec.containers[0].image = f"x/{number:04d}{'y' * 2_500_000}"


@pytest.mark.parametrize("make", [likes_nodes, keeps_away, has_an_image])
def test_large_pods_that_come_and_go_leave_no_memory_behind(make: Callable[[Pod, int], None]) -> None:
    d = Driver(fabric({"s/l1": 8}))
    tracemalloc.start()
    try:
        for number in range(PODS):
            pod = make_pod(f"p{number}", gpus=1)
            make(pod, number)
            d.apply(pod)
            d.settle()
            d.delete(pod)
            d.said.clear()
            d.step()
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < MOST_MIB * 2**20


def _placements(seed: int) -> list[tuple[str, str]]:
    rng, d = random.Random(seed), Driver(fabric({"s1/l1": 4, "s1/l2": 3, "s2/l3": 5}))
    alive: list[Pod] = []
    for number in range(60):
        if alive and rng.random() < 0.4:
            d.delete(alive.pop(rng.randrange(len(alive))))
        else:
            pod = make_pod(f"p{number}", gpus=rng.choice([1, 2, 4, 8]), labels={"app": rng.choice("ab")})
            if rng.random() < 0.3:
                selector = LabelSelector({"app": rng.choice("ab")})
                term = PodAffinityTerm(selector, topology_key="kubernetes.io/hostname")
                pod.spec.affinity = Affinity(None, None, PodAffinity([term]))
            alive.append(pod)
            d.apply(pod)
        d.settle()
    return [(pod.metadata.name, pod.spec.node_name) for pod in alive]


@pytest.mark.parametrize("seed", range(8))
def test_no_decision_depends_on_what_is_kept_to_be_quick(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = _placements(seed)
    monkeypatch.setattr(module, "MAX_LARGE_BYTES", -1)
    assert _placements(seed) == kept


def _anti_affinity(pod: Pod, number: int) -> None:
    selector = LabelSelector({}, (Requirement("app", "In", tuple(f"{number:x}-{value:x}" for value in range(19_999))),))
    term = PodAffinityTerm(selector, topology_key="kubernetes.io/hostname")
    pod.spec.affinity = Affinity(None, None, PodAffinity([term]))


def _claims(pod: Pod, number: int) -> None:
    pod.spec.volumes = [
        Volume(f"v{index}", persistent_volume_claim=ClaimSource(f"{number}-{index}")) for index in range(13_000)
    ]


def _disks(pod: Pod, number: int) -> None:
    pod.spec.volumes = [
        Volume(f"v{index}", gce_persistent_disk=GCEDisk(f"{number}-{index}")) for index in range(13_000)
    ]


def _long_disk(pod: Pod, number: int) -> None:
    pod.spec.volumes = [Volume("v", gce_persistent_disk=GCEDisk(f"{number}{'d' * 1_000_000}"))]


def _monitors(pod: Pod, number: int) -> None:
    pod.spec.volumes = [Volume("v", rbd=RBDDisk([f"{number:x}{index:x}" for index in range(50_000)]))]


def _ports(pod: Pod, number: int) -> None:
    pod.spec.containers[0].ports = [
        ContainerPort(host_ip=f"10.0.{number}.1", host_port=port) for port in range(1, 18_000)
    ]


@pytest.mark.parametrize("make", [_anti_affinity, _claims, _disks, _long_disk, _monitors, _ports])
def test_large_pods_that_are_bound_and_stay_take_little_memory(make: Callable[[Pod, int], None]) -> None:
    d = Driver(fabric({"s/l1": 8}))
    tracemalloc.start()
    try:
        for number in range(PODS):
            pod = make_pod(f"p{number}", node="s-l1-0", cpu="1m", memory="1")
            make(pod, number)
            d.engine.pods_applied([pod], d.now)
            del pod
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < PODS * 200_000, "a pod of 1 MB took 1 to 5 MB"


def test_the_first_ports_and_claims_of_a_bound_pod_beyond_the_caps_still_count() -> None:
    d = Driver(fabric({"s/l1": 1}))
    bound = make_pod("bound", node="s-l1-0")
    _ports(bound, 0)
    _claims(bound, 0)
    d.apply(bound)
    entry = d.engine.world.ledger.get(bound.metadata.uid)
    assert entry is not None and entry.profile is not None
    assert [port.number for port in entry.profile.ports] == list(range(1, 257))
    assert [claim.name for claim in entry.profile.claims] == [f"0-{index}" for index in range(256)]


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (_anti_affinity, "affinity and spread, values, has 19999 entries, the scheduler reads at most 1024"),
        (_long_disk, "names of 1000001 characters together, the scheduler reads at most 16384"),
        (_monitors, "disks and monitors of spec.volumes has 50002 entries, the scheduler reads at most 1024"),
    ],
)
def test_a_pending_pod_beyond_these_caps_is_refused_with_its_count(
    make: Callable[[Pod, int], None], problem: str
) -> None:
    d = Driver(fabric({"s/l1": 1}))
    pod = make_pod("pending", gpus=1)
    make(pod, 1)
    d.apply(pod)
    d.step()
    assert problem in d.told(pod)[0]
