"""Pods that a node keeps off others, by the domains it is in, are tried again once it changes or is gone."""

from tests.helpers import make_node, make_pod
from tests.scheduling.affinity_pods import (
    HOSTNAME,
    WEB_PODS,
    one_gpu_spec,
    pod_affinity,
    pod_anti_affinity,
    web_pod,
)
from tests.scheduling.driver import Driver
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.api.selectors import TopologySpreadConstraint

SPREAD = TopologySpreadConstraint(
    max_skew=1, topology_key="rack", when_unsatisfiable="DoNotSchedule", label_selector=WEB_PODS
)


def node(name: str, rack: str, *, gpus: int = 8, unschedulable: bool = False) -> Node:
    """Return a node in a rack."""
    labels = {HOSTNAME: name, "rack": rack}
    return make_node(name, "s1/l1", labels=labels, gpus=gpus, unschedulable=unschedulable)


def waits(d: Driver, pod: Pod) -> Pod:
    """Return a pod that finds no place in a quiet cluster."""
    d.apply(pod)
    d.settle(60)
    assert not pod.spec.node_name
    return pod


def spread_pod() -> tuple[Driver, Pod]:
    """Return a cluster whose cordoned third rack keeps a pod off the two others."""
    d = Driver([node("n1", "a"), node("n2", "b"), node("n3", "c", unschedulable=True)])
    d.apply(web_pod("x", node="n1"), web_pod("y", node="n2"))
    d.step(1.0)
    return d, waits(d, web_pod("p", one_gpu_spec(topology_spread_constraints=[SPREAD])))


def test_the_only_node_of_a_rack_is_gone_that_had_fewest_pods() -> None:
    d, pod = spread_pod()
    d.engine.node_deleted("n3", "")
    d.settle()
    assert pod.spec.node_name in ("n1", "n2")


def test_the_only_node_of_that_rack_belongs_to_another_now() -> None:
    d, pod = spread_pod()
    d.engine.nodes_applied([node("n3", "a", unschedulable=True)], d.now)
    d.settle()
    assert pod.spec.node_name in ("n1", "n2")


def test_a_pod_follows_another_whose_full_node_comes_into_its_rack() -> None:
    d = Driver([node("n1", "z", gpus=1), node("n2", "a")])
    d.apply(web_pod("x", node="n1"))
    d.step(1.0)
    pod = waits(d, make_pod("p", spec=one_gpu_spec(affinity=pod_affinity("rack"))))
    d.engine.nodes_applied([node("n1", "a", gpus=1)], d.now)
    d.settle()
    assert pod.spec.node_name == "n2"


def test_a_pod_avoids_another_whose_full_node_leaves_its_rack() -> None:
    d = Driver([node("n1", "a", gpus=1), node("n2", "a")])
    d.apply(web_pod("x", node="n1"))
    d.step(1.0)
    pod = waits(d, make_pod("p", spec=one_gpu_spec(affinity=pod_anti_affinity("rack"))))
    d.engine.nodes_applied([node("n1", "z", gpus=1)], d.now)
    d.settle()
    assert pod.spec.node_name == "n2"


def test_a_pod_without_terms_that_another_repels_whose_node_leaves_the_rack() -> None:
    d = Driver([node("n1", "a", gpus=1), node("n2", "a")])
    d.apply(web_pod("x", one_gpu_spec(affinity=pod_anti_affinity("rack")), node="n1"))
    d.step(1.0)
    pod = waits(d, web_pod("p"))
    d.engine.nodes_applied([node("n1", "z", gpus=1)], d.now)
    d.settle()
    assert pod.spec.node_name == "n2"
