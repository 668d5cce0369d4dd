"""A gang that grows has pods evicted again while its first pods are on their way: each such wave counts alone."""

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import make_pod
from tests.scheduling.driver import Driver, fabric_driver
from tests.scheduling.running_pods import run_pod, victims
from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import BindOutcome
from topo_scheduler.scheduling.preemption.freed_room import FreedRoom, TakenBy
from topo_scheduler.scheduling.preemption.vain_evictions import MAX_FAILED_WAVES, VainEvictions
from topo_scheduler.state.nodes.resources import GPU, PODS, Amounts

SMALL = "s1-l1-1"
"""The node of 8 pods with 1 GPU each; every other node has one pod with 8 GPUs."""
MINIMUM = 2


def cluster(nodes: int) -> Driver:
    d = fabric_driver({"s1/l1": nodes})
    d.now = 5000.0
    for number in range(8):
        run_pod(d, f"small-{number}", SMALL, gpus=1)
    for number in range(2, nodes + 1):
        run_pod(d, f"large-{number}", f"s1-l1-{number}")
    d.step(1)
    return d


def member(d: Driver, name: str, gpus: int) -> Pod:
    """A pod of a gang that needs two pods at least comes into being."""
    annotations = {"topology.scheduler/gang-name": "g", "topology.scheduler/gang-size": str(MINIMUM)}
    pod = make_pod(name, gpus=gpus, namespace="elastic", priority=10, created=d.now, annotations=annotations)
    d.apply(pod)
    return pod


def evict_for(d: Driver, pods: list[Pod]) -> list[Pod]:
    """Victims are chosen for some pods, and end; return them."""
    before = set(d.preempted())
    d.step(1)
    evicted = [pod for pod in victims(d) if pod.metadata.name not in before]
    d.evict(*evicted)
    d.step(1)
    assert evicted and all(pod.metadata.uid in d.flight for pod in pods)
    return evicted


def pauses(d: Driver) -> dict[str, int]:
    """The failures that count for each namespace."""
    return {name: pause.times for name, pause in d.engine.preempting.vain_evictions._pauses.items()}


def test_a_gang_that_grows_while_its_binds_are_on_their_way_is_not_paused() -> None:
    d = cluster(8)
    first = [member(d, f"p{number}", 8) for number in range(MINIMUM)]
    evict_for(d, first)
    further = []
    for number in range(4):
        pod = member(d, f"further-{number}", 8)
        evict_for(d, [pod])
        further.append(pod)
    assert len(d.flight) == 6 and pauses(d) == {}
    for pod in [*first, *further]:
        d.answer(pod.metadata.uid)
    d.step(1)
    assert len(d.where(*first, *further)) == 6 and pauses(d) == {}
    assert not d.engine.preempting.vain_evictions.waves


def test_small_pods_that_are_bound_do_not_make_up_for_a_large_one_that_is_deleted() -> None:
    d = cluster(4)
    small = [member(d, f"p{number}", 1) for number in range(MINIMUM)]
    evict_for(d, small)
    large = member(d, "large", 8)
    before = set(d.preempted())
    d.step(1)
    d.step(1)
    evicted = [pod for pod in victims(d) if pod.metadata.name not in before]
    d.evict(*evicted)
    d.delete(large)
    d.step(1)
    assert sum(pauses(d).values()) == 1
    for pod in small:
        d.answer(pod.metadata.uid)
    d.step(1)
    assert len(d.where(*small)) == MINIMUM
    assert sum(pauses(d).values()) == 1, "their room is another"


def test_a_large_pod_that_is_deleted_on_its_way_counts_though_small_ones_are_bound() -> None:
    """They are two of the three pods, and use a fifth of the room that was made for all."""
    d = cluster(2)
    annotations = {"topology.scheduler/gang-name": "g", "topology.scheduler/gang-size": "3"}
    pods = [
        make_pod(f"p{number}", gpus=gpus, namespace="elastic", priority=10, created=d.now, annotations=annotations)
        for number, gpus in enumerate((1, 1, 8))
    ]
    d.apply(*pods)
    evict_for(d, pods)
    for pod in pods[:2]:
        d.answer(pod.metadata.uid)
    d.delete(pods[2])
    assert sum(pauses(d).values()) == 1


