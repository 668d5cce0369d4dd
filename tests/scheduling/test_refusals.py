"""Pods that kubelets refuse: not the same node again, and no other pod suffers."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric, gang
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.binding.refusals import (
    FIRST_EXCLUSION_SECONDS,
    HALF_LIFE_SECONDS,
    MAX_EXCLUSION_SECONDS,
    Penalties,
)
from topo_scheduler.state.pods.classes import PodClass


def refuse(d: Driver, pod: Pod, reason: str = "OutOfnvidia.com/gpu") -> str:
    """The kubelet of the pod's node refuses it."""
    node = pod.spec.node_name
    d.finish(pod, "Failed", reason)
    d.delete(pod)
    return node


@pytest.mark.parametrize(
    "reason", ["OutOfcpu", "OutOfnvidia.com/gpu", "UnexpectedAdmissionError", "TopologyAffinityError", "NodeAffinity"]
)
def test_pods_like_a_refused_one_go_elsewhere(reason: str) -> None:
    d = Driver(fabric({"s1/l1": 2}))
    first = make_pod("first", gpus=1)
    d.run(first)
    node = refuse(d, first, reason)
    again = make_pod("again", gpus=1)
    assert d.run(again)["again"] != node


def test_a_pod_that_failed_of_itself_is_no_refusal() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    first = make_pod("first", gpus=1)
    d.run(first)
    node = refuse(d, first, "Error")
    assert d.run(make_pod("again", gpus=1)) == {"again": node}


def test_the_node_is_tried_again_after_a_while_and_later_each_time() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    for attempt in range(3):
        pod, waiting = make_pod(f"p{attempt}", gpus=1), make_pod(f"w{attempt}", gpus=1)
        d.run(pod)
        refuse(d, pod)
        assert d.run(waiting) == {}
        assert "1 node(s) refused such a pod a moment ago" in d.told(waiting)[0]
        before = FIRST_EXCLUSION_SECONDS * 2**attempt
        d.settle(before * 0.9)
        assert d.where(waiting) == {}
        assert d.engine.next_due() == pytest.approx(d.now + before * 0.1)
        d.settle(before * 0.2)
        assert d.where(waiting), "woken by the time alone"
        d.delete(waiting)


def refused_to_both(d: Driver) -> str:
    """The kubelet of one node refuses pods of two namespaces; return its name."""
    where = set()
    for namespace in ("one", "two"):
        pod = make_pod("first", namespace=namespace, gpus=4)
        d.run(pod)
        where.add(refuse(d, pod))
    (node,) = where
    return node


def test_refusals_of_one_namespace_keep_no_other_off() -> None:
    """A tenant can ask for what kubelets refuse, as often as it wants."""
    d = Driver(fabric({"s1/l1": 1}))
    for number in range(5):
        pod = make_pod(f"evil-{number}", namespace="evil", gpus=1)
        d.run(pod)
        refuse(d, pod)
        d.settle(MAX_EXCLUSION_SECONDS + 1)
    last = make_pod("evil", namespace="evil", gpus=1)
    d.run(last)
    node = refuse(d, last)
    nodes = d.engine.world.nodes
    assert nodes.penalty[nodes.row_of[node]] == 0
    assert d.engine.world.history.score(("s1", "l1"), d.now) == 1000
    mine, theirs = (make_pod("p", namespace=namespace, gpus=1) for namespace in ("default", "evil"))
    assert d.run(mine) == {"p": node}
    assert d.run(theirs) == {}, "its own keep off"


def test_pods_of_all_namespaces_keep_off_once_several_were_refused() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    first, second, third = (make_pod("p", namespace=namespace, gpus=1) for namespace in ("one", "two", "three"))
    d.run(first)
    d.run(second)
    refuse(d, first)
    refuse(d, second)
    assert d.run(third) == {}


def test_the_more_namespaces_were_refused_the_more_it_counts() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    refused = [make_pod("p", namespace=namespace, gpus=1) for namespace in ("one", "two", "three")]
    d.run(*refused)
    (node,) = {refuse(d, pod) for pod in refused}
    nodes = d.engine.world.nodes
    assert nodes.penalty[nodes.row_of[node]] == 3
    assert d.run(make_pod("p", namespace="four", gpus=1)) == {}


def test_refusals_of_pods_that_others_put_on_a_node_do_not_count() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    for namespace in ("one", "two"):
        pod = make_pod("p", namespace=namespace, gpus=1, node="s1-l1-1")
        d.apply(pod)
        refuse(d, pod)
    assert len(d.engine.world.penalties) == 0
    assert d.run(make_pod("q", namespace="one", gpus=1))


def test_other_pods_may_go_there_but_rather_do_not() -> None:
    d = Driver(fabric({"s1/l1": 1, "s1/l2": 1}))
    node = refused_to_both(d)
    assert d.run(make_pod("small", gpus=2))["small"] != node
    assert d.run(make_pod("two", gpus=3))["two"] != node
    assert d.run(make_pod("last", gpus=5))["last"] == node, "rather there than nowhere"


def test_penalties_fade_and_nodes_are_forgotten() -> None:
    d = Driver(fabric({"s1/l1": 1, "s1/l2": 1}))
    node = refused_to_both(d)
    nodes = d.engine.world.nodes
    assert nodes.penalty[nodes.row_of[node]] == 2
    d.step(4 * HALF_LIFE_SECONDS)
    assert nodes.penalty[nodes.row_of[node]] == 0
    assert len(d.engine.world.penalties) == 0


def test_a_gang_whose_member_was_refused_gets_another_place_for_it() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(3)
    d.run(*pods)
    node = refuse(d, pods[1])
    again = make_pod("g-again", gpus=8, annotations={"gang-name": "g", "gang-size": "3"})
    where = d.run(again)["g-again"]
    assert where != node
    assert where not in (pods[0].spec.node_name, pods[2].spec.node_name)


def test_a_deleted_node_is_forgotten() -> None:
    d = Driver([make_node("n1", "s1/l1"), make_node("n2", "s1/l1")])
    first = make_pod("first", gpus=1)
    node = d.run(first)["first"]
    refuse(d, first)
    d.drop_node(node)
    d.nodes(make_node(node, "s1/l1", uid="new"))
    assert d.engine.world.nodes.penalty.sum() == 0


def test_how_long_a_node_is_left_alone_has_a_bound() -> None:
    penalties, cls = Penalties(), PodClass(())
    for _ in range(50):
        penalties.refused("n", "default", cls, 0.0)
    assert penalties.next_change() == MAX_EXCLUSION_SECONDS
    assert penalties.reopened(MAX_EXCLUSION_SECONDS) == ["n"]
    assert not penalties.any_shunned
