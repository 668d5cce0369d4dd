"""The kind ``Migration``: the durable record of a move of pods of one workload to other nodes.

The spec has the pods and the reason, and may be written by users or the scheduler. The status has the plan and its
progress. A scheduler that starts after a crash needs nothing else to continue.
"""

from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, TypeVar

from msgspec import field

from topo_scheduler.api.base import Base, Value
from topo_scheduler.api.objects import ObjectMeta

P = TypeVar("P")

GROUP: Final = "topology.scheduler"
VERSION: Final = "v1alpha1"
PLURAL: Final = "migrations"
KIND: Final = "Migration"
DEFINITION: Final = f"{PLURAL}.{GROUP}"

MAX_PODS: Final = 4_096
"""Entries of ``spec.pods``, and of ``status.moves``, ``status.others`` and ``status.leftNodes``."""
MAX_AVOIDED_NODES: Final = 1_024
"""Entries of ``spec.avoid``."""
MAX_NAME_CHARACTERS: Final = 253
MAX_UID_CHARACTERS: Final = 128
MAX_TEXT_CHARACTERS: Final = 4_096
"""Characters of each other string of a spec."""
MAX_OWNERS: Final = 64
"""Entries of ``status.owners``."""
MAX_SEAT_DEVICES: Final = 256
"""Entries of ``devices`` of a move, as many as a pod has devices at most."""
MAX_API_VERSION_CHARACTERS: Final = 317
"""Characters of an API group and version."""


class Phase(StrEnum):
    """Progress of a Migration. One without a phase is not planned yet."""

    PLANNED = "Planned"
    RESERVING = "Reserving"
    EVICTING = "Evicting"
    PLACING = "Placing"
    DONE = "Done"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def over(self) -> bool:
        """Whether the Migration has ended."""
        return self in (Phase.DONE, Phase.FAILED, Phase.CANCELLED)

    @property
    def running(self) -> bool:
        """Whether the scheduler holds places on target nodes for it."""
        return self in (Phase.RESERVING, Phase.EVICTING, Phase.PLACING)


class MigrationWrite(StrEnum):
    """The result of a write of a Migration."""

    WRITTEN = "written"
    STALE = "stale"
    """The object was changed or deleted, or already exists: the next event of the watch decides."""
    GONE = "gone"
    """The object does not exist, which the watch may have reported before this process knew of the object."""
    FORBIDDEN = "forbidden"
    FAILED = "failed"


class Cause(StrEnum):
    """``spec.reason``: why pods move."""

    NOT_READY = "NodeNotReady"
    UNREACHABLE = "NodeUnreachable"
    DELETED = "NodeDeleted"
    MAINTENANCE = "NodeMaintenance"
    GPUS = "GPUsUnhealthy"
    CONDITION = "NodeCondition"
    LINKS = "LinksDegraded"
    DOMAIN = "DomainFailed"
    REFUSED = "PodsRefused"
    CRASHING = "PodsCrashLooping"
    SCALE_DOWN = "ScaleDown"
    PENDING_GANG = "PendingGang"
    """Holds places for a pending gang while the pods in ``status.others`` leave them; it moves no pods itself."""
    PENDING_POD = "PendingPod"
    """The same for a pending pod that asks for a MIG slot: it holds the slot."""
    DEFRAGMENTATION = "Defragmentation"
    IMPROVEMENT = "Improvement"
    REQUESTED = "Requested"

    @property
    def of_node(self) -> bool:
        """Whether the Migration ends when the nodes are healthy again."""
        return not self.by_choice and self is not Cause.REQUESTED

    @property
    def by_choice(self) -> bool:
        """Whether the move is voluntary: nothing failed and no user requested it, so it must be worth its cost."""
        return self.holds_places or self in (Cause.DEFRAGMENTATION, Cause.IMPROVEMENT)

    @property
    def holds_places(self) -> bool:
        """Whether it holds places for pending pods while other pods leave these by Migrations of their own."""
        return self in (Cause.PENDING_GANG, Cause.PENDING_POD)

    @property
    def moves_others(self) -> bool:
        """Whether the scheduler may move other pods first if there is no room."""
        return not self.by_choice and self is not Cause.SCALE_DOWN

    @property
    def dead(self) -> bool:
        """Whether the node no longer responds."""
        return self in (Cause.NOT_READY, Cause.UNREACHABLE, Cause.DELETED, Cause.DOMAIN)


_PHASES: Final = {phase.value: phase for phase in Phase}
_CAUSES: Final = {cause.value: cause for cause in Cause}


class MigrationPod(Value, frozen=True):
    """``spec.pods[]``. Without a uid, the pod that has the name at the time of planning."""

    name: str = ""
    uid: str = ""


class MigrationSpec(Base):
    """``spec`` of a Migration. ``cause`` is for people, ``reason`` for programs, ``since`` is the start of the cause.

    ``scheduler_name`` is the scheduler that the Migration is for; empty for the one whose name the pods carry.
    ``avoid`` has nodes and domains to which none of the pods may go, in addition to the nodes that they leave.
    ``makes_room_for`` is namespace and name of the Migration that waits for this one. ``leave_spares``: pods leave
    spare nodes that were lent to them, for that Migration, and no places are held for them.
    """

    cause: str = ""
    reason: str = ""
    since: str = ""
    scheduler_name: str = ""
    makes_room_for: str = ""
    leave_spares: bool = False
    avoid: list[str] = []  # noqa: RUF012
    pods: list[MigrationPod] = []  # noqa: RUF012 - msgspec copies defaults


