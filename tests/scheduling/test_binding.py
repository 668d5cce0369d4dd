"""From decisions to bound pods, and what becomes of binds that fail, get lost or come late."""

import pytest

from tests.helpers import controlled_by, make_node, make_pod, owner
from tests.scheduling.driver import Driver, copies, fabric
from topo_scheduler.api.objects import Container, Pod, PodSpec, ResourceRequirements
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import Bind, BindOutcome
from topo_scheduler.state.resources import CPU, GPU
from topo_scheduler.state.workloads import Stage

FAILURES = [BindOutcome.REJECTED, BindOutcome.TAKEN]


def gang(size: int, *, controlled: bool = False, gpus: int = 8, name: str = "g") -> list[Pod]:
    annotations = {"gang-name": name, "gang-size": str(size)}
    by = controlled_by("ReplicaSet", name) if controlled else None
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=annotations, owner=by, created=n) for n in range(size)]


def held(d: Driver, node: str, column: int = GPU) -> int:
    return int(d.engine.world.nodes.requested[d.engine.world.nodes.row_of[node], column])


def stage(d: Driver, pod: Pod) -> Stage | None:
    found = d.engine.workloads.of_pod(pod.metadata.uid)
    return found[1].stage if found else None


# ---------------------------------------------------------------- success


def test_a_bind_carries_uid_node_rank_address_and_score() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pods = gang(2)
    d.apply(*pods)
    d.step()
    binds = d.binds()
    assert {bind.pod.uid for bind in binds} == {pod.metadata.uid for pod in pods}
    for rank, bind in enumerate(binds):
        told = {key.removeprefix("topology.scheduler/"): value for key, value in bind.annotations.items()}
        assert told["rank"] == str(rank)
        assert told["address"] == f"s1.l1.{bind.node}"
        assert 0 <= float(told["score"]) <= 1
        assert told["gang-id"] == "default/g"


def test_a_pod_alone_is_told_where_and_why() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    (message,) = d.told(pod, Reason.SCHEDULED)
    assert message.startswith(f"Successfully assigned default/p to {pod.spec.node_name}")
    assert "s1/l1" in message


def test_everything_is_told_once_however_often_the_watch_repeats_it() -> None:
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
    d.answer(pod.metadata.uid, told=False)
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
    d.answer(pod.metadata.uid, told=False)
    d.engine.pods_applied(before, d.now)
    d.step()
    assert stage(d, pod) is Stage.BOUND
    assert held(d, "s1-l1-1") == 8
    assert len(d.binds()) == 1


def test_a_pod_that_somebody_else_bound_to_the_very_node_holds_what_it_says() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", annotations={"gpu-count": "4"})
    d.apply(pod)
    d.step()
    assert held(d, "s1-l1-1") == 4
    pod.spec.node_name = "s1-l1-1"
    d.tell_again(pod)
    assert held(d, "s1-l1-1") == 0, "nothing on it tells of the charge, so a restart would not know of it either"
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
        d.answer(pod.metadata.uid, BindOutcome.REJECTED)
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
    assert d.flight[pod.metadata.uid].annotations["topology.scheduler/reserved-bandwidth"] == "1000"


def test_a_pod_that_is_gone_is_forgotten() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.apply(pod)
    d.step()
    d.answer(pod.metadata.uid, BindOutcome.GONE)
    d.step(60)
    assert held(d, "s1-l1-1") == 0
    assert len(d.engine.workloads) == len(d.engine.queue) == 0
    d.delete(pod)
    assert d.flight == {}


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


def test_answers_that_nobody_waits_for_do_nothing() -> None:
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


def test_it_is_not_written_again_when_the_watch_has_told_its_end() -> None:
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


# ---------------------------------------------------------------- repair and rollback