def test_waves_that_began_before_a_failure_are_of_the_same_incident() -> None:
    d = cluster(4)
    first = [member(d, f"p{number}", 8) for number in range(MINIMUM)]
    evict_for(d, first)
    refused = member(d, "refused", 8)
    evict_for(d, [refused])
    d.answer(refused.metadata.uid, BindOutcome.REJECTED, "no")
    assert sum(pauses(d).values()) == 1
    d.now += 60
    d.delete(first[0])
    assert sum(pauses(d).values()) == 1, "both began before the failure that counts"


AMOUNTS = ((PODS, 1), (GPU, 1000))


def room(pods: int) -> FreedRoom:
    return FreedRoom("ns", {"node": {column: amount * pods for column, amount in AMOUNTS}}, {}, {})


def place(records: VainEvictions, size: int, pods: Mapping[str, Amounts], now: float, *, evicted: bool) -> None:
    if evicted:
        records.placed("id", room(size).total, room(size), pods, now)
    records.placed_again("id", pods, dict.fromkeys(pods, "node"))


@given(data=st.data())
def test_a_bound_pod_counts_for_one_wave_only(data: st.DataObject) -> None:
    """Waves fail, get places again and are bound in any order: at most as many are forgiven as were used by half."""
    records = VainEvictions()
    now, serial, needed, bound = 0.0, 0, list[int](), 0
    in_flight: list[str] = []
    for _ in range(data.draw(st.integers(1, 25))):
        now += 10_000.0
        how = data.draw(st.sampled_from(["evicted", "placed", "lost", "bound", "undone"]))
        match how:
            case "evicted" | "placed":
                size = data.draw(st.integers(1, 4))
                pods = {f"pod-{serial + number}": AMOUNTS for number in range(size)}
                serial += size
                place(records, size, pods, now, evicted=how == "evicted")
                in_flight += pods
                needed += [size] if how == "evicted" else []
            case "lost":
                size = data.draw(st.integers(1, 4))
                records.lose_room("id", "ns", room(size).total, TakenBy.ITS_NAMESPACE, now, nodes=["node"], pods=())
                needed.append(size)
            case "bound" if in_flight:
                records.bound(in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1))), 0.0)
                bound += 1
            case "undone" if in_flight:
                records.undone(in_flight.pop(data.draw(st.integers(0, len(in_flight) - 1))), TakenBy.ITS_NAMESPACE, now)
        waves = records.waves.get("id", [])
        assert sum((wave.bound for wave in waves), Counter())[PODS] <= bound
        assert set(records._of_pod) == {uid for wave in waves for uid in wave.unbound} <= set(in_flight)
        if how in ("evicted", "lost"):
            assert sum(not wave.unbound for wave in waves) <= MAX_FAILED_WAVES
    records.deleted("id", now)
    assert not records.waves and not records._of_pod


@pytest.mark.parametrize(("size", "bound", "counts"), [(4, 1, True), (4, 2, False), (5, 2, True), (5, 3, False)])
def test_half_of_the_room_is_what_counts(size: int, bound: int, counts: bool) -> None:
    records = VainEvictions()
    pods = {f"pod-{number}": AMOUNTS for number in range(size)}
    place(records, size, pods, 0.0, evicted=True)
    for uid in list(pods)[:bound]:
        records.bound(uid, 0.0)
    records.undone(f"pod-{size - 1}", TakenBy.ITS_NAMESPACE, 1.0)
    assert bool(dict(records._pauses.items())) == counts


def test_a_failure_is_taken_back_by_as_much_of_the_workload_in_another_place() -> None:
    records = VainEvictions()
    pods = {f"pod-{number}": AMOUNTS for number in range(3)}
    records.lose_room("id", "ns", room(4).total, TakenBy.ITS_NAMESPACE, 0.0, nodes=["node"], pods=["pod-0"])
    records.placed_again("id", pods, {"pod-0": "elsewhere", "pod-1": "node", "pod-2": "node"})
    records.bound("pod-0", 0.0)
    assert dict(records._pauses.items()) and "ns" not in records.forgiven
    records.bound("pod-1", 0.0)
    assert not dict(records._pauses.items()) and "ns" in records.forgiven


