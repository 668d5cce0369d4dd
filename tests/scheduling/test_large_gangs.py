"""Gangs of thousands of pods: what happens to one of them costs the same however many others there are.

A tenant can put pods on nodes itself and write on them what a Binding of the scheduler writes.
"""

from collections.abc import Iterator, ValuesView
from random import Random

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric, gang
from tests.scheduling.function_calls import calls_of, of_package
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import MarkComplete
from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.scheduling.queueing.requeue import MANY_MEMBERS, PAUSE_SECONDS_PER_MEMBER
from topo_scheduler.state.pods.workloads import MANY_PENDING, Member, Stage, Workload, member_order

MEMBERS = 300


class Counted(dict[str, Member]):
    """Members that count how often a loop reads one of them."""

    looks = 0

    def values(self) -> ValuesView[Member]:  # type: ignore[override]
        return _Values(self)


class _Values(ValuesView[Member]):
    def __init__(self, members: Counted) -> None:
        super().__init__(members)
        self._members = members

    def __iter__(self) -> Iterator[Member]:
        for uid in self._members:
            self._members.looks += 1
            yield self._members[uid]

    def __reversed__(self) -> Iterator[Member]:
        for uid in reversed(dict(self._members)):
            self._members.looks += 1
            yield self._members[uid]


def member(number: int, minimum: int) -> Pod:
    pod = make_pod(f"x-{number}", node=f"s1-l1-{number % 8 + 1}", phase="Running")
    names = {"gang-id": "default/forged", "gang-minimum": str(minimum), "rank": str(number)}
    pod.metadata.annotations |= {f"topology.scheduler/{name}": text for name, text in names.items()}
    return pod


def forged(minimum: int) -> tuple[Driver, list[Pod], Workload]:
    d = Driver(fabric({"s1/l1": 8}))
    pods = [member(number, minimum) for number in range(MEMBERS)]
    d.apply(*pods)
    d.step()
    (workload,) = d.engine.workloads
    return d, pods, workload


@pytest.mark.parametrize("minimum", [2, 100_000])
def test_an_update_a_new_member_and_a_lost_one_look_at_few_others(minimum: int) -> None:
    d, pods, workload = forged(minimum)
    assert workload.complete is (minimum == 2)
    workload.members = Counted(workload.members)
    for pod in pods[:100]:
        d.engine.pods_applied([pod], d.now)
    for number in range(MEMBERS, MEMBERS + 50):
        d.engine.pods_applied([member(number, minimum)], d.now)
    for pod in pods[100:150]:
        d.engine.pod_deleted(pod.metadata.uid, d.now)
    assert workload.members.looks <= 600, "of 200 changes"


def test_the_end_of_a_whole_gang_looks_at_each_member_a_few_times() -> None:
    d, pods, workload = forged(2)
    workload.members = Counted(workload.members)
    for pod in reversed(pods):
        pod.metadata.deletion_timestamp = timestamp(60)
        d.engine.pods_applied([pod], d.now)
        d.engine.pod_deleted(pod.metadata.uid, d.now)
    assert workload.members.looks <= 5 * MEMBERS
    assert not list(d.engine.workloads)


def large_gang(size: int) -> tuple[Driver, list[Pod]]:
    """A pending gang without room, and all its pods."""
    d = Driver(fabric({"s1/l1": 8}))
    pods = gang(size)
    d.apply(*pods)
    d.step()
    return d, pods


@pytest.mark.unrecorded
def test_a_member_that_comes_and_goes_costs_little_however_many_others_are_pending() -> None:
    d, pods = large_gang(MANY_MEMBERS + 1)
    d.step(10)

    def come_and_go() -> None:
        for _ in range(20):
            d.delete(pods[-1])
            d.step(0.001)
            d.apply(pods[-1])
            d.step(0.001)

    calls = of_package(calls_of(come_and_go))
    assert calls.total() <= 60 * MANY_MEMBERS, calls.most_common(20)  # 20 attempts would take 720


def test_a_large_gang_that_changes_again_is_tried_when_its_pause_is_over() -> None:
    d, pods = large_gang(MANY_MEMBERS + 1)
    d.delete(pods[-1])
    d.step(10)
    assert d.engine.queue.place("default/g") is Place.WAITING
    d.apply(pods[-1])
    d.step()
    assert d.engine.queue.place("default/g") is Place.WAITING
    pause = (MANY_MEMBERS + 1) * PAUSE_SECONDS_PER_MEMBER
    due = d.engine.next_due()
    assert due is not None and due <= d.now + pause
    d.step(pause)
    assert d.engine.queue.place("default/g") is Place.UNSCHEDULABLE


def test_the_order_of_many_pending_members_stays_that_of_a_sort() -> None:
    chance = Random(1)
    d, pods = large_gang(2 * MANY_PENDING)
    (workload,) = d.engine.workloads
    for _ in range(200):
        pod = chance.choice(pods)
        if pod.metadata.uid in workload.members:
            d.delete(pod)
        else:
            pod.metadata.creation_timestamp = timestamp(chance.randrange(20))
            d.apply(pod)
        pending = workload.at(Stage.PENDING)
        assert pending == sorted(workload.members.values(), key=member_order)
        assert workload.pending_since == min(member.enqueued for member in pending)
        assert workload.created == min(member.created for member in pending)


def test_three_members_bear_the_mark_as_long_as_three_stay() -> None:
    d, pods, workload = forged(2)
    for number, pod in enumerate(pods):
        d.engine.pod_deleted(pod.metadata.uid, d.now)
        d.step()  # marks that are missing are chosen once a step
        marked = [member for member in workload.members.values() if member.marked]
        assert len(marked) >= min(3, MEMBERS - number - 1)
    d.apply(*pods[:5])
    marks = [instruction for instruction in d.step() if isinstance(instruction, MarkComplete)]
    assert len({mark.pod.uid for mark in marks}) >= 3
