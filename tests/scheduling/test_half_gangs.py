"""Partially bound gangs: first in line, nodes reserved for them, rolled back after 5 s unless they ran complete."""

from itertools import pairwise
from typing import Any

import pytest

from tests.helpers import controlled_by, job_owner, make_job, make_node, make_pod, timestamp
from tests.scheduling.driver import fabric
from topo_scheduler.api.annotations import GANG_COMPLETE, RANK
from topo_scheduler.api.objects import ContainerState, ContainerStatus, Pod, PodCondition, Terminated
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.binding.partially_bound_gangs import (
    FIRST_PAUSE_SECONDS,
    PART_INSTRUCTIONS,
    ROLL_BACK_AFTER_SECONDS,
)
from topo_scheduler.scheduling.binding.unsettled import LONGEST_PAUSE_SECONDS
from topo_scheduler.scheduling.instructions import BindOutcome, MarkComplete, Recall, Withdraw
from topo_scheduler.state.pods.workloads import Member

from .driver import Driver, copies, gang

SOON = ROLL_BACK_AFTER_SECONDS + 0.1


def half(d: Driver, pods: list[Pod], bound: int = 2) -> list[str]:
    """Have some of a gang bound; return the uids of the others, whose binds are under way."""
    d.apply(*pods)
    d.step()
    uids = list(d.flight)
    assert len(uids) == len(pods)
    for uid in uids[:bound]:
        d.answer(uid)
    d.step()
    return uids[bound:]


def again(pods: list[Pod]) -> Driver:
    """A successor that finds what there is."""
    d = Driver(fabric({"s1/l1": 4}))
    d.apply(*pods)
    return d


def test_a_successor_completes_a_partially_bound_gang_before_an_older_pod_is_placed() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    half(first, pods)
    older = [make_pod(f"older-{number}", gpus=8, created=-1_000) for number in range(2)]
    second = again([*pods, *older])
    second.settle()
    assert len(second.where(*pods)) == 4
    assert second.where(*older) == {}


def test_pods_bound_by_others_after_the_first_decision_do_not_put_a_gang_first() -> None:
    """Any user that may create pods could claim that: a pod with a node and a gang-id of its own namespace."""
    d = Driver(fabric({"s1/l1": 4}))
    d.settle()
    said = {"gang-id": "default/g", "gang-minimum": "3"}
    d.apply(make_pod("forged", gpus=1, node="s1-l1-1", annotations=said))
    pods = [pod for pod in gang(3) if pod.metadata.name != "g-0"]
    d.apply(*pods)
    older = [make_pod(f"older-{number}", gpus=8, created=-1_000) for number in range(3)]
    d.apply(*older)
    d.settle()
    assert len(d.where(*older)) == 3


@pytest.mark.parametrize("priority", [0, 5])
def test_the_seat_of_a_member_that_was_not_bound_is_held(priority: int) -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    for pod in pods:
        pod.spec.priority = priority
    (rest,) = half(d, pods)
    d.answer(rest, BindOutcome.WITHDRAWN, "a plugin refused it")
    other = make_pod("other", gpus=8, priority=priority)
    d.apply(other)
    d.step()
    assert other.metadata.uid not in d.flight, "the gang's seat is kept"
    urgent = make_pod("urgent", gpus=8, priority=priority + 1)
    d.apply(urgent)
    d.step()
    assert urgent.metadata.uid in d.flight, "from equal and lower priority only"


def test_it_is_rolled_back_after_five_seconds_and_pauses_longer_each_time() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    (rest,) = half(d, pods)
    d.nodes(make_node("s1-l1-3", unschedulable=True))
    d.drop_node(d.flight[rest].node)
    d.answer(rest, BindOutcome.WITHDRAWN, "its node was deleted")
    d.step()
    assert d.evicted() == []
    d.step(SOON)
    assert len(d.evicted()) == 2
    workload = d.engine.workloads.get("default/g")
    assert workload is not None
    assert workload.not_before == pytest.approx(d.now + FIRST_PAUSE_SECONDS)
    for pod in pods:
        if pod.metadata.name in d.evicted():
            d.engine.rollback_refused(pod.metadata.uid, "a budget", d.now)
    d.step(0.1)
    assert len(d.evicted()) == 2, "not in a loop"
    d.step(FIRST_PAUSE_SECONDS)
    assert len(d.evicted()) == 4
    assert workload.not_before == pytest.approx(d.now + 2 * FIRST_PAUSE_SECONDS)


