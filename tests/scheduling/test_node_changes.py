"""Nodes that vanish, come back or are filled by others while pods are being bound to them."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric, held
from topo_scheduler.api.objects import Container, PodSpec, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.binding.outcomes import OVERSUBSCRIBED_PAUSE_SECONDS
from topo_scheduler.scheduling.instructions import BindOutcome, EmitEvent, LogWarning


def test_a_node_deleted_between_decision_and_bind() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    node = d.flight[pod.metadata.uid].node
    d.drop_node(node)
    assert f"node {node} was deleted" in d.refused(pod.metadata.uid)
    d.settle(1)
    assert pod.spec.node_name not in ("", node)


def test_a_node_made_again_under_its_name_is_another_one() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    # The deletion is missed: the watch shows another uid under the name, with room for other things.
    d.nodes(make_node("s1-l1-1", "s2/l9", uid="new", gpus=16))
    assert held(d, "s1-l1-1") == 8, "pods that say they run there are still counted"
    assert d.engine.world.leaf_of("s1-l1-1") == ("s2", "l9")
    d.drop_node("s1-l1-1", "uid-s1-l1-1")
    assert len(d.engine.world.nodes) == 1, "the deletion of the first one comes late"
    d.delete(pod)
    assert held(d, "s1-l1-1") == 0
    d.drop_node("s1-l1-1", "new")
    assert len(d.engine.world.nodes) == 0


def test_a_node_that_comes_back_is_charged_with_the_pods_it_runs() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    d.drop_node("s1-l1-1")
    d.nodes(make_node("s1-l1-1", "s1/l1", uid="uid-s1-l1-1"))
    assert held(d, "s1-l1-1") == 8
    assert d.run(make_pod("q", gpus=8)) == {}


def test_pods_reported_before_their_node() -> None:
    d = Driver()
    d.apply(make_pod("p", gpus=8, node="s1-l1-1"))
    d.nodes(*fabric({"s1/l1": 1}))
    assert held(d, "s1-l1-1") == 8


def test_what_another_scheduler_takes_between_decision_and_bind_is_seen_before_the_write() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    node = d.flight[pod.metadata.uid].node
    d.apply(make_pod("thief", gpus=4, scheduler="other", node=node))
    d.step()
    assert any(node in message and "scheduler 'other'" in message for message in d.complaints())
    assert "another scheduler took" in d.refused(pod.metadata.uid)
    d.settle(1)
    assert pod.spec.node_name not in ("", node)


def test_what_another_scheduler_overdraws_is_reported_on_the_pods_of_the_node() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    d.apply(make_pod("thief", gpus=4, scheduler="other", node="s1-l1-1"))
    d.step()
    (message,) = d.told(pod, Reason.OVERSUBSCRIBED)
    assert "default/thief" in message and message.endswith("give the two schedulers different nodes")
    assert len(d.complaints()) == 1


def test_the_pods_of_a_node_get_no_event_for_a_pod_that_was_created_with_it() -> None:
    """Any user may create such a pod on any node; its kubelet rejects it."""
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    created = make_pod("created", gpus=4, scheduler="other", namespace="hostile", node="s1-l1-1")
    created.status.conditions = []
    d.apply(created)
    d.step()
    assert d.told(pod, Reason.OVERSUBSCRIBED) == []
    (warning,) = d.complaints()
    assert "hostile/created was created with this node" in warning


def test_the_pods_of_a_node_get_one_event_a_minute_that_it_is_oversubscribed() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    counts = []
    for number in range(4):
        d.apply(make_pod(f"thief-{number}", gpus=4, scheduler="other", node="s1-l1-1"))
        d.step(OVERSUBSCRIBED_PAUSE_SECONDS / 2)
        counts.append(sum(isinstance(said, EmitEvent) and said.reason == Reason.OVERSUBSCRIBED for said in d.said))
    assert counts == [1, 1, 2, 2]
    assert len(d.complaints()) == 4


@pytest.mark.parametrize("answered", [False, True], ids=["before the answer", "after the answer"])
def test_a_binding_that_a_webhook_changed_is_reported_and_its_kind_is_in_backoff(answered: bool) -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.apply(make_pod("full", gpus=8, node="s1-l1-1"))
    pod, other = make_pod("p", gpus=8), make_pod("q", gpus=8, namespace="others")
    d.apply(pod)
    d.step()
    uid = pod.metadata.uid
    bind = d.flight.pop(uid)
    if answered:
        d.engine.bind_finished(uid, BindOutcome.BOUND, "", d.now)
    pod.spec.node_name = "s1-l1-1"
    d.tell_again(pod)
    if not answered:
        d.engine.bind_finished(uid, BindOutcome.BOUND, "", d.now)
    d.step()
    (message,) = d.told(pod, Reason.BIND_FAILED)
    assert message.startswith(f"Binding to {bind.node} failed: the pod is on s1-l1-1; a mutating admission webhook")
    assert all(line.endswith("run one scheduler of this name") for line in d.complaints()), "there is no second one"
    d.apply(make_pod("next", gpus=8), other)
    d.step()
    assert [bind.pod.name for bind in d.flight.values()] == ["q"], "pods of another namespace are bound"


def test_a_pod_that_its_owner_resizes_beyond_its_node_is_no_fault_of_two_schedulers() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod, resized = make_pod("p", gpus=4), make_pod("resized", gpus=1, namespace="hostile")
    d.run(pod, resized)
    resized.spec.containers[0].resources.requests["cpu"] = "1000"
    d.apply(resized)
    d.step()
    assert d.told(pod, Reason.OVERSUBSCRIBED) == d.told(resized, Reason.OVERSUBSCRIBED) == []
    (warning,) = d.complaints()
    assert "hostile/resized was resized" in warning
    assert {said.namespace for said in d.said if isinstance(said, LogWarning)} == {"hostile"}, "its lines have a budget"


@pytest.mark.parametrize("uid", ["uid-s1-l1-1", "new"])
def test_a_node_that_shrinks_below_its_pods_is_logged_each_time(uid: str) -> None:
    """Also one that was made again under its name: the alert on such nodes sends its reader to the log."""
    d = Driver(fabric({"s1/l1": 1}))
    d.run(make_pod("p", gpus=8))
    for gpus in (4, 3, 8, 5):
        d.nodes(make_node("s1-l1-1", "s1/l1", uid=uid, gpus=gpus))
        d.step()
    first, again = d.complaints()
    assert first == again and first.startswith("node s1-l1-1 has less") and "nvidia.com/gpu" in first


def test_what_a_tenant_calls_its_scheduler_is_read_by_no_other() -> None:
    """The API server takes any name, however often it changes: the others hear the same, and hear it once."""
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8, namespace="victim")
    d.run(pod)
    for number in range(5):
        name = f"\x1b[31mrun https://evil.example/{number}\n"
        d.apply(make_pod(f"thief-{number}", gpus=4, scheduler=name, node="s1-l1-1"))
        d.step()
    (message,) = set(d.told(pod, Reason.OVERSUBSCRIBED))
    assert "a pod of another namespace" in message
    assert "evil" not in message
    assert all("evil" in text and text.isprintable() for text in d.complaints())


def test_a_lack_of_what_the_pod_does_not_ask_for_does_not_keep_it_off() -> None:
    # The kubelet now keeps more disk for itself than before; a pod that asks for none of it may run all the same.
    node = make_node("n", "s/l", allocatable={"cpu": "8", "memory": "64Gi", "pods": 10, "ephemeral-storage": "10Gi"})
    d = Driver([node])
    hog = make_pod(
        "hog",
        node="n",
        scheduler="other",
        spec=PodSpec(containers=[Container("c", ResourceRequirements({"ephemeral-storage": "20Gi"}))]),
    )
    hog.spec.node_name = "n"
    d.apply(hog)
    pod = make_pod("p", cpu="1")
    d.apply(pod)
    d.step()
    assert d.refused(pod.metadata.uid) == ""


def test_one_pod_of_a_node_that_others_overdrew_gives_way_and_not_all() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = [make_pod(f"p-{n}", gpus=4, cpu="1") for n in range(2)]
    d.apply(*pods)
    d.step()
    nodes = {bind.node for bind in d.flight.values()}
    assert len(nodes) == 1
    d.apply(make_pod("thief", gpus=4, cpu="0", scheduler="other", node=nodes.pop()))
    refusals = [d.refused(pod.metadata.uid) for pod in pods]
    assert [bool(why) for why in refusals] == [True, False]
