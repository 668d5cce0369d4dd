"""Gangs that have others evicted and then lose pods: their namespace soon evicts none, and the room is free again."""

from collections.abc import Callable

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, victims, with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.preemption.vain_evictions import USED_AFTER_SECONDS

NODES = [f"s1-l1-{number}" for number in range(1, 5)]


def hostile_gang(name: str) -> list[Pod]:
    pods = with_priority(gang(4, name=name), 10)
    for pod in pods:
        pod.metadata.namespace = "hostile"
    return pods


def one_is_deleted(d: Driver, pods: list[Pod]) -> None:
    d.delete(pods[0])


def all_but_one_are_deleted(d: Driver, pods: list[Pod]) -> None:
    d.delete(*pods[1:])


def a_finalizer_keeps_the_deleted_one(d: Driver, pods: list[Pod]) -> None:
    pods[0].metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    d.apply(pods[0])


def it_wants_one_more(d: Driver, pods: list[Pod]) -> None:
    """Its users edit the size, and keep the room from being whole by a small pod of theirs."""
    for pod in pods:
        pod.metadata.annotations["topology.scheduler/gang-size"] = "5"
    small = make_pod(f"small-{d.now}", namespace="hostile", gpus=1, node=NODES[0], priority=100, phase="Running")
    d.apply(*pods, small)


def run_round(d: Driver, number: int, lose: Callable[[Driver, list[Pod]], None]) -> int:
    """A gang has pods evicted, loses its own, and is deleted half a minute later; return the evictions."""
    for node in NODES:
        run_pod(d, f"low-{number}-{node}", node)
    pods = hostile_gang(f"g{number}")
    d.forget()
    d.apply(*pods)
    d.step(1)
    evicted = victims(d)
    lose(d, pods)
    d.evict(*evicted)
    for _ in range(35):
        d.step(1)
    d.delete(*d.pods.values())
    d.step(1)
    return len(evicted)


@pytest.mark.parametrize(
    "lose", [one_is_deleted, all_but_one_are_deleted, a_finalizer_keeps_the_deleted_one, it_wants_one_more]
)
def test_gangs_that_lose_pods_have_few_others_evicted(lose: Callable[[Driver, list[Pod]], None]) -> None:
    d = fabric_driver({"s1/l1": 4})
    evictions = [run_round(d, number, lose) for number in range(10)]
    assert 4 <= sum(evictions) <= 4 * 6, f"{evictions}: the pauses are of 0, 10, 20, 40, 80 and 160 seconds"


@pytest.mark.parametrize("lose", [one_is_deleted, all_but_one_are_deleted])
def test_their_room_is_free_for_others_after_five_seconds(lose: Callable[[Driver, list[Pod]], None]) -> None:
    d = fabric_driver({"s1/l1": 4})
    running = [run_pod(d, f"low-{node}", node) for node in NODES]
    pods = hostile_gang("g")
    d.apply(*pods)
    d.step(1)
    lose(d, pods)
    d.evict(*running)
    others = [make_pod(f"other-{number}", gpus=8) for number in range(4)]
    d.apply(*others)
    for _ in range(6):
        d.step(1)
    d.settle()
    assert len(d.where(*others)) == 4
    assert d.nominated().keys().isdisjoint(pod.metadata.name for pod in d.pods.values())


def test_a_pod_that_comes_in_place_of_a_deleted_one_gets_the_room_that_was_freed() -> None:
    d = fabric_driver({"s1/l1": 4})
    running = [run_pod(d, f"low-{node}", node) for node in NODES]
    pods = hostile_gang("g")
    d.apply(*pods)
    d.step(1)
    assert len(d.preempted()) == 4
    d.delete(pods[0])
    d.evict(*running, vanish=False)
    d.step(1)
    again = hostile_gang("g")[0]
    again.metadata.uid, again.metadata.name = "again", "again"
    d.apply(again)
    d.step(1)
    d.delete(*running)
    d.settle(2)
    assert len(d.where(*pods[1:], again)) == 4
    assert len(d.preempted()) == 4, "no pod was evicted twice"


def test_further_gangs_evict_none_as_soon_as_two_have_lost_a_pod() -> None:
    d = fabric_driver({"s1/l1": 20})
    for number in range(1, 21):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    for number in range(5):
        pods = hostile_gang(f"g{number}")
        d.apply(*pods)
        d.step(0.5)
        d.delete(pods[0])
    assert 4 < len(d.preempted()) <= 8


def test_a_gang_that_gets_its_place_though_it_lost_a_pod_costs_its_namespace_nothing() -> None:
    d = fabric_driver({"s1/l1": 4})
    for number in range(4):
        running = [run_pod(d, f"low-{number}-{node}", node) for node in NODES]
        pods = hostile_gang(f"g{number}")
        d.apply(*pods)
        d.step(1)
        d.delete(pods[0])
        again = hostile_gang(f"g{number}")[0]
        again.metadata.uid, again.metadata.name = f"again-{number}", f"again-{number}"
        d.apply(again)
        d.evict(*running)
        d.settle(2)
        assert len(d.where(*pods[1:], again)) == 4
        d.step(USED_AFTER_SECONDS)
        d.delete(*pods[1:], again)
        d.step(1)
    assert not d.engine.preempting.vain_evictions.until("hostile")