def test_a_member_whose_bind_failed_is_placed_again_beside_the_others() -> None:
    d = Driver(fabric({"s1/l1": 4, "s2/l1": 4}))
    pods = gang(3)
    d.apply(*pods)
    d.step()
    leaf = d.flight[pods[0].metadata.uid].node[:5]
    d.answer(pods[0].metadata.uid)
    d.answer(pods[1].metadata.uid, BindOutcome.REJECTED)
    d.answer(pods[2].metadata.uid)
    d.step(1)
    (bind,) = d.flight.values()
    assert bind.pod.uid == pods[1].metadata.uid
    assert bind.node[:5] == leaf
    assert bind.node not in (pods[0].spec.node_name, pods[2].spec.node_name)
    d.settle()
    assert sorted(pod.metadata.annotations["topology.scheduler/rank"] for pod in pods) == ["0", "1", "2"]


def half_bound(d: Driver, pods: list[Pod], *, taken: bool = True) -> None:
    """One bind of the gang fails, and what it would need is taken at the same moment."""
    d.apply(*pods)
    d.step()
    for pod in pods[1:]:
        d.answer(pod.metadata.uid)
    node = d.flight[pods[0].metadata.uid].node
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    if taken:
        d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    d.step(1)


def test_a_gang_that_can_not_be_completed_is_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    half_bound(d, pods)
    assert d.evicted() == []
    assert d.engine.next_due() == 3, "seconds after its bind failed"
    d.step(1.9)
    assert d.evicted() == []
    d.step(0.1)
    assert sorted(d.evicted()) == ["g-1", "g-2"]
    (message,) = {m for pod in pods for m in d.told(pod, Reason.ROLLED_BACK)}
    assert "2 of 3 members were bound" in message


