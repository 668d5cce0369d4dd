"""Pods for which others were evicted, and which end soon after they were bound: their namespace soon evicts none."""

from collections.abc import Callable

import pytest

from tests.helpers import make_node
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, victims, with_priority
from topo_scheduler.api.objects import Pod

NODES = [f"s1-l1-{number}" for number in range(1, 5)]


def members(number: int, size: int = 4) -> list[Pod]:
    pods = with_priority(gang(size, name=f"g{number}"), 10)
    for pod in pods:
        pod.metadata.namespace = "storm"
    return pods


def bind_some(d: Driver, pods: list[Pod], count: int) -> None:
    """The binds of some pods are answered, and the watch reports them; those of the others are on their way."""
    d.step(1)
    for pod in pods[:count]:
        pod.spec.node_name = d.flight[pod.metadata.uid].node
        d.answer(pod.metadata.uid)
        d.apply(pod)
    d.flight.clear()


def are_terminated(d: Driver, pods: list[Pod]) -> None:
    for pod in pods:
        pod.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
        d.apply(pod)


def are_gone_at_once(d: Driver, pods: list[Pod]) -> None:
    d.delete(*pods)


def end_by_themselves(d: Driver, pods: list[Pod]) -> None:
    for pod in pods:
        if pod.spec.node_name:
            d.finish(pod)


def lose_their_nodes(d: Driver, pods: list[Pod]) -> None:
    d.nodes(*(make_node(node, "s1/l1", unschedulable=True) for node in NODES))
    are_terminated(d, pods)


def rounds_with_evictions(end: Callable[[Driver, list[Pod]], None], *, bound: int = 4, after: float = 1) -> int:
    """Every 5 seconds a gang is bound, if it may evict others, and ends; return how often it did in 2 minutes."""
    d = fabric_driver({"s1/l1": 4})
    number = evicting = 0
    while d.now < 120:
        d.nodes(*(make_node(node, "s1/l1") for node in NODES))
        running = [run_pod(d, f"low-{number}-{node}", node) for node in NODES]
        pods = members(number)
        d.forget()
        d.apply(*pods)
        d.step(1)
        if evicted := victims(d):
            evicting += 1
            assert len(evicted) == 4
            d.evict(*evicted)
            bind_some(d, pods, bound)
            d.step(after)
            end(d, pods)
            d.step(1)
        d.delete(*pods, *(pod for pod in running if pod.metadata.uid in d.pods))
        d.step(2)
        number += 1
    return evicting


@pytest.mark.parametrize("bound", [2, 4])
@pytest.mark.parametrize("end", [are_terminated, are_gone_at_once])
def test_gangs_that_end_as_soon_as_they_are_bound_have_others_evicted_a_few_times(
    end: Callable[[Driver, list[Pod]], None], bound: int
) -> None:
    """Half of the room is used when 2 of 4 are bound."""
    assert rounds_with_evictions(end, bound=bound) <= 6, "after 0, 0, 10, 20, 40 and 80 seconds"


@pytest.mark.parametrize("end", [end_by_themselves, lose_their_nodes])
def test_pods_that_end_by_themselves_or_lose_their_nodes_pause_their_namespace_from_the_fifth_time_on(
    end: Callable[[Driver, list[Pod]], None],
) -> None:
    assert 7 <= rounds_with_evictions(end) <= 9, "four times freely, then after 10, 20, 40 and 60 seconds"


def test_gangs_that_run_for_some_time_have_others_evicted_each_time() -> None:
    assert rounds_with_evictions(are_terminated, after=10) >= 8


def one_ends(d: Driver, pods: list[Pod]) -> None:
    are_terminated(d, pods[:1])


def preempted(d: Driver, pods: list[Pod]) -> None:
    """A gang of another namespace and higher priority has them evicted."""
    above = with_priority(gang(4, name=f"above-{d.now}"), 100)
    d.forget()
    d.apply(*above)
    d.step()
    assert victims(d) == pods
    d.evict(*pods)
    d.delete(*above)


def bound_after_evictions(d: Driver, number: int) -> list[Pod]:
    """Evict running pods for a gang, and bind it; return its pods."""
    running = [run_pod(d, f"low-{number}-{node}", node) for node in NODES]
    pods = members(number)
    d.forget()
    d.apply(*pods)
    d.step(1)
    assert victims(d) == running
    d.evict(*running)
    bind_some(d, pods, 4)
    return pods


@pytest.mark.parametrize("end", [one_ends, preempted])
def test_what_is_no_failure_of_their_namespace(end: Callable[[Driver, list[Pod]], None]) -> None:
    d = fabric_driver({"s1/l1": 4})
    for number in range(3):
        pods = bound_after_evictions(d, number)
        end(d, pods)
        d.step(1)
        d.step(10)
        d.delete(*pods)
        d.step(1)
    assert not d.engine.preempting.vain_evictions.until("storm")


def test_a_failure_is_taken_back_once_others_of_the_gang_use_the_room() -> None:
    """Its controller makes them again, while the room is free."""
    d = fabric_driver({"s1/l1": 4})
    for number in range(3):
        pods = bound_after_evictions(d, number)
        d.delete(*pods[:3])
        again = members(number)[:3]
        for pod in again:
            pod.metadata.uid = pod.metadata.name = f"{pod.metadata.name}-again-{number}"
        d.apply(*again)
        bind_some(d, again, 3)
        d.step(10)
        d.delete(pods[3], *again)
        d.step(1)
    assert not d.engine.preempting.vain_evictions.until("storm")
