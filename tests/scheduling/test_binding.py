"""From decisions to bound pods, and what becomes of binds that fail, get lost or come late."""

from typing import Any

import pytest

from tests.helpers import controlled_by, make_node, make_pod, owner
from tests.scheduling.driver import Driver, copies, fabric, gang, held, stage
from topo_scheduler.api.objects import Taint, Toleration
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import Bind, BindOutcome
from topo_scheduler.state.nodes.resources import CPU
from topo_scheduler.state.pods.workloads import Stage

FAILURES = [BindOutcome.REJECTED, BindOutcome.TAKEN]


# ---------------------------------------------------------------- success


def test_a_bind_carries_uid_node_rank_address_and_score() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    binds = d.binds()
    assert {bind.pod.uid for bind in binds} == {pod.metadata.uid for pod in pods}
    for rank, bind in enumerate(binds):
        annotations = {key.removeprefix("topology.scheduler/"): value for key, value in bind.annotations.items()}
        assert annotations["rank"] == str(rank)
        assert annotations["address"] == f"s1.l1.{bind.node}"
        assert 0 <= float(annotations["score"]) <= 1
        assert annotations["gang-id"] == "default/g"


def test_the_event_of_a_single_pod_names_its_node_and_the_reason() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    (message,) = d.told(pod, Reason.SCHEDULED)
    assert message.startswith(f"Successfully assigned default/p to {pod.spec.node_name}")
    assert "s1/l1" in message


def test_every_event_is_published_once_however_often_the_watch_repeats_a_pod() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = gang(2)
    d.run(*pods)
    before = len(d.said)
    for _ in range(3):
        d.tell_again(*pods)
        d.step(1)
    assert len(d.said) == before
    assert held(d, pods[0].spec.node_name) == 8


def test_the_watch_may_be_faster_than_the_answer() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.tell_again(d.write(d.flight[pod.metadata.uid]))
    d.step()
    assert len(d.told(pod, Reason.SCHEDULED)) == 1
    assert stage(d, pod) is Stage.BOUND
    d.answer(pod.metadata.uid)
    d.step()
    assert len(d.told(pod, Reason.SCHEDULED)) == 1
    assert d.engine.outcomes.in_flight == d.engine.world.ledger.assumed == 0


@pytest.mark.parametrize("outcome", [*FAILURES, BindOutcome.GONE, BindOutcome.UNKNOWN])
def test_what_the_watch_has_confirmed_no_late_answer_undoes(outcome: BindOutcome) -> None:
    # A bind is written, its answer is lost, the client asks again and hears that the pod has a node.
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.tell_again(d.write(d.flight[pod.metadata.uid]))
    d.answer(pod.metadata.uid, outcome)
    d.step(60)
    assert held(d, "s1-l1-1") == 8
    assert stage(d, pod) is Stage.BOUND
    assert d.flight == {}
    assert len(d.engine.queue) == 0


def test_a_pod_may_end_before_the_answer_to_its_bind() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.finish(d.write(d.flight[pod.metadata.uid]))
    d.answer(pod.metadata.uid, reported=False)
    d.step()
    assert len(d.told(pod, Reason.SCHEDULED)) == 1
    assert held(d, "s1-l1-1") == 0
    assert len(d.engine.workloads) == len(d.engine.queue) == 0


def test_an_older_view_of_a_pod_that_is_bound_changes_nothing() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    before = copies([pod])
    d.answer(pod.metadata.uid, reported=False)
    d.engine.pods_applied(before, d.now)
    d.step()
    assert stage(d, pod) is Stage.BOUND
    assert held(d, "s1-l1-1") == 8
    assert len(d.binds()) == 1


def test_a_pod_that_another_client_bound_to_the_very_node_holds_what_its_spec_says() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", annotations={"gpu-count": "4"})
    d.apply(pod)
    d.step()
    assert held(d, "s1-l1-1") == 4
    pod.spec.node_name = "s1-l1-1"
    d.tell_again(pod)
    assert held(d, "s1-l1-1") == 0, "no field of it records the charge, so a restart would not know of it either"
    d.answer(pod.metadata.uid, BindOutcome.TAKEN)
    assert stage(d, pod) is Stage.BOUND


# ---------------------------------------------------------------- failure


@pytest.mark.parametrize("outcome", FAILURES)
def test_a_failed_bind_gives_back_what_it_held_and_is_tried_again_after_a_pause(outcome: BindOutcome) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, outcome, "no")
    assert held(d, "s1-l1-1") == 0
    d.step(0.9)
    assert d.told(pod, Reason.BIND_FAILED) == ["Binding to s1-l1-1 failed: no"]
    assert d.flight == {}
    assert d.engine.next_due() == 1.0
    d.step(0.1)
    d.answer(pod.metadata.uid)
    assert held(d, "s1-l1-1") == 8


