"""Migrations without number: those that would take more memory than their namespace may have fail, others don't."""

import pytest

from tests.recovery.world import World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model import migration_memory as module
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent


def full(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(module, "MAX_OF_NAMESPACE_BYTES", 20_000)
    world = World(RecoverySpec(enabled=True, dry_run=True), {"s1/l1": 4})
    for name in ("a", "b", "c"):
        world.gang(name, 1)
    world.run()
    return world


def failed(world: World) -> set[str]:
    return {key for key, migration in world.migrations.items() if migration.phase is Phase.FAILED}


def test_a_migration_beyond_what_its_namespace_may_have_fails_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    world = full(monkeypatch)
    world.request("small", "a-0")
    world.request("large", "b-0", *(f"p{number}" for number in range(200)))
    world.request("other", "c-0")
    world.run(5)
    assert failed(world) == {"default/large"}
    (condition,) = world.migrations["default/large"].status.conditions
    assert condition.reason == "TooManyMigrations"
    assert "the Migrations of namespace default that are not over would take 3" in condition.message
    assert "of 20,000 at most; delete some of them" in condition.message
    assert any(
        isinstance(instruction, EmitMigrationEvent) and instruction.message == condition.message
        for instruction in world.emitted
    )
    assert world.recovery.migrations.context.tracked.keys() == {"default/small", "default/other"}


def test_one_that_is_over_makes_room_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    world = full(monkeypatch)
    world.request("first", "a-0", cause="x" * 16_000)
    world.run(2)
    world.request("second", "b-0", cause="x" * 16_000)
    world.run(2)
    assert failed(world) == {"default/second"}
    world.cancel("default/first")
    world.request("third", "b-0", cause="x" * 16_000)
    world.run(2)
    assert failed(world) == {"default/second"}
    world.cancel("default/third")
    memory = world.recovery.migrations._memory
    assert not memory._bytes and not memory._of_namespace and not memory._total


def test_one_that_grows_by_an_edit_fails_too(monkeypatch: pytest.MonkeyPatch) -> None:
    world = full(monkeypatch)
    world.request("first", "a-0")
    world.run(2)
    world.edit("default/first", lambda migration: setattr(migration.spec, "cause", "x" * 30_000))
    world.run(2)
    assert failed(world) == {"default/first"} and not world.recovery.migrations.context.tracked.keys()


def test_namespaces_with_little_are_not_refused_for_those_with_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 20_000)
    monkeypatch.setattr(module, "GUARANTEED_BYTES", 10_000)
    world = full(monkeypatch)
    world.request("one", "a-0", namespace="evil", cause="x" * 16_000)
    world.request("two", "a-0", namespace="worse", cause="x" * 6_000)
    world.request("small", "b-0")
    world.request("more", "a-0", namespace="evil", cause="x")
    events = [
        instruction for instruction in world.recovery.step(world.now) if isinstance(instruction, EmitMigrationEvent)
    ]
    assert {event.name for event in events if "would take" in event.message} == {"more"}