def test_a_partially_bound_gang_is_rolled_back_by_a_successor_unless_a_member_says_it_ran_complete() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    half(first, pods)
    fillers = [make_pod(f"other-{number}", gpus=8, node=f"s1-l1-{number}") for number in (1, 2, 3, 4)]
    taken = {pod.spec.node_name for pod in pods}
    fillers = [pod for pod in fillers if pod.spec.node_name not in taken]
    second = again([*pods, *fillers])
    second.settle()
    second.step(SOON)
    assert len(second.evicted()) == 2
    bound = next(pod for pod in pods if pod.spec.node_name)
    bound.status.conditions = [PodCondition(GANG_COMPLETE, "True")]
    third = again([*pods, *fillers])
    third.settle()
    third.step(SOON)
    assert third.evicted() == []


def test_members_of_a_complete_gang_are_marked_and_others_when_those_end() -> None:
    d = Driver(fabric({"s1/l1": 4, "s1/l2": 4}))
    pods = gang(5, gpus=4)
    d.run(*pods)

    def marked() -> list[str]:
        return [said.pod.name for said in d.said if isinstance(said, MarkComplete)]

    assert len(set(marked())) == 3
    d.delete(next(pod for pod in pods if pod.metadata.name == marked()[0]))
    d.step()
    assert len(set(marked())) == 4


def test_a_bind_that_hangs_is_withdrawn_and_evicted_if_it_lands_after_all() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    (rest,) = half(d, pods)
    d.step(3.0)
    assert d.evicted() == []
    d.engine.bind_hangs(rest, d.now)
    d.step(SOON - 3.0)
    assert len(d.evicted()) == 2
    bind = d.flight.pop(rest)
    d.engine.bind_finished(rest, BindOutcome.UNKNOWN, "time was up", d.now)
    assert any(isinstance(said, Withdraw) for said in d.step(2.0))
    d.write(bind)
    d.tell_again(d.pods[rest])
    d.step()
    assert len(d.evicted()) == 3


def test_binds_that_are_under_way_are_no_reason_to_roll_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    half(d, gang(3))
    d.step(60.0)
    assert d.evicted() == []


def test_after_a_rollback_every_member_is_tried_before_one_is_bound() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    pods = gang(3)
    (rest,) = half(d, pods)
    for _ in range(10):
        if rest in d.flight:
            d.answer(rest, BindOutcome.REJECTED, "not this one")
        d.step(1.0)
    evicted = [pod for pod in pods if pod.metadata.name in d.evicted()]
    assert len(evicted) == 2
    d.delete(*evicted)
    again = gang(3)
    d.answers_trials = False
    d.apply(*(pod for pod in again if pod.metadata.name in d.evicted()))
    d.step()
    for _ in range(40):
        d.step(1.0)
    assert len(d.tried) == 3
    assert d.flight == {}
    d.rehearsed(rest, BindOutcome.REJECTED)
    for uid in list(d.tried):
        d.rehearsed(uid)
    d.step()
    assert d.flight == {}


def test_a_partially_bound_gang_whose_missing_members_have_no_pods_is_rolled_back_by_a_successor() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    half(first, pods)
    bound = [pod for pod in pods if pod.spec.node_name]
    second = again(bound)
    second.settle()
    second.step(SOON - 1.0)
    assert second.evicted() == []
    second.step(1.0)
    assert len(second.evicted()) == 2


def test_a_partially_bound_gang_whose_missing_members_are_deleted_is_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    rest = half(d, gang(4))
    for uid in rest:
        d.flight.pop(uid)
        d.delete(d.pods[uid])
    d.step()
    assert d.evicted() == []
    d.step(SOON)
    assert len(d.evicted()) == 2


def test_pods_that_come_again_in_time_complete_the_gang() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    half(first, pods)
    second = again([pod for pod in pods if pod.spec.node_name])
    second.settle()
    second.step(SOON - 1.0)
    missing = [pod for pod in pods if not pod.spec.node_name]
    second.apply(*missing)
    second.settle()
    second.step(60.0)
    assert second.evicted() == []
    assert len(second.where(*pods)) == 4


@pytest.mark.parametrize("late", [False, True])
def test_a_gang_of_which_a_member_has_succeeded_is_not_rolled_back(late: bool) -> None:
    """It ran complete: the members that said so may be those that ended."""
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    first.run(*pods)
    for pod in pods:
        pod.status.conditions = []
    pods[0].status.phase = "Succeeded"
    listed = [*pods[1:], pods[0]] if late else pods
    second = again(listed[1:] if late else listed)
    if late:
        second.apply(listed[0])
    second.settle()
    second.step(SOON)
    assert second.evicted() == []
    second.delete(pods[1])
    second.step(SOON)
    assert second.evicted() == []


