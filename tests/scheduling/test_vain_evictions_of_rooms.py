"""Evictions in vain are judged by the room that was made, whatever becomes of the workload."""

from collections.abc import Callable

import pytest

from tests.helpers import controlled_by, make_pod
from tests.scheduling.driver import Driver, fabric_driver
from tests.scheduling.running_pods import refill, run_pod
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.preemption.vain_evictions import LONGEST_SHARED_PAUSE_SECONDS

NODES = [f"s1-l1-{number}" for number in range(1, 9)]
GANG, SIZE = "topology.scheduler/gang-name", "topology.scheduler/gang-size"
MOST_WAVES = 7
"""Waves of evictions in 200 seconds with pauses of 0, 10, 20, 40, 80 and 160 seconds, and some time between them."""


def member(d: Driver, name: str, gang: str, gpus: int, *, age: float = 0.0, priority: int = 10) -> Pod:
    annotations = {GANG: gang, SIZE: str(len(NODES))} if gang else {}
    pod = make_pod(name, gpus=gpus, namespace="evil", priority=priority, created=d.now - age, annotations=annotations)
    d.apply(pod)
    return pod


def tiny_pods_overtake(d: Driver, pods: list[Pod], number: int) -> list[Pod]:
    """As many older pods of the gang, without GPUs, get a place while the victims end."""
    return [member(d, f"tiny-{number}-{n}", f"g{number}", 0, age=100) for n in range(len(NODES))]


def the_gang_shrinks(d: Driver, pods: list[Pod], number: int) -> list[Pod]:
    """Its users edit the size to 1 once the first victim has ended."""
    for pod in pods:
        pod.metadata.annotations[SIZE] = "1"
    d.apply(*pods)
    return []


def a_pod_of_higher_priority_takes_a_node(d: Driver, pods: list[Pod], number: int) -> list[Pod]:
    return [member(d, f"high-{number}", "", 8, priority=20)]


def pods_join_another_gang(d: Driver, pods: list[Pod], number: int) -> list[Pod]:
    """One tiny pod keeps the gang alive."""
    tiny = member(d, f"tiny-{number}", f"g{number}", 0)
    for pod in pods:
        pod.metadata.annotations[GANG] = f"other-{number}"
    d.apply(*pods)
    return [tiny]


@pytest.mark.parametrize(
    "trick",
    [tiny_pods_overtake, the_gang_shrinks, a_pod_of_higher_priority_takes_a_node, pods_join_another_gang],
)
def test_a_gang_that_uses_less_than_half_of_its_room_has_few_others_evicted(
    trick: Callable[[Driver, list[Pod], int], list[Pod]],
) -> None:
    """Its pods are deleted as soon as all victims have ended."""
    d, waves, number = fabric_driver({"s1/l1": len(NODES)}), 0, 0
    d.now = 5000.0
    start = d.now
    while d.now < start + 200:
        number += 1
        refill(d, NODES, number)
        d.forget()
        pods = [member(d, f"p-{number}-{n}", f"g{number}", 8) for n in range(len(NODES))]
        d.step(1)
        victims = [pod for pod in d.pods.values() if pod.metadata.name in d.preempted()]
        waves += bool(victims)
        d.evict(*victims[:1])
        further = trick(d, pods, number)
        d.settle(0.5)
        d.evict(*[pod for pod in d.pods.values() if pod.metadata.name in d.preempted()])
        d.delete(*pods, *further)
        d.step(1)
    assert 3 <= waves <= MOST_WAVES


@pytest.mark.parametrize("daemonset", [False, True])
def test_a_small_pod_of_others_in_the_room_costs_a_minute_at_most(*, daemonset: bool) -> None:
    """It comes each time that a pod was evicted, with 8 of 64 CPUs, and goes once the other one does not fit."""
    d, longest = fabric_driver({"s1/l1": 1}), 0.0
    d.now = 5000.0
    owner = controlled_by("DaemonSet", "hostile") if daemonset else None
    low = run_pod(d, "low", "s1-l1-1")
    innocent = make_pod("p", gpus=8, cpu="60", namespace="innocent", priority=10, created=d.now)
    d.apply(innocent)
    for number in range(8):
        for _ in range(700):
            d.step(1)
            if d.preempted():
                break
        agent = make_pod(f"a-{number}", cpu="8", node="s1-l1-1", scheduler="other", owner=owner, phase="Running")
        d.apply(agent)
        before = pauses_until(d)
        d.evict(low)
        for _ in range(70):
            d.settle(1)
            if pauses_until(d) != before:
                break
        longest = max(longest, pauses_until(d) - d.now)
        d.forget()
        d.delete(agent)
        low = run_pod(d, f"low-{number}", "s1-l1-1")
        d.settle(1)
    assert LONGEST_SHARED_PAUSE_SECONDS - 2 < longest <= LONGEST_SHARED_PAUSE_SECONDS


def pauses_until(d: Driver) -> float:
    return d.engine.preempting.vain_evictions.until("innocent")