def test_the_pause_doubles_up_to_its_most_and_starts_over_after_success() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    pauses = []
    for _ in range(6):
        d.answer(pod.metadata.uid, BindOutcome.WITHDRAWN)
        d.step()
        due = d.engine.next_due()
        assert due is not None
        pauses.append(due - d.now)
        d.step(due - d.now)
    assert pauses == [1, 2, 4, 8, 10, 10]


def test_binds_of_one_decision_that_fail_together_are_one_failure() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    for pod in pods:
        d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    d.step()
    assert d.engine.next_due() == 1.0
    d.step(1)
    assert len(d.flight) == 4


def test_what_changed_while_a_bind_was_on_its_way_holds_for_the_next() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    d.own(owner("ReplicaSet", "r"))
    pod = make_pod("p", gpus=8, owner=controlled_by("ReplicaSet", "r"))
    d.apply(pod)
    d.step()
    pod.metadata.annotations["topology.scheduler/preferred-domain"] = "l2"
    d.apply(pod)
    d.own(owner("ReplicaSet", "r", {"network-bandwidth": "1Gb"}))
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    d.step(1)
    assert d.flight[pod.metadata.uid].node.startswith("s1-l2")
    entry = d.engine.workloads.of_pod(pod.metadata.uid)
    assert entry is not None
    assert entry[1].cls.bandwidth == 1000


def test_a_pod_that_is_gone_holds_nothing_and_is_forgotten_once_the_watch_reports_it() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.GONE)
    assert held(d, "s1-l1-1") == 0
    d.delete(pod)
    d.step(60)
    assert d.flight == {}
    assert len(d.engine.workloads) == len(d.engine.queue) == 0


def test_a_pod_that_the_watch_still_has_is_bound_again_after_a_backoff() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    for pause in (1, 2, 4):
        d.answer(pod.metadata.uid, BindOutcome.GONE)
        d.step(pause - 0.1)
        assert d.flight == {}
        d.step(0.2)
        assert d.flight[pod.metadata.uid].node == "s1-l1-1"
    d.answer(pod.metadata.uid)
    assert stage(d, pod) is Stage.BOUND
    assert d.told(pod, Reason.BIND_FAILED) == []


def test_a_gang_is_not_left_partially_bound_where_a_member_was_said_to_be_gone() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    d.answer(pods[0].metadata.uid)
    d.answer(pods[1].metadata.uid, BindOutcome.GONE)
    d.settle(2)
    assert len(d.where(*pods)) == 2


def test_a_pod_deleted_while_it_is_being_bound_holds_nothing() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.delete(pod)
    assert held(d, "s1-l1-1") == 0
    d.pods[pod.metadata.uid] = pod
    d.answer(pod.metadata.uid, BindOutcome.GONE)
    d.step()
    assert held(d, "s1-l1-1") == 0
    assert d.engine.outcomes.in_flight == 0


def test_a_pod_deleted_before_its_bind_is_written_is_not_bound() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    assert d.engine.may_bind(pod.metadata.uid) == ""
    d.delete(pod)
    assert "gone" in d.engine.may_bind(pod.metadata.uid)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unschedulable": True}, "was cordoned"),
        ({"ready": False}, "is not ready any more"),
        ({"taints": [Taint("team", "a", "NoSchedule")]}, "was tainted with team"),
        ({"taints": [Taint("team", "a", "PreferNoSchedule")]}, ""),
    ],
)
def test_a_node_that_closes_before_the_bind_is_written_gets_no_pod(changes: dict[str, Any], why: str) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.engine.nodes_applied([make_node("s1-l1-1", "s1/l1", **changes)], d.now)
    assert d.engine.may_bind(pod.metadata.uid) == (f"node s1-l1-1 {why}" if why else "")


def test_a_pod_that_tolerates_it_is_bound_to_a_node_that_closes() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    pod.spec.tolerations = [Toleration(operator="Exists")]
    d.apply(pod)
    d.step()
    closed = make_node("s1-l1-1", "s1/l1", unschedulable=True, taints=[Taint("team", "a", "NoSchedule")])
    d.engine.nodes_applied([closed], d.now)
    assert d.engine.may_bind(pod.metadata.uid) == ""


def test_a_bind_that_may_have_been_written_is_written_again_though_its_node_closed() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.UNKNOWN)
    d.engine.nodes_applied([make_node("s1-l1-1", "s1/l1", unschedulable=True)], d.now)
    assert d.engine.may_bind(pod.metadata.uid) == ""


def test_a_gang_that_has_begun_to_bind_is_completed_on_nodes_that_close() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = [make_pod(f"p{n}", gpus=8, annotations={"gang-name": "g", "gang-size": "2"}) for n in range(2)]
    d.apply(*pods)
    d.step()
    first, second = (pod.metadata.uid for pod in pods)
    node = d.engine.workloads.of_pod(second)
    assert node is not None
    d.engine.nodes_applied([make_node(node[1].node, "s1/l1", unschedulable=True)], d.now)
    assert "was cordoned" in d.engine.may_bind(second)
    d.answer(first, BindOutcome.BOUND)
    assert d.engine.may_bind(second) == ""


