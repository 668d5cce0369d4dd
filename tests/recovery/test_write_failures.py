"""Lost answers, old views, two leaders at once, and missing permissions."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from tests.recovery.world import World, copy_of
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Migration, MigrationStatus, MigrationWrite, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.model.instructions import (
    CreateMigration,
    EmitMigrationEvent,
    EvictPod,
    PhaseDuration,
    RecoveryInstruction,
    Warn,
    WriteStatus,
)

FORCED = RecoverySpec(enabled=True, force_delete=True)
LEAVES = {"s1/l1": 4, "s1/l2": 4}


def _failed(world: World) -> str:
    world.gang("g", 3)
    world.run()
    lost = world.nodes_of("g")["g-1"]
    world.fail(lost)
    return lost


def _healed(world: World, lost: str) -> None:
    assert world.phases() == [Phase.DONE]
    where = world.nodes_of("g")
    assert len(where) == 3 and lost not in where.values()
    assert {name for name, _ in world.evictions} == {"g-1"}
    world.check()


class Lossy(World):
    """An API server whose answers to writes of a status get lost; the watch reports what became of them, or not."""

    watch_works = True

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if not isinstance(instruction, WriteStatus):
            super().carry_out(instruction)
            return
        written = self._patch(instruction)
        self.recovery.wrote(instruction, MigrationWrite.FAILED, "no answer", None, self.now)
        if written is not None and self.watch_works:
            self.recovery.migration_seen(written, self.now)


def test_answers_that_get_lost_cost_time_only() -> None:
    world = Lossy(FORCED, LEAVES)
    lost = _failed(world)
    world.run(60)
    _healed(world, lost)


def test_without_watch_and_answers_it_stands_still_and_writes_no_storm() -> None:
    world = Lossy(FORCED, LEAVES)
    _failed(world)
    world.watch_works = False
    before = world.revision
    world.run(600, step=5)
    assert world.revision - before <= 3, "its view is old, so what it writes is refused"
    assert not world.evictions, "nothing is evicted on what was not confirmed"
    world.watch_works = True
    world.recovery.migration_seen(copy_of(world.one()), world.now)
    world.run(120)
    assert world.phases() == [Phase.DONE]


def test_events_that_come_again_change_nothing() -> None:
    world = World(FORCED, LEAVES)
    lost = _failed(world)
    views: list[Migration] = []
    for _ in range(40):
        world.run(0.5, step=0.5)
        views += [copy_of(migration) for migration in world.migrations.values()]
    _healed(world, lost)
    evictions, revision = list(world.evictions), world.revision
    for view in views:
        world.recovery.migration_seen(view, world.now)
        world.run(1)
    assert (world.evictions, world.revision) == (evictions, revision)
    _healed(world, lost)


class Refusing(World):
    """An API server that takes no Migrations, and when it was asked for some."""

    def __init__(self, *more: Any) -> None:
        super().__init__(*more)
        self.attempts: list[float] = []

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if not isinstance(instruction, CreateMigration):
            super().carry_out(instruction)
            return
        self.attempts.append(self.now)
        self.recovery.wrote(instruction, MigrationWrite.FAILED, "no answer", None, self.now)


def test_a_migration_that_is_refused_is_tried_at_growing_intervals() -> None:
    world = Refusing(FORCED, LEAVES)
    _failed(world)
    world.run(60, step=0.5)
    assert [after - before for before, after in pairwise(world.attempts)][:4] == [2, 4, 8, 16]


@pytest.mark.parametrize("late", range(1, 25, 3))
def test_a_former_leader_that_wakes_up_late_does_no_harm(late: int) -> None:
    world = World(FORCED, LEAVES)
    lost = _failed(world)
    world.run(10.5, step=0.5)
    # What it had decided when it fell asleep.
    asleep, engine = world.recovery, world.d
    world.start()
    world.run(late * 0.5, step=0.5)
    leading, world.recovery = world.recovery, asleep
    for instruction in asleep.step(world.now):
        if isinstance(instruction, WriteStatus | EvictPod):
            world.carry_out(instruction)
    world.recovery = leading
    assert engine is not world.d
    for pod in list(world.pods):
        world.tell_pod(pod)
    for migration in world.migrations.values():
        world.recovery.migration_seen(copy_of(migration), world.now)
    world.run(40)
    _healed(world, lost)


class Forbidding(World):
    """An API server that allows no evictions."""

    tries = 0

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if isinstance(instruction, EvictPod):
            Forbidding.tries += 1
            self.recovery.migrations.evicted(
                instruction.migration,
                instruction.pod.uid,
                reason=MigrationReason.FORBIDDEN,
                message='pods "g-1" is forbidden: cannot create resource "pods/eviction"',
                now=self.now,
            )
        else:
            super().carry_out(instruction)


def test_without_the_right_to_evict_it_says_so_once_and_asks_seldom() -> None:
    world = Forbidding(FORCED, LEAVES)
    _failed(world)
    Forbidding.tries = 0
    world.run(3600, step=10)
    assert world.condition("Evicted")[:2] == ("False", "Forbidden")
    assert Forbidding.tries <= 22
    assert (
        len(
            [
                instruction
                for instruction in world.emitted
                if isinstance(instruction, EmitMigrationEvent) and instruction.reason == "Forbidden"
            ]
        )
        == 1
    )


class Unwritable(World):
    """An API server that lets no client write the status of Migrations."""

    asked_status = 0

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if isinstance(instruction, WriteStatus):
            Unwritable.asked_status += 1
            self.recovery.wrote(instruction, MigrationWrite.FORBIDDEN, "forbidden", None, self.now)
        else:
            super().carry_out(instruction)


def test_without_the_right_to_write_a_status_nothing_is_begun() -> None:
    world = Unwritable(FORCED, LEAVES)
    _failed(world)
    Unwritable.asked_status = 0
    world.run(3600, step=10)
    assert not world.evictions
    assert Unwritable.asked_status <= 22
    assert any(
        isinstance(instruction, Warn) and "is not continued" in instruction.message for instruction in world.emitted
    )


class Altering(World):
    """An API server with a mutating webhook that has the last say on the phase of Migrations."""

    writes = 0

    def __init__(self, *more: Any, phase: str) -> None:
        super().__init__(*more)
        self.phase = phase

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if not isinstance(instruction, WriteStatus):
            super().carry_out(instruction)
            return
        self.writes += 1
        status = msgspec.structs.replace(instruction.status, phase=self.phase) if self.phase else MigrationStatus()
        written = self._patch(replace(instruction, status=status))
        self.recovery.wrote(instruction, MigrationWrite.WRITTEN, "", written, self.now)


@pytest.mark.parametrize("phase", ["", "Planned"])
def test_a_status_that_a_webhook_changes_is_written_at_growing_intervals(phase: str) -> None:
    world = Altering(FORCED, LEAVES, phase=phase)
    _failed(world)
    world.run(600, step=0.5)
    assert not world.evictions
    assert world.writes <= 20
    reported = [
        instruction
        for instruction in world.emitted
        if isinstance(instruction, EmitMigrationEvent) and instruction.reason == "StatusNotWritten"
    ]
    assert [event.message for event in reported] == ["an admission webhook changes its status"]


class Stale(World):
    """An API server with a webhook that answers each write of a status with 409."""

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        if isinstance(instruction, WriteStatus):
            self.recovery.wrote(instruction, MigrationWrite.STALE, "409: the webhook says no", None, self.now)
        else:
            super().carry_out(instruction)


def test_a_migration_whose_writes_always_fail_says_why() -> None:
    world = Stale(FORCED, LEAVES)
    _failed(world)
    world.run(600, step=1)
    reported = [
        instruction
        for instruction in world.emitted
        if isinstance(instruction, EmitMigrationEvent) and instruction.reason == "StatusNotWritten"
    ]
    assert [event.message for event in reported] == ["409: the webhook says no"]


def test_a_migration_deleted_while_no_watch_was_open_gives_its_nodes_back() -> None:
    world = World(FORCED, LEAVES)
    _failed(world)
    world.controllers_stand = True
    world.run(15)
    assert world.phases() == [Phase.PLACING] and world.d.engine.preempting.replacements
    world.migrations.clear()
    world.d.drop_node("s1-l2-4")
    (deleted,) = world.recovery.migrations.unlisted([])
    world.recovery.migrations.gone(*deleted[:2])
    world.recovery.forget_unknown_nodes()
    assert not world.d.engine.preempting.replacements
    assert "s1-l2-4" not in world.recovery.detection.names()


def test_what_ends_a_migration_is_reported_once_however_often_its_write_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events, log and metrics report what the object says."""
    world = World(FORCED, LEAVES)
    world.gang("g", 3)
    world.run()
    before = world.pods["g-0"]
    world.controllers_stand = True
    world.request("please", "g-0")
    world.run(3)
    assert world.phases() == [Phase.PLACING]
    world.emitted.clear()
    monkeypatch.setattr(world, "_patch", lambda _: None)
    world.replace(before)
    world.tell_pod("g-0")
    world.run(50)
    assert world.phases() == [Phase.PLACING]
    ends = (EmitMigrationEvent, PhaseDuration)
    reported = [said for said in world.emitted if isinstance(said, ends)]
    assert [said.reason for said in reported if isinstance(said, EmitMigrationEvent)] == ["StatusNotWritten"]
    assert len(reported) == 1
    world.emitted.clear()
    monkeypatch.undo()
    world.run(100)
    assert world.phases() == [Phase.DONE]
    reported = [said for said in world.emitted if isinstance(said, ends)]
    events = [said.reason for said in reported if isinstance(said, EmitMigrationEvent)]
    phases = [said.phase for said in reported if isinstance(said, PhaseDuration)]
    assert (events, phases) == (["MigrationDone"], ["Placing", "total"])


def test_the_event_of_the_end_comes_also_if_only_the_watch_reports_it() -> None:
    world = Lossy(FORCED, LEAVES)
    lost = _failed(world)
    world.run(200)
    _healed(world, lost)
    events = [said.reason for said in world.emitted if isinstance(said, EmitMigrationEvent)]
    assert events.count(MigrationReason("MigrationDone")) == 1
