"""Instructions of recovery: the runner executes them and returns the results."""

from dataclasses import dataclass

from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import MigrationSpec, MigrationStatus
from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import PodRef


@dataclass(frozen=True, slots=True)
class _OfMigration:
    """An instruction about one Migration."""

    namespace: str
    name: str

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class CreateMigration(_OfMigration):
    """Create a Migration. An existing one with that name is as good."""

    spec: MigrationSpec


@dataclass(frozen=True, slots=True)
class WriteStatus(_OfMigration):
    """Replace the status of a Migration, if it is still at this version."""

    uid: str
    version: str
    status: MigrationStatus


@dataclass(frozen=True, slots=True)
class DeleteMigration(_OfMigration):
    """Delete a Migration, if it is still at this version."""

    uid: str
    version: str


@dataclass(frozen=True, slots=True)
class EvictPod:
    """Evict a pod for the Migration with this key and uid; ``force`` deletes it at once."""

    migration: str
    pod: PodRef
    force: bool
    uid: str


@dataclass(frozen=True, slots=True)
class LearnPods:
    """Read pods that an earlier process placed, and give them to the engine.

    ``migration`` is the Migration that waits for them, by namespace and name; empty if none does.
    """

    pods: tuple[PodRef, ...]
    migration: str = ""


@dataclass(frozen=True, slots=True)
class FindNode:
    """Ask the API server whether a node exists that is not listed, although pods are bound to it."""

    name: str


@dataclass(frozen=True, slots=True)
class EmitMigrationEvent(_OfMigration):
    """Emit an event on a Migration."""

    uid: str
    warning: bool
    reason: MigrationReason | Reason
    message: str


@dataclass(frozen=True, slots=True)
class PhaseDuration:
    """Record the duration of a phase in seconds; phase ``total`` is the time from the failure to the end."""

    phase: str
    seconds: float
    cause: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning. ``namespace``: that of a tenant's object which is the cause; its lines have a budget."""

    message: str
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class CountRecoveryFailure:
    """Count a failure for one object by ``kind``; the work on all other objects goes on."""

    kind: str


MigrationRequest = CreateMigration | WriteStatus | DeleteMigration
RecoveryInstruction = (
    MigrationRequest
    | EvictPod
    | LearnPods
    | FindNode
    | EmitMigrationEvent
    | PhaseDuration
    | Warn
    | CountRecoveryFailure
)
