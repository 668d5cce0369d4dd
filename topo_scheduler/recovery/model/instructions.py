"""Instructions of recovery: the runner executes them and returns the results."""

from dataclasses import dataclass
from enum import StrEnum

from topo_scheduler.api.migrations import MigrationSpec, MigrationStatus
from topo_scheduler.scheduling.instructions import PodRef


@dataclass(frozen=True, slots=True)
class CreateMigration:
    """Create a Migration. An existing one with that name is as good."""

    namespace: str
    name: str
    spec: MigrationSpec

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Replace the status of a Migration, if it is still at this version."""

    namespace: str
    name: str
    uid: str
    version: str
    status: MigrationStatus


@dataclass(frozen=True, slots=True)
class DeleteMigration:
    """Delete a Migration, if it is still at this version."""

    namespace: str
    name: str
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
    """Read pods that an earlier process placed, and give them to the engine."""

    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True)
class TellMigration:
    """Emit an event on a Migration."""

    namespace: str
    name: str
    uid: str
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Spent:
    """Record the duration of a phase in seconds; phase ``total`` is the time from the failure to the end."""

    phase: str
    seconds: float
    cause: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log a warning."""

    message: str


@dataclass(frozen=True, slots=True)
class CountRecoveryFailure:
    """Count a failure for one object by ``kind``; the work on all other objects goes on."""

    kind: str


Instruction = (
    CreateMigration
    | WriteStatus
    | DeleteMigration
    | EvictPod
    | LearnPods
    | TellMigration
    | Spent
    | Warn
    | CountRecoveryFailure
)


class WriteOutcome(StrEnum):
    """The result of a write of a Migration."""

    WRITTEN = "written"
    STALE = "stale"
    """The object changed meanwhile, or is gone: the next event of the watch decides."""
    GONE = "gone"
    """The object is gone, and the watch may have reported that before this process knew of the object."""
    FORBIDDEN = "forbidden"
    FAILED = "failed"
