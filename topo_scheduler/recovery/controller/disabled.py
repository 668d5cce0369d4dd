"""Answers to Migrations while recovery is off: their status says that no pod moves, and why."""

from typing import Final

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.kube.writing.migrations import Unreadable
from topo_scheduler.recovery.model.instructions import EmitMigrationEvent, WriteStatus
from topo_scheduler.recovery.model.migration_state import (
    NEXT_CONDITION,
    ConditionUpdate,
    changed_status,
    write,
)

MESSAGE: Final = (
    "recovery is off in the scheduler's configuration: no pod is moved; set recovery.enabled to true in"
    " TopologySchedulerConfig, or delete this Migration"
)

Answer = tuple[WriteStatus, EmitMigrationEvent]
"""The status to write, and its event."""


def without_recovery(migration: Migration, scheduler: str, wall: float) -> Answer | None:
    """Return the answer that recovery is off; None if the status already says so, or the Migration has ended.

    The phase stays: with recovery on, the Migration continues from there, with its cause as the message.
    ``scheduler`` is the name of this scheduler, ``wall`` the time in seconds since the epoch.
    """
    phase = migration.phase
    if phase is not None and phase.over:
        return None
    condition = ConditionUpdate(
        NEXT_CONDITION[phase], status=False, reason=MigrationReason.RECOVERY_DISABLED, message=MESSAGE
    )
    status = changed_status(migration, wall, scheduler=scheduler, message=MESSAGE, conditions=[condition])
    if status is None:
        return None
    return _answer(write(migration, status), MigrationReason.RECOVERY_DISABLED, MESSAGE)


def not_ours(migration: Migration, why: str, scheduler: str, wall: float) -> Answer | None:
    """Return the answer that a Migration belongs to another scheduler, which does not answer; None if it has ended.

    ``why`` is the message; the other arguments are as for `without_recovery`.
    """
    condition = ConditionUpdate(ConditionType.PLACED, status=False, reason=MigrationReason.NOT_OURS, message=why)
    status = changed_status(
        migration, wall, scheduler=scheduler, phase=Phase.FAILED, message=why, conditions=[condition]
    )
    return None if status is None else _answer(write(migration, status), MigrationReason.MIGRATION_FAILED, why)


def malformed(unreadable: Unreadable, scheduler: str, wall: float) -> Answer | None:
    """Return the answer that a Migration can't be read, or is too large.

    None if the status already says so, or if the Migration names another scheduler. If it names none, each scheduler
    answers: none can carry it out. ``scheduler`` is the name of this scheduler, ``wall`` the time in seconds since the
    epoch.
    """
    if unreadable.phase == Phase.FAILED or unreadable.scheduler not in ("", scheduler):
        return None
    text = f"the object can't be read: {unreadable.message}; delete it and create a valid one"
    condition = ConditionUpdate(ConditionType.RESERVED, status=False, reason=unreadable.reason, message=text)
    status = changed_status(
        Migration(), wall, scheduler=scheduler, phase=Phase.FAILED, message=text, conditions=[condition]
    )
    assert status is not None
    write_status = WriteStatus(unreadable.namespace, unreadable.name, unreadable.uid, unreadable.version, status)
    return _answer(write_status, MigrationReason.MIGRATION_FAILED, text)


def _answer(status: WriteStatus, reason: MigrationReason, message: str) -> Answer:
    return status, EmitMigrationEvent(status.namespace, status.name, status.uid, True, reason, message)