class SeatDevice(Value, frozen=True):
    """A device that is held with a place, as ResourceSlices name it.

    ``consumed_capacity`` are the amounts that a share of it takes, as quantities; None for the whole device.
    """

    driver: str = ""
    pool: str = ""
    device: str = ""
    consumed_capacity: dict[str, str] | None = None

    @property
    def id(self) -> tuple[str, str, str]:
        """Identifies the device: driver, pool and name."""
        return self.driver, self.pool, self.device


class Move(Value, frozen=True):
    """``status.moves[]``: one pod, the node that it leaves, and the node held for the pod that replaces it.

    ``workload`` is the identity of its gang or its own. ``controller`` is kind and name of the object that makes the
    replacement, ``index`` the number that the controller gives it. ``series`` is the sequence of such numbers: a gang
    may have several, such as one for each Job. Objects of earlier versions have none. ``requests`` has the resources
    held on the target node: milli-CPU, bytes, counts. ``to`` is empty until the scheduler has found a node.
    ``replacement`` is uid, and ``replacement_name`` the name, of the pod that took the place. ``devices`` are held with
    it, if the pod has claims.
    """

    pod: str = ""
    uid: str = ""
    workload: str = ""
    controller: str = ""
    gang: bool = False
    index: int | None = None
    series: str | None = None
    priority: int = 0
    requests: dict[str, int] = {}  # noqa: RUF012
    from_: str = field(name="from", default="")
    to: str = ""
    replacement: str = ""
    replacement_name: str = ""
    devices: list[SeatDevice] = []  # noqa: RUF012


class OtherPod(Value, frozen=True):
    """``status.others[]``. ``to`` and ``devices`` are the place of its replacement, for a MIG slot."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    to: str = ""
    devices: list[SeatDevice] = []  # noqa: RUF012


class MigrationOwner(Value, frozen=True):
    """``status.owners[]``."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""

    @property
    def fits(self) -> bool:
        """Whether the API server accepts the entry: tenants can write anything into the owner reference."""
        names = max(len(self.kind), len(self.name)) <= MAX_NAME_CHARACTERS and len(self.uid) <= MAX_UID_CHARACTERS
        return names and len(self.api_version) <= MAX_API_VERSION_CHARACTERS


class MigrationCondition(Value, frozen=True):
    """``status.conditions[]``."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class MigrationStatus(Base):
    """``status`` of a Migration. ``from_nodes`` and ``to_nodes`` are for people; ``times`` has the start of each phase.

    ``policy`` is the request of the gang: ``replace``, ``restart-gang`` or ``shrink``; ``give-way`` if pods leave nodes
    that were lent to them. ``others`` are pods that must move too, by Migrations of their own. The scheduler evicts no
    pod before it holds places for all of them. They are in the status, which only the scheduler writes, as they may be
    of other namespaces.

    ``owners`` are the topmost owners of the pods. Once the pods are gone, a later leader knows them only from here.
    Objects of earlier versions have none.

    ``scheduler_name`` is the scheduler that writes this status; no other one touches the Migration any more.

    ``left_nodes`` are the nodes that pods left in the first attempt, if ``moves`` are those of a second one.
    """

    phase: str = ""
    scheduler_name: str = ""
    policy: str = ""
    message: str = ""
    from_nodes: str = ""
    to_nodes: str = ""
    moves: list[Move] = []  # noqa: RUF012
    conditions: list[MigrationCondition] = []  # noqa: RUF012
    times: dict[str, str] = {}  # noqa: RUF012
    others: list[OtherPod] = []  # noqa: RUF012
    owners: list[MigrationOwner] = []  # noqa: RUF012
    left_nodes: list[str] = []  # noqa: RUF012


class Migration(Base):
    """A Migration."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)
    spec: MigrationSpec = field(default_factory=MigrationSpec)
    status: MigrationStatus = field(default_factory=MigrationStatus)

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def phase(self) -> Phase | None:
        """Current phase; None for a new Migration or an invalid status, which the scheduler plans again."""
        return _PHASES.get(self.status.phase)

    @property
    def running(self) -> bool:
        """Whether the scheduler holds places on target nodes for it."""
        return self.phase is not None and self.phase.running

    @property
    def scheduler(self) -> str:
        """Name of the scheduler that wrote its status, or else of the one that its spec names; empty for neither."""
        return self.status.scheduler_name or self.spec.scheduler_name

    @property
    def shrinks(self) -> bool:
        """Whether no pods replace the moved ones."""
        return self.status.policy in ("shrink", "give-way")

    @property
    def returns_nodes(self) -> bool:
        """Whether pods leave spare nodes that were lent to them, for another Migration."""
        return self.spec.leave_spares and bool(self.spec.makes_room_for)

    @property
    def yields(self) -> bool:
        """Whether it ends if a node of its pods fails: it is voluntary, and has evicted no pod yet."""
        return self.cause.by_choice and self.phase not in (Phase.EVICTING, Phase.PLACING)

    @property
    def waits(self) -> bool:
        """Whether it is a request that has no places yet: if a node of its pods dies, recovery moves them instead."""
        return self.cause is Cause.REQUESTED and self.phase in (None, Phase.PLANNED)

    def named(self, pods: Iterable[P], name_and_uid: Callable[[P], tuple[str, str]]) -> list[P]:
        """Return those pods that the spec names; ``name_and_uid`` returns name and uid of a pod."""
        uids = {pod.uid for pod in self.spec.pods if pod.uid}
        names = {pod.name for pod in self.spec.pods if not pod.uid}
        keys = ((pod, *name_and_uid(pod)) for pod in pods)
        return [pod for pod, name, uid in keys if uid in uids or name in names]

    @property
    def cause(self) -> Cause:
        """The cause, or ``Requested`` for an unknown reason."""
        return _CAUSES.get(self.spec.reason, Cause.REQUESTED)