def test_a_seat_is_free_again_once_its_gang_is_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    (rest,) = half(d, gang(3))
    d.answer(rest, BindOutcome.WITHDRAWN, "a plugin refused it")
    used = d.where(*d.pods.values()).values()
    (node,) = {"s1-l1-1", "s1-l1-2", "s1-l1-3"} - set(used)
    d.nodes(make_node(node, "s1/l1", unschedulable=True))
    d.step()
    assert len(d.engine.outcomes.partially_bound.nominations) == 1, "kept from others"
    d.step(SOON)
    assert len(d.evicted()) == 2
    d.step(0.1)
    assert len(d.engine.outcomes.partially_bound.nominations) == 0


def test_a_large_rollback_is_handed_out_in_parts() -> None:
    """Any user that may create pods can bind thousands of them itself, as a gang that is never complete."""
    d = Driver(fabric({"s1/l1": 8}))
    said = {"gang-id": "default/g", "gang-minimum": "100000", "gang-size": "100000"}
    said |= {"gang-name": "g", "rank": "0"}
    bound = [
        make_pod(f"b{n}", cpu="1m", memory="1", node=f"s1-l1-{n % 8 + 1}", phase="Running", annotations=said)
        for n in range(600)
    ]
    waiting = [make_pod(f"w{n}", cpu="1m", annotations={"gang-name": "g", "gang-size": "100000"}) for n in range(3)]
    d.apply(*bound)
    d.step()
    d.apply(*waiting)
    d.step()
    d.step(2 * SOON)
    counts = [len(d.evicted())]
    assert 0 < counts[0] <= PART_INSTRUCTIONS // 2
    d.delete(*bound[-20:])
    while (due := d.engine.next_due()) is not None:
        d.step(max(0.0, due - d.now))
        counts.append(len(d.evicted()))
    assert all(after - before <= PART_INSTRUCTIONS // 2 for before, after in pairwise(counts))
    assert sorted(d.evicted()) == sorted(pod.metadata.name for pod in bound[:-20]), "each once, but for those gone"


def test_gangs_take_turns_in_being_rolled_back() -> None:
    d = Driver(fabric({"s1/l1": 8}))
    d.step()
    for name, count in (("large", 600), ("small", 2)):
        said = {"gang-id": f"default/{name}", "gang-minimum": "1000", "gang-name": name, "gang-size": "1000"}
        nodes = [f"s1-l1-{n % 8 + 1}" for n in range(count)]
        d.apply(
            *(
                make_pod(f"{name}-{n}", cpu="1m", memory="1", node=node, phase="Running", annotations=said)
                for n, node in enumerate(nodes)
            ),
            make_pod(f"{name}-waits", cpu="1m", annotations={"gang-name": name, "gang-size": "1000"}),
        )
    d.step()
    d.step(2 * SOON)
    assert {"small-0", "small-1"} <= set(d.evicted()), "not behind all of the large one"
    assert len(d.evicted()) <= PART_INSTRUCTIONS // 2


def recalls(d: Driver) -> list[str]:
    return [said.pod.uid for said in d.said if isinstance(said, Recall)]


def test_binds_that_wait_for_their_turn_do_not_hold_back_the_rollback() -> None:
    """Their namespace's binds hang: nothing was sent of them, so they are taken back."""
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    hangs, waits = half(d, pods)
    d.step(3.0)
    for uid in (hangs, waits):
        d.engine.bind_hangs(uid, d.now)
    d.step(SOON - 3.0)
    assert len(d.evicted()) == 2
    assert set(recalls(d)) == {hangs, waits}
    d.engine.bind_recalled(hangs, False, d.now)
    d.engine.bind_recalled(waits, True, d.now)
    d.step()
    nodes = d.engine.world.ledger
    assert nodes.get(waits) is None, "its seat is free at once"
    assert nodes.get(hangs) is not None, "that of the other is not: its bind may take effect"
    assert d.told(d.pods[waits], Reason.BIND_FAILED) == []


def test_a_recalled_bind_that_was_sent_before_is_looked_up_first() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    (rest,) = half(d, gang(3))
    d.engine.bind_hangs(rest, d.now)
    d.answer(rest, BindOutcome.UNKNOWN)
    d.step(1.0)
    assert rest in d.flight, "it waits for its turn again"
    d.step(SOON)
    assert len(d.evicted()) == 2
    d.engine.bind_recalled(rest, True, d.now)
    assert any(isinstance(said, Withdraw) for said in d.step())
    assert d.engine.world.ledger.get(rest) is not None
    d.answer(rest, BindOutcome.WITHDRAWN)
    assert d.engine.world.ledger.get(rest) is None


def test_a_bind_that_pauses_is_withdrawn_with_its_gang_and_not_after_its_pause() -> None:
    d = Driver(fabric({"s1/l1": 3}))
    d.apply(*gang(3))
    d.step()
    rest, *others = d.flight
    for _ in range(7):
        d.engine.bind_hangs(rest, d.now)
        d.answer(rest, BindOutcome.UNKNOWN)
        d.step(LONGEST_PAUSE_SECONDS)
    d.engine.bind_hangs(rest, d.now)
    d.answer(rest, BindOutcome.UNKNOWN)
    for uid in others:
        d.answer(uid)
    d.step()
    assert rest in d.flight, "the gang is half: it is written at once"
    d.engine.bind_hangs(rest, d.now)
    d.answer(rest, BindOutcome.UNKNOWN)
    d.step(SOON)
    assert len(d.evicted()) == 2
    assert any(isinstance(said, Withdraw) for said in d.said)


def test_a_member_that_is_being_tried_does_not_hold_back_the_rollback() -> None:
    """A webhook that refused it hangs now; of a rehearsal nothing can take effect."""
    d = Driver(fabric({"s1/l1": 3}))
    (rest,) = half(d, gang(3))
    d.answers_trials = False
    d.answer(rest, BindOutcome.REJECTED, "not this one")
    d.step(2.0)
    assert list(d.tried) == [rest]
    d.step(SOON)
    assert len(d.evicted()) == 2
    d.engine.bind_recalled(rest, False, d.now)
    d.step()
    assert d.engine.world.ledger.get(rest) is None


@pytest.mark.parametrize("how", ["deleted", "failed", "succeeded"])
def test_members_that_were_lost_do_not_count_beside_those_that_came_in_their_place(how: str) -> None:
    """With other ranks than theirs these would make a complete gang of a half one, that is never rolled back."""
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    rest = half(d, pods)
    for uid in rest:
        d.answer(uid, BindOutcome.WITHDRAWN, "admission refuses it")
    lost = [pod for pod in pods if pod.metadata.uid not in rest]
    for pod in lost:
        if how == "deleted":
            d.delete(pod)
        else:
            d.finish(pod, how.capitalize())
    said = {"gang-name": "g", "gang-size": "4"}
    d.apply(*(make_pod(f"g-{number}", gpus=8, annotations=said, created=number) for number in (4, 5)))
    d.step(2.0)
    ranks = {pod.metadata.annotations[RANK] for pod in lost}
    asked = {uid: bind.annotations[RANK] for uid, bind in d.flight.items()}
    bound = [uid for uid, rank in asked.items() if rank not in ranks]
    assert len(asked) == 4 and len(bound) == 2
    for uid in asked:
        if uid in bound:
            d.answer(uid)
        else:
            d.answer(uid, BindOutcome.WITHDRAWN, "admission refuses it")
    d.step()
    complete = how == "succeeded"  # four have run, though not at once
    assert bool([said for said in d.said if isinstance(said, MarkComplete)]) == complete
    d.forget()
    for _ in range(100):
        for uid in list(d.flight):
            d.answer(uid, BindOutcome.WITHDRAWN, "admission refuses it")
        d.step(0.1)
    assert len(d.evicted()) == (0 if complete else 2)


def test_a_member_that_is_being_deleted_does_not_count_beside_the_one_in_its_stead() -> None:
    """A Job makes another while the first still runs: together they made up for a member that is never bound."""
    d = Driver(fabric({"s1/l1": 6}))
    pods, stead = gang(4), gang(5)[4]
    stead.metadata.annotations = dict(pods[0].metadata.annotations)
    refused = pods[3].metadata.uid

    def go_on() -> None:
        for uid in list(d.flight):
            d.answer(uid, BindOutcome.REJECTED if uid == refused else BindOutcome.BOUND)

    d.apply(*pods)
    d.step()
    go_on()
    pods[0].metadata.deletion_timestamp = timestamp(d.now + 600)
    d.apply(pods[0], stead)
    for _ in range(6):
        d.step(0.25)
        go_on()
    rebuilt = again([*pods[1:], stead, pods[0]])
    rebuilt.step()
    workload, _ = rebuilt.engine.workloads.of_pod(refused) or (None, None)
    assert workload is not None and not workload.complete, "nor does a successor take it for complete"
    for _ in range(34):
        d.step(0.25)
        go_on()
    workload, _ = d.engine.workloads.of_pod(refused) or (None, None)
    assert workload is not None and not workload.complete
    assert set(d.evicted()) == {pods[1].metadata.name, pods[2].metadata.name, stead.metadata.name}


def test_a_successor_takes_a_gang_for_complete_of_which_all_ran_though_one_is_being_deleted() -> None:
    pods = gang(4)
    first = Driver(fabric({"s1/l1": 4}))
    first.run(*pods)
    pods[3].metadata.deletion_timestamp = timestamp(600)
    second = again(pods)
    second.step()
    assert next(iter(second.engine.workloads)).complete


def test_a_gang_of_which_a_pod_is_deleted_while_all_binds_are_on_their_way_does_not_stay_half() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    del d.flight[pods[3].metadata.uid]
    d.delete(pods[3])
    d.settle(0.1)
    d.step(ROLL_BACK_AFTER_SECONDS - 1)
    assert d.evicted() == []
    d.step(1.1)
    assert sorted(d.evicted()) == ["g-0", "g-1", "g-2"]


@pytest.mark.parametrize("why", ["no room", "too few pods", "refused"])
def test_a_gang_whose_rest_was_unschedulable_before_its_first_bind_was_answered_does_not_stay_half(why: str) -> None:
    """Pods are deleted and created again while a slow API server has yet to answer the binds of the others."""
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    d.apply(*pods)
    d.step()
    lost = pods[2:] if why == "too few pods" else pods[3:]
    for pod in lost:
        del d.flight[pod.metadata.uid]
    d.delete(*lost)
    if why == "no room":
        d.apply(other := make_pod("other", gpus=8, priority=10))
        d.step()
        d.answer(other.metadata.uid)
    said = {"gang-name": "g", "gang-size": "4", **({"rank": "5"} if why == "refused" else {})}
    d.apply(make_pod("g-4", gpus=8, annotations=said, created=4))
    d.step()
    for _ in range(2):
        d.step(4)
    for uid in list(d.flight):
        d.answer(uid)
    d.settle(0.1)
    d.step(ROLL_BACK_AFTER_SECONDS - 1)
    assert d.evicted() == []
    d.step(1.1)
    assert len(d.evicted()) == 4 - len(lost)


def test_a_gang_of_which_an_earlier_process_bound_only_pods_that_are_gone_is_rolled_back() -> None:
    pods = gang(4)
    Driver(fabric({"s1/l1": 4})).run(*pods)
    d = again(pods)
    d.step()
    stead = gang(8)[4:]
    for fresh, pod in zip(stead, pods, strict=True):
        fresh.metadata.annotations |= {"topology.scheduler/gang-size": "4"}
        d.apply(fresh)
        d.delete(pod)
    d.step()
    assert len(d.flight) == 4
    del d.flight[stead[3].metadata.uid]
    d.delete(stead[3])
    d.settle(0.1)
    d.step(SOON)
    assert sorted(d.evicted()) == ["g-4", "g-5", "g-6"]


def test_members_that_succeeded_do_not_count_again_where_the_size_of_their_job_fell_with_them() -> None:
    """Two of the three that were bound succeed: the Job then has three pods left, of which one runs."""
    d = Driver(fabric({"s1/l1": 5}))
    by, index = controlled_by("Job", "g"), "batch.kubernetes.io/job-completion-index"
    d.own(job_owner(make_job("g", parallelism=5, completions=5, indexed=True)))
    pods = [make_pod(f"g-{n}", gpus=8, owner=by, labels={index: str(n)}, created=n) for n in range(5)]
    d.apply(*pods)
    d.step()
    for pod in pods:
        outcome = BindOutcome.BOUND if pod in pods[:3] else BindOutcome.WITHDRAWN
        d.answer(pod.metadata.uid, outcome, "admission refuses it")
    d.step(0.5)
    for pod in pods[:2]:
        d.finish(pod)
    d.own(job_owner(make_job("g", parallelism=5, completions=5, indexed=True, succeeded=2)))
    for _ in range(100):
        for uid in list(d.flight):
            d.answer(uid, BindOutcome.WITHDRAWN, "admission refuses it")
        d.step(0.1)
    assert not [said for said in d.said if isinstance(said, MarkComplete)]
    assert d.evicted() == ["g-2"]


@pytest.mark.parametrize("stead_first", [True, False])
def test_a_replacement_that_is_listed_before_the_others_does_not_part_a_gang(stead_first: bool) -> None:
    first = Driver(fabric({"s1/l1": 8}))
    pods, stead = gang(4), gang(5)[4]
    first.run(*pods)
    pods[0].metadata.deletion_timestamp, pods[0].metadata.deletion_grace_period_seconds = timestamp(660), 600
    stead.metadata.annotations |= {"topology.scheduler/gang-size": "4"}
    d = successor(*(([pods[0], stead], pods[1:]) if stead_first else (pods, [stead])))
    assert d.evicted() == []


def successor(existing: list[Pod], restarted: list[Pod]) -> Driver:
    """Return a successor that finds all this, and no room for the rest of what was restarted; it takes its time."""
    d = Driver(fabric({"s1/l1": 8}))
    taken = {pod.spec.node_name for pod in (*existing, *restarted)}
    free = sorted({f"s1-l1-{number}" for number in range(1, 9)} - taken)
    d.apply(*(make_pod(f"o-{node}", gpus=8, scheduler="other", node=node) for node in free))
    d.apply(*existing, *restarted)
    for _ in range(10):
        d.step(1)
    return d


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("old_first", [True, False])
def test_pods_that_terminate_do_not_make_the_gang_complete_that_takes_their_place(
    marked: bool, old_first: bool
) -> None:
    """A complete gang is restarted, and the leader ends while its new pods are being bound."""
    first = Driver(fabric({"s1/l1": 8}))
    old, new = gang(4), gang(8)[4:]
    first.run(*old)
    if marked:
        first.write_conditions()
    for pod in old:
        pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = timestamp(603), 600
    first.apply(*old)
    for pod in new:
        pod.metadata.annotations |= {"topology.scheduler/gang-size": "4"}
    half(first, new)
    d = successor(*((old, new) if old_first else (new, old)))
    assert sorted(d.evicted()) == sorted(pod.metadata.name for pod in new if pod.spec.node_name)


def test_a_gang_stays_complete_of_which_all_marked_members_are_being_deleted() -> None:
    """The leader ends before it has marked others."""
    first = Driver(fabric({"s1/l1": 8}))
    pods = gang(5)
    first.run(*pods)
    first.write_conditions()
    marked = [pod for pod in pods if pod.status.conditions]
    assert len(marked) == 3
    for pod in marked:
        pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = timestamp(660), 600
    stead = gang(8)[5:]
    for pod in stead:
        pod.metadata.annotations |= {"topology.scheduler/gang-size": "5"}
    assert successor(pods, stead).evicted() == []


@pytest.mark.parametrize("earlier", [True, False])
def test_members_that_succeeded_do_not_make_a_later_gang_of_their_name_complete(earlier: bool) -> None:
    first = Driver(fabric({"s1/l1": 8}))
    pods = gang(4)
    half(first, pods)
    done = next(pod for pod in pods if pod.spec.node_name)
    if earlier:
        done = make_pod("done", gpus=8, created=-90, annotations=done.metadata.annotations, node="s1-l1-8")
    done.status.phase = "Succeeded"
    ended = Terminated(finished_at=timestamp(-60 if earlier else 60))
    done.status.container_statuses = [ContainerStatus(state=ContainerState(terminated=ended))]
    d = successor([done], [pod for pod in pods if pod is not done])
    assert len(d.evicted()) == (2 if earlier else 0)


def test_members_that_are_deleted_at_once_do_not_mark_one_another() -> None:
    """They are deleted from the last to the first, and each was chosen in place of the one deleted before."""
    d = Driver(fabric({"s1/l1": 8}))
    pods = gang(64, gpus=1)
    d.run(*pods)
    d.forget()
    for pod in reversed(pods[8:]):
        pod.metadata.deletion_timestamp = timestamp(600)
        d.apply(pod)
    d.step()
    marked = {said.pod.name for said in d.said if isinstance(said, MarkComplete)}
    assert 0 < len(marked) <= 3 and marked <= {pod.metadata.name for pod in pods[:8]}


@pytest.mark.parametrize("deleted", [True, False])
def test_a_complete_gang_that_is_lost_while_one_replacement_is_being_bound_does_not_stay_half(deleted: bool) -> None:
    d = Driver(fabric({"s1/l1": 6}))
    pods = gang(4)
    d.run(*pods)
    d.delete(pods[0])
    stead = gang(8)[4:]
    for pod in stead:
        pod.metadata.annotations |= {"topology.scheduler/gang-size": "4"}
    d.apply(stead[0])
    d.step()
    assert list(d.flight) == [stead[0].metadata.uid]
    for pod in pods[1:]:
        pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = timestamp(630), 600
    d.apply(*pods[1:])
    if deleted:
        d.delete(*pods[1:])
    seat = d.flight[stead[0].metadata.uid].node
    nodes = {f"s1-l1-{n}" for n in range(1, 7)} - {seat, *(p.spec.node_name for p in d.pods.values())}
    d.apply(*(make_pod(f"o-{node}", gpus=8, scheduler="other", node=node) for node in sorted(nodes)))
    d.apply(*stead[1:])
    d.settle(0.1)
    assert d.where(*stead).keys() == {"g-4"}
    d.step(SOON)
    assert d.evicted() == ["g-4"]


def test_a_member_that_is_gone_before_the_last_is_bound_does_not_count() -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    rest = half(d, pods, 1)
    d.delete(next(pod for pod in pods if pod.metadata.uid not in rest))
    d.settle(0.1)
    assert len(d.where(*pods)) == 4
    d.step(SOON)
    assert len(d.evicted()) == 3


def test_a_gang_of_which_nothing_runs_any_more_is_incomplete_once_the_last_bind_failed() -> None:
    d = Driver(fabric({"s1/l1": 2}))
    first, lost = gang(2)
    d.run(first, lost)
    d.delete(lost)
    annotations = {
        key: text for key, text in lost.metadata.annotations.items() if key.endswith(("gang-name", "gang-size"))
    }
    stead = make_pod("g-2", gpus=8, annotations=annotations, created=5)
    d.apply(stead)
    d.step(1)
    assert stead.metadata.uid in d.flight
    d.finish(first)
    d.answer(stead.metadata.uid, BindOutcome.REJECTED, "no")
    workload, _ = d.engine.workloads.of_pod(stead.metadata.uid) or (None, None)
    assert workload is not None
    assert not workload.complete


@pytest.mark.parametrize("replaced", [True, False])
def test_a_member_that_is_being_deleted_before_the_last_is_bound_does_not_count(replaced: bool) -> None:
    d = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    (last,) = half(d, pods, bound=3)
    d.step(2)
    lost = next(pod for pod in pods if pod.metadata.uid != last)
    lost.metadata.deletion_timestamp, lost.metadata.deletion_grace_period_seconds = timestamp(d.now + 600), 600
    d.apply(lost)
    if replaced:
        stead = gang(5)[4]
        stead.metadata.annotations["topology.scheduler/gang-size"] = "4"
        d.apply(stead)
    d.step(1)
    d.answer(last)
    for _ in range(10):
        d.step(1)
    assert not any(isinstance(said, MarkComplete) for said in d.said)
    assert sorted(d.evicted()) == sorted(pod.metadata.name for pod in pods if pod is not lost)


def test_a_successor_does_not_take_a_gang_for_complete_whose_last_bind_landed_during_its_rollback() -> None:
    first = Driver(fabric({"s1/l1": 4}))
    pods = gang(4)
    (late,) = half(first, pods, bound=3)
    first.engine.bind_hangs(late, first.now)
    for pod in pods:
        if pod.spec.node_name:
            pod.status.conditions = [PodCondition("PodScheduled", "True", last_transition_time=timestamp(0))]
    first.step(SOON)
    assert len(first.evicted()) == 3
    bound = [pod for pod in pods if pod.metadata.uid != late]
    for pod in bound[:2]:
        pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = timestamp(6 + 600), 600
    first.answer(late)
    last = next(pod for pod in pods if pod.metadata.uid == late)
    last.status.conditions = [PodCondition("PodScheduled", "True", last_transition_time=timestamp(8))]
    steads = gang(6)[4:]
    for pod in steads:
        pod.metadata.annotations["topology.scheduler/gang-size"] = "4"
    d = successor(pods, steads)
    assert sorted(d.evicted()) == sorted([bound[2].metadata.name, last.metadata.name])


@pytest.mark.parametrize("job", [True, False])
def test_a_member_that_is_being_bound_while_the_others_succeed_is_not_evicted(job: bool) -> None:
    """Its gang ran complete, and the others have done their part."""
    d = Driver(fabric({"s1/l1": 5}))
    said = {"gang-name": "g", "gang-size": "4"}
    if job:
        by, index = controlled_by("Job", "g"), "batch.kubernetes.io/job-completion-index"
        d.own(job_owner(make_job("g", parallelism=4, completions=4, indexed=True)))
        pods = [make_pod(f"g-{n}", gpus=8, owner=by, labels={index: str(n)}, created=n) for n in range(4)]
        stead = make_pod("stead", gpus=8, owner=by, labels={index: "3"}, created=4)
    else:
        pods, stead = gang(4), make_pod("stead", gpus=8, annotations=said, created=4)
    d.run(*pods)
    d.delete(pods[3])
    d.apply(stead)
    d.step()
    assert list(d.flight) == [stead.metadata.uid]
    for pod in pods[:3]:
        d.finish(pod)
    d.answer(stead.metadata.uid)
    d.step()
    d.step(SOON)
    assert d.evicted() == []


class Members(dict[str, Member]):
    """Counts how often all members are gone through."""

    walks = 0

    def values(self) -> Any:
        self.walks += 1
        return super().values()


@pytest.mark.parametrize("leaving", ["the marked member", "all"])
def test_members_that_are_being_deleted_do_not_make_each_change_of_a_gang_expensive(leaving: str) -> None:
    """A tenant may have thousands of them, with finalizers, and the condition on one."""
    d = Driver(fabric({"s1/l1": 8}))
    size = "1" if leaving == "all" else "1000"
    said = {"gang-id": "default/g", "gang-minimum": size, "gang-size": size, "gang-name": "g", "rank": "0"}
    pods = [
        make_pod(f"b{n}", cpu="1m", memory="1", node=f"s1-l1-{n % 8 + 1}", phase="Running", annotations=said)
        for n in range(60)
    ]
    pods[0].status.conditions = [PodCondition(GANG_COMPLETE, "True")]
    for pod in pods if leaving == "all" else pods[:1]:
        pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds = timestamp(-600), 600
    d.apply(pods[0])
    workload, _ = d.engine.workloads.of_pod(pods[0].metadata.uid) or (None, None)
    assert workload is not None
    members = workload.members = Members(workload.members)
    for pod in pods[1:]:
        d.engine.arrivals.applied([pod], d.now)
    walks = members.walks
    for pod in pods:
        d.engine.arrivals.applied([pod], d.now)
    assert not workload.complete
    assert members.walks - walks <= 3


@pytest.mark.parametrize("marked", [True, False])
@pytest.mark.parametrize("lost", ["leaving", "gone"])
def test_a_gang_that_an_earlier_process_completed_while_pods_were_listed_again_is_not_rolled_back(
    marked: bool, lost: str
) -> None:
    """The successor saw its pods pending; its second list shows them bound, and one is lost."""
    pods = gang(4)
    before = copies(pods)
    first = Driver(fabric({"s1/l1": 4}))
    first.run(*pods)
    if marked:
        first.write_conditions()
    d = Driver(fabric({"s1/l1": 4}))
    d.apply(*before)
    if lost == "leaving":
        pods[0].metadata.deletion_timestamp, pods[0].metadata.deletion_grace_period_seconds = timestamp(660), 600
    d.apply(*(pods if lost == "leaving" else pods[1:]))
    if lost == "gone":
        d.delete(before[0])
    for _ in range(10):
        d.step(1)
    never_seen_complete = lost == "gone" and not marked
    assert len(d.evicted()) == (3 if never_seen_complete else 0)


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_a_gang_whose_members_were_marked_after_they_had_been_listed_as_bound_is_not_rolled_back(bound: int) -> None:
    """An earlier process completes it between two lists of its successor; then its last member is lost."""
    pods = gang(4)
    pending = copies(pods)
    first = Driver(fabric({"s1/l1": 4}))
    first.run(*pods)
    unmarked = copies(pods)
    first.write_conditions()
    d = Driver(fabric({"s1/l1": 4}))
    d.apply(*unmarked[:bound], *pending[bound:])
    d.apply(*pods[:3])
    d.delete(pending[3])
    for _ in range(10):
        d.step(1)
    assert d.evicted() == []


@pytest.mark.parametrize(
    ("failed", "parallelism", "stays"), [("0,1", 4, True), ("", 2, True), ("0", 4, False), ("", 4, False)]
)
def test_a_gang_without_pending_members_is_complete_with_what_its_job_still_makes(
    failed: str, parallelism: int, stays: bool
) -> None:
    """Indexes that failed for good get no pods, nor do those beyond a lower parallelism."""
    d = Driver(fabric({"s1/l1": 4}))

    def job(parallelism: int, failed: str) -> None:
        d.own(job_owner(make_job("train", parallelism=parallelism, completions=4, indexed=True, failed_indexes=failed)))

    job(4, "")
    pods = [make_pod(f"train-{n}", gpus=8, owner=controlled_by("Job", "train"), created=n) for n in range(4)]
    rest = half(d, pods)
    d.delete(*(pod for pod in pods if pod.metadata.uid in rest))
    d.step(1)
    job(parallelism, failed)
    for _ in range(8):
        d.step(1)
    assert bool(d.evicted()) != stays
    workload = next(iter(d.engine.workloads))
    assert workload.complete == stays
