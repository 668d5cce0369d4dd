"""Gangs of thousands of bound pods: what happens to one of them costs the same however many others there are.

A tenant can put pods on nodes itself and write on them what a Binding of the scheduler writes.
"""

from collections.abc import Iterator, ValuesView

import pytest

from tests.helpers import make_pod, timestamp
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import MarkComplete
from topo_scheduler.state.pods.workloads import Member, Workload

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
