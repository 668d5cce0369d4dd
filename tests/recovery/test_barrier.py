"""One Migration, pod or search of recovery that raises stops no other."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.recovery.world import World
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.core import healing
from topo_scheduler.recovery.core.migrations import Migrations
from topo_scheduler.recovery.model.instructions import CountRecoveryFailure, EmitMigrationEvent, Warn
from topo_scheduler.recovery.optimisation.defragmentation import Defragmenting
from topo_scheduler.state.operation_budget import OverBudgetError

LEAVES = {"s1/l1": 4, "s1/l2": 4}
ERRORS = [ValueError("odd"), RecursionError(), MemoryError(), OverBudgetError("operations", "too much")]


@pytest.fixture
def world() -> World:
    """Two gangs of one pod each, on nodes of their own."""
    cluster = World(RecoverySpec(enabled=True, debounce=5, reservation_timeout=60), LEAVES)
    for name in ("odd", "sound"):
        cluster.gang(name, 1)
    cluster.run()
    return cluster


def node_of(world: World, gang: str) -> str:
    """Return the node of a gang's only pod, that of the newest where one is being deleted."""
    pods = [pod for pod in world.pods.values() if pod.metadata.name.startswith(gang)]
    pods.sort(key=lambda pod: pod.metadata.deletion_timestamp is not None)
    return pods[0].spec.node_name


def run(world: World, seconds: int) -> None:
    """Let time pass; pods that were evicted end at once."""
    for _ in range(seconds):
        world.run(1)
        for uid in [uid for uid, pod in world.pods.items() if pod.metadata.deletion_timestamp]:
            world.finish_pod(uid)
    world.run()


def kinds(world: World) -> list[str]:
    return [instruction.kind for instruction in world.emitted if isinstance(instruction, CountRecoveryFailure)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_a_migration_that_raises_pauses_and_the_others_go_on(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    advance: Callable[..., None] = Migrations._advance

    def raising(self: Migrations, known: Any, now: float) -> None:
        if any(pod.uid.startswith("odd") for pod in known.migration.spec.pods):
            raise error
        advance(self, known, now)

    monkeypatch.setattr(Migrations, "_advance", raising)
    before = {name: node_of(world, name) for name in ("odd", "sound")}
    for node in before.values():
        world.fail(node, ready="False")
    run(world, 14)
    assert node_of(world, "sound") not in ("", before["sound"])
    assert len(kinds(world)) == 1, "it pauses"
    events = [
        instruction
        for instruction in world.emitted
        if isinstance(instruction, EmitMigrationEvent) and instruction.message.startswith("In backoff")
    ]
    assert [event.reason for event in events] == [
        "SchedulerError" if kinds(world) == ["fault"] else "SearchTooExpensive"
    ]
    run(world, 120)
    assert 3 <= len(kinds(world)) <= 5, "and for longer each time"
    monkeypatch.undo()
    run(world, 600)
    assert node_of(world, "odd") not in ("", before["odd"])


def test_a_pod_of_a_failed_node_that_can_not_be_looked_at_is_left_and_the_others_are_moved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = healing._moves

    def raising(pod: Any, cause: Any) -> bool:
        if pod.member.name.startswith("odd"):
            raise KeyError("odd")
        return moves(pod, cause)

    monkeypatch.setattr(healing, "_moves", raising)
    before = {name: node_of(world, name) for name in ("odd", "sound")}
    for node in before.values():
        world.fail(node, ready="False")
    run(world, 30)
    assert node_of(world, "sound") not in ("", before["sound"])
    assert node_of(world, "odd") == before["odd"]
    assert kinds(world) == ["fault"]


def test_a_migration_that_can_not_be_taken_over_is_left_and_the_others_are_carried_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Callable[..., None] = Migrations.seen

    def raising(self: Migrations, migration: Any, now: float) -> None:
        if any(pod.uid.startswith("odd") for pod in migration.spec.pods):
            raise RecursionError
        seen(self, migration, now)

    monkeypatch.setattr(Migrations, "seen", raising)
    before = node_of(world, "sound")
    for name in ("odd", "sound"):
        world.fail(node_of(world, name), ready="False")
    run(world, 30)
    assert node_of(world, "sound") not in ("", before)


def test_a_search_by_choice_that_raises_pauses_and_failures_are_healed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Defragmenting, now: float) -> Any:
        raise IndexError("no such row")

    monkeypatch.setattr(Defragmenting, "step", broken)
    before = node_of(world, "sound")
    world.fail(before, ready="False")
    run(world, 60)
    assert node_of(world, "sound") not in ("", before)
    assert 1 <= len(kinds(world)) <= 4
    warned = [
        instruction.message
        for instruction in world.emitted
        if isinstance(instruction, Warn) and "recovery continues" in instruction.message
    ]
    assert warned[0].startswith("Defragmenting of recovery: IndexError: no such row")


def test_thousands_of_migrations_are_tried_a_few_in_a_step_and_all_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter(range(1_000_000))
    world = World(RecoverySpec(enabled=True), LEAVES, clock=lambda: 0.004 * next(seconds))
    world.gang("sound", 1)
    world.run()
    tried: list[list[str]] = []
    monkeypatch.setattr(Migrations, "_advance", lambda self, known, now: tried[-1].append(known.migration.key))
    for number in range(50):
        world.request(f"m{number:02}", "sound-0")
    for _ in range(40):
        tried.append([])
        world.recovery.step(world.now)
    assert max(map(len, tried)) <= 4
    assert world.recovery.next_due() is not None
    first = [key for keys in tried for key in keys][:50]
    assert len(set(first)) == 50, "each once before the first is tried again"