def test_room_that_another_namespace_takes_beside_a_small_pod_of_its_own_is_no_reason() -> None:
    d = fabric_driver({"s1/l1": 1})
    pod = with_priority(gang(1), 10)[0]
    pod.metadata.namespace = "honest"
    d.apply(pod)
    for number in range(4):
        low = run_pod(d, f"low-{number}", NODES[0])
        d.step(61)
        assert low.metadata.name in d.preempted()
        small = make_pod(f"small-{number}", namespace="honest", cpu="1", node=NODES[0], priority=100, phase="Running")
        d.apply(small)
        d.evict(low)
        other = run_pod(d, f"other-{number}", NODES[0], gpus=4, priority=100)
        d.step(61)
        d.delete(other, small)
    assert d.engine.preempting.vain_evictions.until("honest") <= d.now


def test_gangs_that_come_at_once_evict_one_after_another_once_two_evicted_in_vain() -> None:
    d = fabric_driver({"s1/l1": 20})
    running = {number: run_pod(d, f"low-{number}", f"s1-l1-{number}") for number in range(1, 21)}
    for number in range(2):
        pods = hostile_gang(f"g{number}")
        d.apply(*pods)
        d.step(1)
        d.delete(*pods)
        d.step(1)
    evicted = len(d.preempted())
    assert evicted <= 8
    d.step(20)
    gangs = [hostile_gang(f"more-{number}") for number in range(3)]
    d.apply(*(pod for pods in gangs for pod in pods))
    for _ in range(4):
        d.step(1)
    assert len(d.preempted()) - evicted == 4, "for one of the three"
    waiting = [text for pods in gangs for text in d.told(pods[0]) if "one workload of this namespace at a time" in text]
    assert waiting
    while any(pod.metadata.name in d.preempted() for pod in running.values()):
        going = [number for number, pod in running.items() if pod.metadata.name in d.preempted()]
        d.evict(*(running.pop(number) for number in going))
        for _ in range(6):
            d.settle(1)
    assert [len(d.where(*pods)) for pods in gangs] == [4, 4, 4], "each when the one before is bound"


def test_a_place_that_was_lost_again_keeps_no_gang_from_evicting() -> None:
    d = fabric_driver({"s1/l1": 8})
    running = [run_pod(d, f"low-{number}", f"s1-l1-{number}") for number in range(1, 9)]
    for _ in range(2):
        d.step(1)
        d.engine.preempting.vain_evictions.in_vain("hostile", d.now)
    d.step(20)
    pods = hostile_gang("g")
    d.apply(*pods)
    d.step(1)
    evicted = [pod for pod in running if pod.metadata.name in d.preempted()]
    d.evict(*evicted)
    d.step(1)
    d.nodes(*(make_node(low.spec.node_name, "s1/l1", unschedulable=True) for low in evicted))
    for bind in d.binds():
        d.answer(bind.pod.uid, BindOutcome.WITHDRAWN, "its node was cordoned")
    for _ in range(4):
        d.settle(1)
    assert sorted(d.preempted()) == [f"low-{number}" for number in range(1, 9)]


def rounds_that_evict(d: Driver, scene: Callable[[Driver, int, list[Pod]], None], rounds: int = 12) -> int:
    """In each round a gang has the pods on all nodes evicted; return how often it did."""
    evicting = 0
    for number in range(rounds):
        for node in NODES:
            run_pod(d, f"low-{number}-{node}", node)
        pods = hostile_gang(f"g{number}")
        d.forget()
        d.apply(*pods)
        d.step(1)
        evicting += bool(d.preempted())
        scene(d, number, pods)
        d.delete(*d.pods.values())
        d.step(1)
    return evicting


def another_namespace_takes_a_crumb(d: Driver, number: int, pods: list[Pod]) -> None:
    crumb = make_pod(f"crumb-{number}", namespace="accomplice", gpus=1, node=NODES[0], priority=10, phase="Running")
    d.apply(crumb)
    d.evict(*victims(d))
    d.step(1)
    d.delete(*pods)


def tiny_pods_come_in_their_place(d: Driver, number: int, pods: list[Pod]) -> None:
    said = {"gang-name": f"g{number}", "gang-size": "4"}
    tiny = [
        make_pod(f"tiny-{number}-{k}", cpu="1m", namespace="hostile", priority=10, annotations=said) for k in range(4)
    ]
    d.delete(*pods[1:])
    d.apply(*tiny)
    d.delete(pods[0])
    d.settle(0.5)
    assert not d.preempted() or len(d.where(*tiny)) == 4
    d.evict(*victims(d))
    for _ in range(3):
        d.step(1)


@pytest.mark.parametrize("scene", [another_namespace_takes_a_crumb, tiny_pods_come_in_their_place])
def test_what_looks_as_if_others_used_the_room_is_no_excuse(
    scene: Callable[[Driver, int, list[Pod]], None],
) -> None:
    assert 2 <= rounds_that_evict(fabric_driver({"s1/l1": 4}), scene) <= 4


def test_a_victim_of_its_own_namespace_that_does_not_end_is_no_excuse() -> None:
    d = fabric_driver({"s1/l1": 4})
    evictions = 0
    for number in range(8):
        running = [run_pod(d, f"low-{number}-{node}", node) for node in NODES[:-1]]
        own = make_pod(f"own-{number}", namespace="hostile", gpus=8, node=NODES[-1], phase="Running")
        pods = hostile_gang(f"g{number}")
        d.forget()
        d.apply(own, *pods)
        d.step(1)
        if d.preempted():
            evictions += 1
            d.evict(own, vanish=False)  # a finalizer keeps it
            d.evict(*running)
        for _ in range(70):
            d.step(1)
        d.delete(*d.pods.values())
        d.step(1)
    assert 2 <= evictions <= 4