def test_a_gang_is_not_given_up_while_a_bind_is_on_its_way() -> None:
    # Its one bind is refused, and long afterwards the other one lands: only then is it half bound.
    d = Driver(fabric({"s1/l1": 2}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(2, controlled=True)
    d.apply(*pods)
    d.step()
    node = d.flight[pods[0].metadata.uid].node
    d.answer(pods[0].metadata.uid, BindOutcome.REJECTED)
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    d.step(11)
    assert d.evicted() == []
    due = d.engine.next_due()
    assert due is None or due > d.now, "nothing to do until it lands"
    d.answer(pods[1].metadata.uid)
    d.step(3)
    assert d.evicted() == ["g-1"]


def test_bare_pods_are_never_evicted() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    half_bound(d, pods)
    d.step(3)
    d.step(60)
    assert d.evicted() == []
    assert d.told(pods[1], Reason.ROLLED_BACK)


def test_a_gang_that_found_room_again_is_not_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    half_bound(d, pods)
    d.step(1)
    d.nodes(make_node("s1-l1-9", "s1/l1"))
    d.step(1)
    assert pods[0].metadata.uid in d.flight
    d.step(60)
    assert d.evicted() == [], "its last bind is on its way, however slow"
    d.settle()
    assert all(pod.spec.node_name for pod in pods)


def test_a_gang_of_which_one_member_is_refused_for_good_is_rolled_back() -> None:
    # Admission says no to one of them whatever node it is to have: the others must not hold theirs for ever.
    d = Driver(fabric({"s1/l1": 4}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.apply(*pods)
    d.step()
    for _ in range(100):
        for uid in list(d.flight):
            refused = uid == pods[0].metadata.uid
            d.answer(uid, BindOutcome.REJECTED if refused else BindOutcome.BOUND)
        d.step(0.1)
        if d.evicted():
            break
    assert sorted(d.evicted()) == ["g-1", "g-2"]
    assert 3 <= d.now < 5
    tries = [bind for bind in d.binds() if bind.pod.name == "g-0"]
    assert len(tries) >= 2, "not at the first refusal"


def test_a_gang_that_gets_on_is_not_rolled_back_however_long_it_takes() -> None:
    d = Driver(fabric({"s1/l1": 8}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(8, controlled=True)
    d.apply(*pods)
    d.step()
    for number, pod in enumerate(pods):
        # Every second one finds its node taken the first time.
        if number % 2:
            d.answer(pod.metadata.uid, BindOutcome.REJECTED)
        else:
            d.answer(pod.metadata.uid)
        d.step(1.4)
    d.settle(1)
    d.settle(10)
    assert all(pod.spec.node_name for pod in pods)
    assert d.evicted() == []


def test_a_gang_that_was_rolled_back_starts_anew() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    half_bound(d, pods)
    d.step(3)
    d.delete(*pods[1:])
    again = gang(3, controlled=True)[1:]
    d.apply(*again)
    d.step()
    assert d.flight == {}
    d.nodes(make_node("s1-l1-9", "s1/l1"))
    d.step()
    assert len(d.flight) == 3
    d.step(60)
    d.settle()
    assert sorted(d.evicted()) == ["g-1", "g-2"], "once"


def test_a_gang_that_ran_whole_is_never_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.run(*pods)
    lost = pods[0].spec.node_name
    d.delete(pods[0])
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=lost))
    late = make_pod(
        "g-9", gpus=8, owner=controlled_by("ReplicaSet", "g"), annotations={"gang-name": "g", "gang-size": "3"}
    )
    d.apply(late)
    d.step()
    d.step(60)
    assert d.evicted() == []
    assert "near the 2 members of this gang that run" in d.told(late)[0]


def test_a_member_deleted_while_the_gang_is_being_bound_does_not_leave_half_of_it() -> None:
    # Its successor finds its place taken: nobody's bind failed, and still the gang can't be completed.
    d = Driver(fabric({"s1/l1": 3}))
    d.own(owner("ReplicaSet", "g"))
    pods = gang(3, controlled=True)
    d.apply(*pods)
    d.step()
    node = d.flight.pop(pods[0].metadata.uid).node
    d.delete(pods[0])
    d.apply(make_pod("thief", gpus=8, scheduler="other", node=node))
    for pod in pods[1:]:
        d.answer(pod.metadata.uid)
    d.apply(gang(3, controlled=True)[0])
    d.step()
    d.step(3)
    assert sorted(d.evicted()) == ["g-1", "g-2"]


# ---------------------------------------------------------------- nodes that change underneath


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


def test_pods_told_before_their_node() -> None:
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
    assert any(node in message and "scheduler other" in message for message in d.complaints())
    assert "another scheduler took" in d.refused(pod.metadata.uid)
    d.settle(1)
    assert pod.spec.node_name not in ("", node)


def test_what_another_scheduler_overdraws_is_told_to_the_pods_of_the_node() -> None:
    d = Driver(fabric({"s1/l1": 1}))
    pod = make_pod("p", gpus=8)
    d.run(pod)
    d.apply(make_pod("thief", gpus=4, scheduler="other", node="s1-l1-1"))
    d.step()
    (message,) = d.told(pod, Reason.OVERSUBSCRIBED)
    assert "default/thief" in message
    assert len(d.complaints()) == 1


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


# ---------------------------------------------------------------- bandwidth


def test_bandwidth_is_charged_once_a_node_for_all_of_a_gang() -> None:
    d = Driver([make_node("n", "s/l", bandwidth="400Gb")])
    pods = gang(2, gpus=2)
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/network-bandwidth"] = "200Gb"
    d.run(*pods)
    row = d.engine.world.nodes.row_of["n"]
    assert d.engine.world.nodes.reserved_bandwidth[row] == 200_000
    for pod in pods:
        d.finish(pod)
    assert d.engine.world.nodes.reserved_bandwidth[row] == 0


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
    pod = make_pod("p", gpus=8)
    d.run(pod)
    d.finish(pod, "Failed", reason)
    assert (d.engine.world.history.score(("s1", "l1"), d.now) < 1000) is counts
    d.finish(pod, "Failed", reason)


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
