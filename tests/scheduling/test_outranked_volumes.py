"""Pods that wait for their volumes hold room in which nothing runs: they give it up for pods of higher priority."""

import pytest

from tests.helpers import make_pod
from tests.scheduling.driver import fabric, gang, held
from tests.scheduling.storage import DELAYED, StorageDriver, claim, using, volume, zoned
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import Nominate

pytestmark = pytest.mark.unrecorded


def waiting(d: StorageDriver, count: int, *, gangs: bool = False, beside: int = 0) -> list[Pod]:
    """Pods of 8 GPUs whose volumes are chosen and never made, as one gang or each by itself, ``beside`` GPUs in use."""
    d.engine.budgets_known()
    pods = [using(f"c{n}", name=f"low-{n}", gpus=8, gang=count if gangs else 0, created=n) for n in range(count)]
    d.tell(*(claim(f"c{n}") for n in range(count)))
    d.apply(*pods)
    d.step()
    for pod in pods:
        d.carry_out(pod)
    d.step()
    assert sum(held(d, name) for name in d.engine.world.nodes.row_of) == 8 * count + beside
    return pods


def run(d: StorageDriver, *pods: Pod) -> None:
    """Pods appear; what they outrank gives up its room in the next step, which is due at once."""
    d.run(*pods)
    d.settle()


def high(name: str = "high", *, priority: int = 5, gpus: int = 8) -> Pod:
    return make_pod(name, gpus=gpus, priority=priority, created=10)


def test_a_pod_of_higher_priority_gets_the_room_of_one_that_waits_for_its_volume() -> None:
    d = StorageDriver(zoned("a"))
    (low,) = waiting(d, 1)
    pod = high()
    run(d, pod)
    assert pod.spec.node_name == "n1"
    assert d.preempted() == [], "it is not bound, so it stays"
    (failed,) = d.told(low, Reason.BIND_FAILED)
    assert failed == "Binding to n1 failed: binding volumes: a pod of higher priority needs the room"
    d.delete(pod)
    d.provision()
    d.settle(60.0)
    assert low.spec.node_name == "n1"


def test_one_of_equal_priority_does_not() -> None:
    d = StorageDriver(zoned("a"))
    (low,) = waiting(d, 1)
    pod = high(priority=0)
    run(d, pod)
    assert not pod.spec.node_name
    assert not d.told(low, Reason.BIND_FAILED)


def test_only_as_many_as_are_needed_give_up_their_room() -> None:
    d = StorageDriver(zoned("a", "a", "a"))
    pods = waiting(d, 3)
    urgent = high()
    run(d, urgent)
    assert urgent.spec.node_name
    assert sum(bool(d.told(pod, Reason.BIND_FAILED)) for pod in pods) == 1


def test_nothing_is_given_up_for_a_gang_that_would_have_no_room_all_the_same() -> None:
    d = StorageDriver(fabric({"s1/l1": 3}))
    pods = waiting(d, 2)
    run(d, make_pod("runs", gpus=8, node="s1-l1-3", priority=9))
    members = gang(3)
    for member in members:
        member.spec.priority = 5
    run(d, *members)
    d.step(60.0)
    assert not any(d.told(pod, Reason.BIND_FAILED) for pod in pods)


def test_a_gang_that_waits_gives_up_all_its_room() -> None:
    d = StorageDriver(fabric({"s1/l1": 2}))
    pods = waiting(d, 2, gangs=True)
    pod = high()
    run(d, pod)
    assert pod.spec.node_name
    assert all(d.told(member, Reason.BIND_FAILED) for member in pods)
    assert sum(held(d, name) for name in d.engine.world.nodes.row_of) == 8


def test_running_pods_and_waiting_ones_make_room_together() -> None:
    d = StorageDriver(fabric({"s1/l1": 2}))
    d.engine.budgets_known()
    runs = make_pod("runs", gpus=8, node="s1-l1-1")
    run(d, runs)
    (low,) = waiting(d, 1, beside=8)
    members = gang(2)
    for member in members:
        member.spec.priority = 5
    run(d, *members)
    assert d.preempted() == ["runs"]
    assert d.told(low, Reason.BIND_FAILED)
    d.evict(runs)
    d.settle()
    assert len(d.where(*members)) == 2


def test_a_pod_whose_volume_is_there_is_a_victim_like_any_other() -> None:
    d = StorageDriver(zoned("a"))
    (low,) = waiting(d, 1)
    d.bind_claim("c0", volume("made", DELAYED))
    d.settle()
    assert low.spec.node_name == "n1"
    run(d, high())
    assert d.preempted() == ["low-0"]


def test_volumes_that_are_bound_as_their_room_is_given_up_come_too_late() -> None:
    d = StorageDriver(zoned("a"))
    (low,) = waiting(d, 1)
    d.apply(high())
    said = d.engine.step(d.now, d.clock)
    assert any(isinstance(instruction, Nominate) for instruction in said), "the next step takes the room"
    d.bind_claim("c0", volume("made", DELAYED))
    d.step()
    assert low.metadata.uid not in d.flight, "a bind that failed is not written as well"
    assert len(d.told(low, Reason.BIND_FAILED)) == 1