def test_answers_to_no_pending_bind_do_nothing() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    for outcome in BindOutcome:
        d.engine.bind_finished("stranger", outcome, "", d.now)
    waiting = make_pod("p", gpus=9)
    d.apply(waiting)
    d.step()
    for outcome in BindOutcome:
        d.engine.bind_finished(waiting.metadata.uid, outcome, "", d.now)
    assert d.engine.next_due() is None
    assert d.step() == []


# ---------------------------------------------------------------- of unknown end


def test_a_bind_of_unknown_end_keeps_what_it_holds_and_is_written_again_to_the_same_node() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    first = d.flight[pod.metadata.uid]
    for attempt in range(1, 4):
        d.answer(pod.metadata.uid, BindOutcome.UNKNOWN)
        assert held(d, first.node) == 8
        assert d.engine.world.ledger.assumed == 1
        d.step(0.5)
        assert d.flight == {}
        assert d.engine.next_due() == d.now + 0.5
        d.step(0.5)
        assert d.flight[pod.metadata.uid] == first
        assert len(d.binds()) == attempt + 1
    d.answer(pod.metadata.uid)
    d.step(60)
    assert d.flight == {}


def test_it_is_not_written_again_when_the_watch_has_reported_its_end() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    bind = d.flight[pod.metadata.uid]
    d.answer(pod.metadata.uid, BindOutcome.UNKNOWN)
    d.tell_again(d.write(bind))
    d.step(60)
    assert d.flight == {}
    assert len(d.told(pod, Reason.SCHEDULED)) == 1
    assert d.engine.outcomes.in_flight == d.engine.world.ledger.assumed == 0


def test_it_is_not_written_again_when_the_pod_is_gone() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.UNKNOWN)
    d.delete(pod)
    d.step(60)
    assert d.flight == {}
    assert held(d, "s1-l1-1") == held(d, "s1-l1-2") == 0


# ---------------------------------------------------------------- outcomes remembered


def test_refusals_count_against_the_leaf_and_taken_pods_do_not() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    world = d.engine.world
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.TAKEN)
    assert world.history.score(("s1", "l1"), d.now) == 1000
    d.step(10)
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    assert world.history.score(("s1", "l1"), d.now) < 1000


@pytest.mark.parametrize(
    ("reason", "counts"),
    [
        ("OutOfnvidia.com/gpu", True),
        ("OutOfcpu", True),
        ("UnexpectedAdmissionError", True),
        ("TopologyAffinityError", True),
        ("Error", False),
        ("Evicted", False),
        ("", False),
    ],
)
def test_a_kubelet_that_refuses_counts_against_its_leaf_and_a_program_that_fails_does_not(
    reason: str, counts: bool
) -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pods = [make_pod("p", namespace=namespace, gpus=4) for namespace in ("one", "two")]
    d.run(*pods)
    d.finish(pods[0], "Failed", reason)
    assert d.engine.world.history.score(("s1", "l1"), d.now) == 1000, "one namespace is not enough"
    d.finish(pods[1], "Failed", reason)
    assert (d.engine.world.history.score(("s1", "l1"), d.now) < 1000) is counts
    d.finish(pods[1], "Failed", reason)


def test_a_node_that_fails_counts_against_its_leaf() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    d.nodes(make_node("s1-l1-1", "s1/l1", ready=False, uid="uid-s1-l1-1"))
    assert d.engine.world.history.score(("s1", "l1"), d.now) < 1000


# ---------------------------------------------------------------- replicas in a burst


def test_replicas_decided_in_one_burst_know_of_each_other() -> None:
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}))
    d.own(owner("ReplicaSet", "web", {"placement-strategy": "distributed"}))
    d.run(make_pod("other", gpus=8, annotations={"preferred-domain": "l1"}))
    pods = [make_pod(f"web-{n}", gpus=1, owner=controlled_by("ReplicaSet", "web")) for n in range(4)]
    d.apply(*pods)
    d.step()
    leaves = sorted(bind.node[:5] for bind in d.flight.values())
    assert leaves == ["s1-l1", "s1-l1", "s1-l2", "s1-l2"]
    assert held(d, "s1-l2-1", CPU) > 0


def test_binds_keep_the_time_at_which_the_pod_was_first_seen() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    d.now = 5.0
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step(2)
    d.answer(pod.metadata.uid, BindOutcome.REJECTED)
    d.step(10)
    bind = [said for said in d.said if isinstance(said, Bind)][-1]
    assert (bind.queued, bind.decided) == (5.0, 17.0)