def test_pods_that_others_were_not_evicted_for_take_no_failure_back_elsewhere() -> None:
    records = VainEvictions()
    records.lose_room("id", "ns", room(2).total, TakenBy.ITS_NAMESPACE, 0.0, nodes=["node"], pods=["pod-0", "pod-1"])
    others = {"pod-2": AMOUNTS, "pod-3": AMOUNTS}
    records.placed_again("id", others, dict.fromkeys(others, "elsewhere"))
    for uid in others:
        records.bound(uid, 0.0)
    assert dict(records._pauses.items()) and not records.forgiven


def test_a_failure_of_one_pod_is_taken_back_while_victims_end_for_another() -> None:
    """A bind is refused and succeeds at last, while the scheduler makes room for the next pod of the gang."""
    d = cluster(4)
    first = [member(d, f"p{number}", 1) for number in range(MINIMUM)]
    evict_for(d, first)
    for pod in first:
        d.answer(pod.metadata.uid)
    refused = member(d, "refused", 8)
    evict_for(d, [refused])
    d.answer(refused.metadata.uid, BindOutcome.REJECTED, "no")
    assert sum(pauses(d).values()) == 1
    further = member(d, "further", 8)
    d.step(0.1)
    assert any(pod.metadata.name == "further" for pod in d.pods.values())
    d.settle(30)
    assert refused.spec.node_name or d.where(refused)
    assert not pauses(d) and not d.where(further)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_pods_take_back_the_failure_of_the_wave_that_they_fit(order: tuple[int, int]) -> None:
    records = VainEvictions()
    small, large = {"small": ((GPU, 1),)}, {"large": ((GPU, 8),)}
    for now, pods in ((0.0, large), (60.0, small)):
        (amounts,) = pods.values()
        place_of_pods = FreedRoom("ns", {"node": dict(amounts)}, {}, {})
        records.placed("id", place_of_pods.total, place_of_pods, pods, now)
    for at, pod in ((100.0, "large"), (200.0, "small")):
        records.undone(pod, TakenBy.ITS_NAMESPACE, at)
    again = [("small-again", ((GPU, 1),)), ("large-again", ((GPU, 8),))]
    records.placed_again("id", dict(again[number] for number in order), {name: "node" for name, _ in again})
    for name, _ in again:
        records.bound(name, 0.0)
    assert not dict(records._pauses.items()) and not records.waves


def test_a_bind_that_fails_as_its_pod_is_gone_is_a_failure_of_its_own() -> None:
    """A small pod of others in the room is no excuse."""
    d = cluster(2)
    pods = [member(d, f"p{number}", 8 * number) for number in range(MINIMUM)]
    evict_for(d, pods)
    d.apply(make_pod("small", cpu="1m", node="s1-l1-2", scheduler="other", namespace="hostile", phase="Running"))
    d.answer(pods[1].metadata.uid, BindOutcome.GONE, "not found")
    assert sum(pauses(d).values()) == 1


def test_other_pods_of_a_gang_that_use_the_room_are_no_failure() -> None:
    """Those with low ranks come last, as a Job creates its pods in any order."""
    d = fabric_driver({"s1/l1": 8})
    d.now = 5000.0
    for number in range(1, 9):
        run_pod(d, f"low-{number}", f"s1-l1-{number}")
    d.step(1)
    annotations = {"topology.scheduler/gang-name": "g", "topology.scheduler/gang-size": "4"}
    pods = [
        make_pod(f"g-{n}", gpus=8, namespace="elastic", priority=10, created=d.now - 100 + n, annotations=annotations)
        for n in range(8)
    ]
    d.apply(*pods[4:])
    d.step(1)
    d.apply(*pods[:4])
    for _ in range(20):
        d.evict(*victims(d))
        d.settle(1)
    assert len(d.where(*pods)) == 8 and not pauses(d)
    assert not d.engine.preempting.vain_evictions.waves
