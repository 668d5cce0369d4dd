"""Pods for which others were evicted, and which end soon after they were bound: their namespace soon evicts none."""

from collections.abc import Callable

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, victims, with_priority
from topo_scheduler.api.objects import ContainerPort, Pod, PodCondition

PORT = 7777
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


def preempted_by_another_scheduler(d: Driver, pods: list[Pod]) -> None:
    for pod in pods:  # it writes the condition first
        pod.status.conditions = [PodCondition("DisruptionTarget", "True", "PreemptionByScheduler", "default-scheduler")]
    are_terminated(d, pods)


def evict_for_a_small_pod(d: Driver, namespace: str) -> None:
    """A pod of higher priority, which lives for a while, needs nothing but the host port of a pod."""
    above = make_pod(f"above-{d.now}", namespace=namespace, cpu="1m", priority=100)
    above.spec.containers[0].ports = [ContainerPort(PORT)]
    d.forget()
    d.apply(above)
    d.step()
    assert victims(d)
    d.evict(*victims(d))
    for _ in range(12):
        d.settle(1)
    assert d.where(above)
    d.delete(above)


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


@pytest.mark.parametrize("end", [one_ends, preempted, preempted_by_another_scheduler])
def test_what_is_no_failure_of_their_namespace(end: Callable[[Driver, list[Pod]], None]) -> None:
    d = fabric_driver({"s1/l1": 4})
    for number in range(3):
        pods = bound_after_evictions(d, number)
        end(d, pods)
        d.step(1)
        d.step(10)
        d.delete(*pods)
        d.step(1)
    assert d.engine.preempting.vain_evictions.until("storm") < d.now


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


@pytest.mark.parametrize(("namespace", "longest"), [("storm", 600), ("accomplice", 60)])
def test_pods_that_are_evicted_at_once_for_small_ones_used_no_room(namespace: str, longest: int) -> None:
    d = fabric_driver({"s1/l1": 1})
    rounds = 0
    while d.now < 600:
        low = run_pod(d, f"low-{rounds}", "s1-l1-1")
        pod = make_pod(f"pod-{rounds}", namespace="storm", gpus=8, priority=10)
        pod.spec.containers[0].ports = [ContainerPort(PORT)]
        d.forget()
        d.apply(pod)
        d.step(1)
        if victims(d):
            rounds += 1
            d.evict(low)
            bind_some(d, [pod], 1)
            evict_for_a_small_pod(d, namespace)
            assert d.engine.preempting.vain_evictions.until("storm") <= d.now + longest
        d.delete(*(left for left in (low, pod) if left.metadata.uid in d.pods))
        d.step(1)
    assert 3 <= rounds <= 20


def test_a_failure_that_was_taken_back_counts_again_once_these_pods_end_too() -> None:
    """A member that fits nowhere keeps the gang alive, whose other pods come and go."""
    d = fabric_driver({"s1/l1": 4})
    rounds = 0
    annotations = {"gang-name": "g", "gang-size": "4"}
    d.apply(make_pod("kept", namespace="storm", gpus=99, priority=10, annotations=annotations, created=10**6))

    def gang_members() -> list[Pod]:
        names = [f"{d.now}-{member}" for member in range(4)]
        return [make_pod(name, namespace="storm", gpus=8, priority=10, annotations=annotations) for name in names]

    while d.now < 120:
        running = [run_pod(d, f"low-{d.now}-{node}", node) for node in NODES]
        pods = gang_members()
        d.forget()
        d.apply(*pods)
        d.step(1)
        if victims(d):
            rounds += 1
            d.evict(*running)
            for _ in range(2):
                bind_some(d, pods, 4)
                d.step(0.1)
                d.delete(*pods)
                pods = gang_members()
                d.apply(*pods)
        d.delete(*pods, *(pod for pod in running if pod.metadata.uid in d.pods))
        d.step(2)
    assert 2 <= rounds <= 6
