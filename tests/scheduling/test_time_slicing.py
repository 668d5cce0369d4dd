"""Long searches run in slices between decisions: with the same result, and with what changes meanwhile."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers import controlled_by, make_node, make_pod, owner, timestamp
from tests.recording.making import HeardDriver, record
from tests.scheduling.driver import Driver, configured, fabric, gang
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Pod
from topo_scheduler.recording.recorder import Recorder
from topo_scheduler.recording.replay import replay
from topo_scheduler.scheduling.instructions import Instruction, RecordDecision
from topo_scheduler.scheduling.reserving.holds import Reservation

HOLDS = configured("{preemption: {enabled: false}}")
MOVES = configured("{repair: {enabled: true}, preemption: {enabled: false}, reservation: {enabled: false}}")


def hurried() -> Callable[[], float]:
    """A clock by which every part takes longer than a step may."""
    return itertools.count(0.0).__next__


def running(d: Driver, name: str, node: str, ends: float, gpus: int = 8) -> Pod:
    """A pod of another scheduler of which it is known when it ends, in seconds."""
    pod = make_pod(name, gpus=gpus, node=node, scheduler="other", phase="Running")
    pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{ends:g}s"
    pod.status.start_time = timestamp(0)
    d.apply(pod)
    return pod


def held(d: Driver) -> list[Reservation]:
    """What is held, with names in place of uids."""
    return [
        replace(reservation, workload="", waits={name: (node, "") for node, name in reservation.waits.values()})
        for reservation in d.engine.reserving.holds
    ]


def half_full(config: Configuration, clock: Callable[[], float] | None = None) -> Driver:
    """Three leaves of two nodes: l1 is free after 2 hours, l2 after 1, l3 after 3; a gang of two waits."""
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2, "s1/l3": 2}), config)
    d.engine.budgets_known()
    for leaf, hours in ((1, 2), (2, 1), (3, 3)):
        for node in (1, 2):
            running(d, f"p-{leaf}-{node}", f"s1-l{leaf}-{node}", 3600 * hours)
    d.apply(*gang(2, name="large"))
    d.step()
    if clock is not None:
        d.clock = clock
    return d


def one_step(d: Driver, seconds: float = 0) -> list[Instruction]:
    """One step of the engine, whatever is left to be done."""
    d.now += seconds
    return d.engine.step(d.now, d.clock)


# ---------------------------------------------------------------- the same comes of it


fleets = st.lists(st.tuples(st.integers(0, 7), st.integers(1, 8), st.integers(1, 20)), min_size=4, max_size=24)


@settings(deadline=None, max_examples=40)
@given(fleets, st.integers(1, 4))
def test_in_parts_the_same_nodes_are_held(fleet: list[tuple[int, int, int]], size: int) -> None:
    def made(clock: Callable[[], float] | None) -> Driver:
        d = Driver([make_node(f"n{n}", f"s1/l{n // 4}") for n in range(8)], HOLDS)
        left = [8] * 8
        for number, (node, gpus, ends) in enumerate(fleet):
            if gpus <= left[node]:
                left[node] -= gpus
                running(d, f"p-{number}", f"n{node}", 600 * ends, gpus)
        d.apply(*gang(size, name="large"))
        d.step()
        if clock is not None:
            d.clock = clock
        d.step(30)
        return d

    assert held(made(hurried())) == held(made(None))


def test_other_workloads_are_decided_between_two_parts() -> None:
    d = half_full(HOLDS, hurried())
    one_step(d, 30)
    assert d.engine.reserving.working
    assert d.engine.pending_work
    d.apply(small := make_pod("small", gpus=0))
    said = one_step(d)
    assert any(isinstance(instruction, RecordDecision) and instruction.decision.seats for instruction in said)
    assert d.engine.reserving.working
    assert small.metadata.uid in {
        seat.uid
        for instruction in said
        if isinstance(instruction, RecordDecision)
        for seat in instruction.decision.seats
    }
    d.step()
    assert [sorted(reservation.nodes) for reservation in held(d)] == [["s1-l2-1", "s1-l2-2"]]


# ---------------------------------------------------------------- what happens meanwhile


def parts(d: Driver, work: Callable[[int], bool]) -> int:
    """Take steps, in each of which one part is done; ``work`` is called after each, until it returns False."""
    for number in range(1000):
        one_step(d)
        if not d.engine.pending_work or not work(number):
            return number
    raise AssertionError("it never ends")


@pytest.mark.parametrize("after", range(12))
def test_nodes_that_are_taken_meanwhile_are_not_held(after: int) -> None:
    d = half_full(HOLDS, hurried())
    d.now += 30
    parts(d, lambda number: number < after)
    # Another pod takes what the plan counts on, and does not say when it ends.
    d.delete(*(pod for pod in list(d.pods.values()) if pod.metadata.name.startswith("p-2-")))
    for node in (1, 2):
        pod = make_pod(f"web-{node}", gpus=8, node=f"s1-l2-{node}", scheduler="other", phase="Running")
        pod.spec.restart_policy = "Always"
        d.apply(pod)
    d.step()
    d.step(60)
    assert [sorted(reservation.nodes) for reservation in held(d)] == [["s1-l1-1", "s1-l1-2"]]


@pytest.mark.parametrize("after", range(12))
def test_a_gang_that_is_gone_meanwhile_is_held_nothing(after: int) -> None:
    d = half_full(HOLDS, hurried())
    d.now += 30
    parts(d, lambda number: number < after)
    d.delete(*(pod for pod in list(d.pods.values()) if pod.metadata.name.startswith("large")))
    d.step()
    d.step(60)
    assert held(d) == []
    assert not d.engine.pending_work


@pytest.mark.parametrize("after", range(12))
def test_it_is_begun_again_when_nodes_change_meanwhile(after: int) -> None:
    d = half_full(HOLDS, hurried())
    d.now += 30
    parts(d, lambda number: number < after)
    d.drop_node("s1-l2-1")
    d.nodes(*(make_node(f"new-{n}", "s2/l4") for n in range(300)))  # the node table becomes longer
    for n in range(300):
        running(d, f"new-{n}", f"new-{n}", 7200 * 5)
    d.step()
    d.step(60)
    d.step(60)
    assert [sorted(reservation.nodes) for reservation in held(d)] == [["s1-l1-1", "s1-l1-2"]]


def movable(clock: Callable[[], float] | None) -> tuple[Driver, list[Pod]]:
    """A gang of two whole nodes that has room in s1/l1 once one pod moves, or in s1/l2 once two do."""
    d = Driver(fabric({"s1/l1": 2, "s1/l2": 2}), MOVES)
    d.engine.budgets_known()
    for name, node in (("a", "s1-l1-1"), ("b", "s1-l2-1"), ("c", "s1-l2-2")):
        d.own(owner("StatefulSet", name))
        d.apply(pod := make_pod(name, gpus=2, owner=controlled_by("StatefulSet", name)))
        pod.spec.node_name = node
        d.apply(pod)
    d.apply(*(pods := gang(2, name="large")))
    d.step()
    if clock is not None:
        d.clock = clock
    return d, pods


def test_in_parts_the_same_moves_are_reported() -> None:
    whole, in_parts = movable(None), movable(hurried())
    for d, _ in (whole, in_parts):
        d.step(60)
    assert whole[0].told(whole[1][0])[-1] == in_parts[0].told(in_parts[1][0])[-1]
    assert "Moving 1 pod (default/a" in whole[0].told(whole[1][0])[-1]


@pytest.mark.parametrize("after", range(16))
def test_moves_are_reported_as_they_are_possible_at_the_end(after: int) -> None:
    d, pods = movable(hurried())
    d.now += 60
    parts(d, lambda number: number < after)
    d.apply(make_pod("stays", gpus=8, node="s1-l1-2", scheduler="other", phase="Running"))
    d.step()
    d.step(20)
    d.step(20)
    assert d.engine.moving.describe("Job/default/large") == d.engine.moving.describe("no such gang")
    message = d.told(pods[0])[-1]
    assert "s1/l1." not in message.rpartition("Moving")[2]


# ---------------------------------------------------------------- records


def test_a_replay_does_the_parts_that_were_done(tmp_path: Path) -> None:
    """How far a step came is part of the record, and so what was decided between two parts."""

    def work(d: HeardDriver, _: Recorder) -> None:
        d.nodes(*fabric({"s1/l1": 2, "s1/l2": 2}))
        for leaf in (1, 2):
            for node in (1, 2):
                running(d, f"p-{leaf}-{node}", f"s1-l{leaf}-{node}", 3600 * leaf)
        d.apply(*gang(2, name="large"))
        d.step()
        d.clock = hurried()
        one_step(d, 30)
        assert d.engine.reserving.working
        d.apply(make_pod("small", gpus=0))
        d.step()
        assert len(d.engine.reserving.holds) == 1

    record(tmp_path, work)
    report = replay(tmp_path)
    assert report.first is None
    assert report.decisions >= 2
