"""Evictions in vain: whose failure it is if a gang loses room, and which workload answers for room that passes on."""

import pytest

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, fabric_driver, gang
from tests.scheduling.running_pods import run_pod, victims, with_priority
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import BindOutcome, EvictionOutcome
from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, TakenBy
from topo_scheduler.scheduling.preemption.vain_evictions import VainEvictions
from topo_scheduler.state.nodes.resources import GPU

GANG, SIZE = "topology.scheduler/gang-name", "topology.scheduler/gang-size"
NODES = 4


def full() -> Driver:
    """Each node has one pod of low priority."""
    d = fabric_driver({"s1/l1": NODES + 1})
    d.now = 5000.0
    for number in range(1, NODES + 2):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    d.step(1)
    return d


def members(d: Driver, name: str, size: int, *, priority: int = 10, namespace: str = "default") -> list[Pod]:
    annotations = {GANG: name, SIZE: str(size)}
    pods = [
        make_pod(f"{name}-{n}", gpus=8, namespace=namespace, priority=priority, created=d.now, annotations=annotations)
        for n in range(size)
    ]
    d.apply(*pods)
    return pods


def counted(d: Driver) -> dict[str, int]:
    """How many failures count, by whose pods are in the room."""
    pauses = d.engine.preempting.vain_evictions._pauses_by_taker
    counts = {taken.name: sum(pause.times for _, pause in kept.items()) for taken, kept in pauses.items()}
    return {name: times for name, times in counts.items() if times}


def test_room_of_which_a_pod_of_the_namespace_takes_a_part_is_no_failure_once_the_gang_is_bound() -> None:
    """The gang has one pod more evicted, and is bound in what is left of its room and there."""
    d = full()
    pods = members(d, "g", NODES)
    d.step(1)
    first = victims(d)
    assert len(first) == NODES
    d.evict(*first, vanish=False)
    high = make_pod("high", gpus=8, priority=20, created=d.now)
    d.apply(high)
    d.step(1)
    assert counted(d) == {"ITS_NAMESPACE": 1}
    for _ in range(5):
        d.evict(*victims(d))
        d.settle(1)
    assert len(d.where(*pods, high)) == NODES + 1
    assert counted(d) == {}


def test_siblings_with_a_place_do_not_make_a_withdrawn_bind_a_failure_of_the_namespace() -> None:
    d = full()
    pods = members(d, "g", NODES)
    d.step(1)
    d.evict(*victims(d))
    d.step(1)
    assert len(d.flight) == NODES
    d.answer(pods[0].metadata.uid, BindOutcome.WITHDRAWN, "the node has a pod that repels it")
    assert "ITS_NAMESPACE" not in counted(d)


@pytest.mark.parametrize(("cpu", "own"), [("1m", False), ("64", True)])
def test_other_pods_of_the_namespace_are_the_reason_only_if_they_take_what_is_needed(cpu: str, *, own: bool) -> None:
    """A small pod comes to a node of the room while binds are withdrawn for another reason."""
    d = full()
    pods = with_priority(gang(2, gpus=8), 10)
    d.apply(*pods)
    d.step(1)
    d.evict(*victims(d))
    d.step(1)
    node = d.flight[pods[0].metadata.uid].node
    d.apply(make_pod("small", cpu=cpu, node=node, scheduler="other", phase="Running"))
    d.answer(pods[0].metadata.uid, BindOutcome.WITHDRAWN, "the node has a pod that repels it")
    assert ("ITS_NAMESPACE" in counted(d)) == own or "OTHERS" in counted(d)


def test_a_node_that_is_cordoned_meanwhile_is_no_failure_of_the_namespace() -> None:
    """The gang needs every node, so that no room helps any more."""
    d = full()
    pods = members(d, "g", NODES + 1)
    d.step(1)
    evicted = victims(d)
    assert len(evicted) == NODES + 1
    d.evict(*evicted[:-1])
    d.engine.nodes_applied([make_node(evicted[-1].spec.node_name, "s1/l1", unschedulable=True)], d.now)
    d.evict(evicted[-1])
    for _ in range(3):
        d.settle(60)
    assert d.where(*pods) == {} and set(counted(d)) <= {"OTHERS_IN_PART", "NOBODY", "OTHERS"}


@pytest.mark.parametrize(("namespace", "reason"), [("default", "ITS_NAMESPACE"), ("others", "NOBODY")])
def test_a_victim_that_stays_counts_once_others_were_evicted(namespace: str, reason: str) -> None:
    d = fabric_driver({"s1/l1": 2})
    d.now = 5000.0
    run_pod(d, "low-1", "s1-l1-1")
    d.apply(make_pod("low-2", gpus=8, node="s1-l1-2", namespace=namespace, scheduler="other", phase="Running"))
    d.step(1)
    members(d, "g", 2)
    d.step(1)
    first, second = sorted(victims(d), key=lambda pod: pod.metadata.name)
    d.evict(first)
    d.engine.eviction_finished(second.metadata.uid, EvictionOutcome.BLOCKED, "a budget", d.now)
    assert counted(d).get(reason) == 1


