"""What Migrations are answered while recovery is off: their status says that no pod moves, and why."""

from typing import Final

from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.kube.migrations import Unreadable
from topo_scheduler.recovery.instructions import TellMigration, WriteStatus
from topo_scheduler.recovery.tracked import NEXT_CONDITION, Condition, changed_status, write

REASON: Final = "RecoveryDisabled"
MESSAGE: Final = (
    "recovery is off in the scheduler's configuration: no pod is moved; set recovery.enabled to true in"
    " TopologySchedulerConfig, or delete this Migration"
)

Answer = tuple[WriteStatus, TellMigration]
"""The status to write, and the event beside it."""


def without_recovery(migration: Migration, wall: float) -> Answer | None:
    """Return what reports that recovery is off; None where it is reported already, or the Migration has ended.

    The phase stays: with recovery on, the Migration goes on from there. ``wall`` seconds since the epoch.
    """
    phase = migration.phase
    if phase is not None and phase.over:
        return None
    told = Condition(NEXT_CONDITION[phase], status=False, reason=REASON, message=MESSAGE)
    status = changed_status(migration, wall, message=MESSAGE if phase is None else None, conditions=[told])
    if status is None:
        return None
    fresh = write(migration, status)
    return fresh, TellMigration(fresh.namespace, fresh.name, fresh.uid, True, REASON, MESSAGE)


def malformed(found: Unreadable, wall: float) -> Answer:
    """Return what reports that a Migration can't be read, or is too large. ``wall`` seconds since the epoch."""
    text = f"the object can't be read: {found.message}; delete it and create a valid one"
    told = Condition("Reserved", status=False, reason=found.reason, message=text)
    status = changed_status(Migration(), wall, phase=Phase.FAILED, message=text, conditions=[told])
    assert status is not None
    fresh = WriteStatus(found.namespace, found.name, found.uid, found.version, status)
    return fresh, TellMigration(found.namespace, found.name, found.uid, True, "MigrationFailed", text)
