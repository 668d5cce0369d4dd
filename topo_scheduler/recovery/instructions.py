"""What recovery wants done: the runner carries these out and feeds the results back."""

from dataclasses import dataclass
from enum import StrEnum

from topo_scheduler.api.migrations import MigrationSpec, MigrationStatus
from topo_scheduler.scheduling.instructions import PodRef


@dataclass(frozen=True, slots=True)
class CreateMigration:
    """Create a Migration. One of that name that is there already is as good."""

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
    """Evict a pod for a Migration; ``force`` deletes it at once."""

    migration: str
    pod: PodRef
    force: bool


@dataclass(frozen=True, slots=True)
class LearnPods:
    """Read pods that an earlier process placed, and tell the engine of them."""

    pods: tuple[PodRef, ...]


@dataclass(frozen=True, slots=True)
class TellMigration:
    """Write an event on a Migration."""

    namespace: str
    name: str
    uid: str
    warning: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Spent:
    """A phase of a Migration took so many seconds; with phase ``total`` all of it, from the failure to the end."""

    phase: str
    seconds: float
    cause: str
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class Warn:
    """Log it."""

    message: str


@dataclass(frozen=True, slots=True)
class CountRecoveryFailure:
    """Something failed for one Migration or object, and everything else goes on: count it by ``kind``."""

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
    """How a write of a Migration ended."""

    WRITTEN = "written"
    STALE = "stale"
    """It changed meanwhile, or is gone: what the watch tells next decides."""
    GONE = "gone"
    """It is gone, and the watch may have told that before this process knew it."""
    FORBIDDEN = "forbidden"
    FAILED = "failed"