def test_room_that_passes_on_in_halves_is_in_vain_at_last() -> None:
    """8 nodes go to 4 pods of higher priority, then 2 of these to others, then 1: a quarter is too little."""
    d = fabric_driver({"s1/l1": 8})
    d.now = 5000.0
    for number in range(1, 9):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    d.step(1)
    for step, size in enumerate((8, 4, 2)):
        members(d, f"g{size}", size, priority=10 + step, namespace="evil")
        d.step(0.1)
    assert counted(d) == {"ITS_NAMESPACE": 1}


def test_waves_that_another_failure_excuses_count_once_it_is_taken_back() -> None:
    records = VainEvictions()
    amounts = ((GPU, 8),)
    place_of_pods = FreedRoom("ns", {"node": {GPU: 8}}, {}, {})
    for name in ("first", "second"):
        records.placed("id", place_of_pods.total, place_of_pods, {name: amounts}, 0.0)
    small = FreedRoom("ns", {"node": {GPU: 1}}, {}, {})
    records.placed("id", small.total, small, {"small": ((GPU, 1),)}, 0.0)
    records.undone("small", TakenBy.ITS_NAMESPACE, 10.0)
    records.placed_again("id", {"small-again": ((GPU, 1),)}, {"small-again": "node"})
    records.bound("small-again", 10.0)
    assert not dict(records._pauses.items())
    records.undone("first", TakenBy.ITS_NAMESPACE, 20.0)
    assert [pause.times for _, pause in records._pauses.items()] == [1]
    records.undone("second", TakenBy.ITS_NAMESPACE, 30.0)
    assert [pause.times for _, pause in records._pauses.items()] == [1], "of the same incident"
    records.placed_again("id", {"half": ((GPU, 8),)}, {"half": "node"})
    records.bound("half", 30.0)
    assert not dict(records._pauses.items()), "half of both is used"


def test_a_pod_that_takes_room_over_needs_no_more_of_it_than_the_scarce_resource() -> None:
    """Pods of another tenant with much CPU have others evicted; a pod with all GPUs and little CPU takes that over."""
    d = fabric_driver({"s1/l1": 1})
    d.now = 5000.0
    run_pod(d, "low", "s1-l1-1")
    d.step(1)
    for n in range(8):
        d.apply(make_pod(f"many-{n}", gpus=1, cpu="4", namespace="evil", priority=10, created=d.now))
    d.step(1)
    assert d.preempted()
    whole = make_pod("whole", gpus=8, cpu="1", priority=20, created=d.now)
    d.apply(whole)
    d.step(1)
    d.evict(*victims(d))
    d.settle(1)
    assert d.where(whole) and "ITS_NAMESPACE" not in counted(d)
    assert not d.engine.preempting.vain_evictions.until("default")


def test_a_gang_that_takes_over_room_of_another_namespace_answers_for_its_own_evictions_only() -> None:
    d = full()
    members(d, "low-gang", NODES)
    d.step(1)
    d.evict(*victims(d), vanish=False)
    pods = members(d, "high-gang", NODES + 1, priority=20, namespace="innocent")
    d.step(1)
    d.evict(*[pod for pod in d.pods.values() if pod.metadata.name.startswith("low-") and pod.spec.node_name])
    d.step(1)
    assert len(d.flight) == NODES + 1 and "ITS_NAMESPACE" not in counted(d)
    for pod in pods:
        d.answer(pod.metadata.uid)
    assert d.engine.preempting.vain_evictions.waves.keys() == {"default/low-gang"}


def test_a_refusal_counts_though_the_watch_has_yet_to_report_the_victims_that_go() -> None:
    d = fabric_driver({"s1/l1": 2})
    d.now = 5000.0
    for number in (1, 2):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    d.step(1)
    members(d, "g", 2)
    d.step(1)
    first, second = victims(d)
    d.engine.eviction_finished(first.metadata.uid, EvictionOutcome.GOING, "", d.now)
    d.engine.eviction_finished(second.metadata.uid, EvictionOutcome.BLOCKED, "a budget", d.now)
    assert sum(counted(d).values())


def test_a_refused_bind_beside_pods_for_which_others_were_evicted_counts_until_the_gang_is_bound() -> None:
    d = fabric_driver({"s1/l1": 2})
    low, pods = run_pod(d, "low", "s1-l1-1"), members(d, "g", 2)
    d.step(1)
    assert d.preempted() == ["low"]
    d.evict(low)
    d.step(0.1)
    nodes = {bind.node: uid for uid, bind in d.flight.items()}
    d.answer(nodes["s1-l1-2"], BindOutcome.REJECTED, "no")
    assert counted(d) == {"ITS_NAMESPACE": 1}
    for _ in range(30):
        d.settle(1)
    assert len(d.where(*pods)) == 2 and not counted(d)
