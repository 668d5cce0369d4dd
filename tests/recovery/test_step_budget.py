"""A Migration whose planning costs too much is put aside, with its reason and growing pauses; the others go on."""

from itertools import count
from typing import Final

import pytest

from tests.helpers import controlled_by, make_pod
from tests.recovery.world import RECOVERY_ENABLED, World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.selectors import Affinity, LabelSelector, PodAffinity, PodAffinityTerm
from topo_scheduler.recovery.model.barrier import Guarded
from topo_scheduler.recovery.model.instructions import (
    CountRecoveryFailure,
    EmitMigrationEvent,
    RecoveryInstruction,
    Warn,
)
from topo_scheduler.recovery.model.migration_state import Tracked
from topo_scheduler.state.operation_budget import CLOCK_EVERY_OPERATIONS, charge
from topo_scheduler.state.pods.caps import MAX_TERMS

COSTLY_PODS: Final = 560
"""Pods of one Migration. To place one takes over 8,000 operations, as each term is checked."""
LEAF_NODES: Final = 8
HOSTILE: Final = "hostile"
KEY: Final = f"{HOSTILE}/costly"


def world_with_costly_pods() -> World:
    """Return a cluster with a pod of namespace ``b``, and as many pods with as many terms as tenants may create."""
    leaves = {f"s1/l{leaf}": LEAF_NODES for leaf in (1, 2, 3, 4)}
    world = World(RECOVERY_ENABLED, leaves, controllers_stand=True)
    term = PodAffinityTerm(LabelSelector({"app": "costly"}), topology_key="topology.scheduler/spine")
    pods = [
        make_pod(
            f"costly-{number}",
            cpu="10m",
            uid=f"costly-{number}",
            namespace=HOSTILE,
            owner=controlled_by("ReplicaSet", "costly"),
            node=f"s1-l1-{1 + number % LEAF_NODES}",
            labels={"app": "costly"},
        )
        for number in range(COSTLY_PODS)
    ]
    for pod in pods:
        pod.spec.affinity = Affinity(pod_affinity=PodAffinity(required=[term] * MAX_TERMS))
    world.add(*pods)  # first: pods that appear later with a node are not the scheduler's to move
    world.put("sound", "s1-l2-1", 8, namespace="b")
    world.run(1)
    return world


def events(world: World) -> list[tuple[str, str]]:
    """Return reasons and messages of the events on the costly Migration."""
    emitted = [instruction for instruction in world.emitted if isinstance(instruction, EmitMigrationEvent)]
    return [(event.reason, event.message) for event in emitted if f"{event.namespace}/{event.name}" == KEY]


@pytest.mark.slow
def test_a_migration_whose_planning_exceeds_its_budget_pauses_longer_each_time_and_another_goes_on() -> None:
    world = world_with_costly_pods()
    world.request("costly", *(f"costly-{number}" for number in range(COSTLY_PODS)), namespace=HOSTILE)
    world.request("ask", "sound", namespace="b")
    phases, counts = [], []
    for seconds in (0, 9, 2, 18):
        world.run(seconds)
        phases.append(world.migrations["b/ask"].phase)
        counts.append(len(events(world)))
    assert counts == [1, 1, 2, 2], "it pauses for 10 s, and for 20 s the next time"
    assert phases[0] is Phase.PLACING, "the other one has moved its pod in the same step"
    said = events(world)
    for (reason, message), pause in zip(said, (10, 20), strict=True):
        assert reason == "SearchTooExpensive"
        assert message.startswith("In backoff: OverBudgetError: it takes more than 4,000,000 operations")
        assert message.endswith(f"The scheduler retries in {pause} s.")
    kinds = [instruction.kind for instruction in world.emitted if isinstance(instruction, CountRecoveryFailure)]
    assert kinds == ["operations", "operations"]
    warned = [instruction for instruction in world.emitted if isinstance(instruction, Warn)]
    assert {warning.namespace for warning in warned} == {HOSTILE}
    assert all("OverBudgetError" in warning.message for warning in warned)
    phase, evicted, seats = world.migrations[KEY].phase, world.evictions, world.view.held.has_seats_of(KEY)
    assert (phase, evicted, seats) == (None, [("sound", False)], False)


def test_a_search_by_choice_is_stopped_at_its_budget_and_pauses_longer_each_time() -> None:
    search, finished = Guarded("a search"), []

    def work() -> list[RecoveryInstruction]:
        for _ in range(5):
            charge(1_000_000)
        finished.append(True)
        return []

    now = 0.0
    for pause in (10, 20, 40):
        warning, count = search.run(work, now)
        assert isinstance(warning, Warn) and "more than 4,000,000 operations" in warning.message
        assert count == CountRecoveryFailure("operations")
        assert search.not_before(now) == now + pause
        assert search.run(work, now + pause - 1) == [], "it pauses"
        now += pause
    assert not finished


def test_a_search_by_choice_that_takes_too_long_is_stopped_and_pauses() -> None:
    readings, finished = count(), []
    search = Guarded("a search", lambda: 3.0 * next(readings))

    def work() -> list[RecoveryInstruction]:
        for _ in range(6):
            charge(CLOCK_EVERY_OPERATIONS)
        finished.append(True)
        return []

    warning, counted = search.run(work, 0.0)
    assert isinstance(warning, Warn) and "it takes more than 5 s" in warning.message
    assert counted == CountRecoveryFailure("time")
    assert search.run(work, 9.0) == [], "it pauses"
    assert not finished


def test_a_migration_whose_step_takes_too_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock of the step stands still until planning begins, and then reads 3 s later each time."""
    world = World(RECOVERY_ENABLED, {"s1/l1": 2})
    world.put("pod", "s1-l1-1", 8, namespace=HOSTILE)
    world.run(1)
    readings = count()
    migrations = world.recovery.migrations
    advance = migrations._advance

    def lasting(tracked: Tracked, now: float) -> None:
        for _ in range(6):
            charge(CLOCK_EVERY_OPERATIONS)
        advance(tracked, now)

    monkeypatch.setattr(migrations, "_clock", lambda: 3.0 * next(readings))
    monkeypatch.setattr(migrations, "_advance", lasting)
    world.request("costly", "pod", namespace=HOSTILE)
    world.run(0)
    ((reason, message),) = events(world)
    assert reason == "SearchTooExpensive" and "it takes more than 5 s" in message
    assert world.migrations[KEY].phase is None
