"""The kind ``Migration``: the durable record of pods of one workload that go from some nodes to others.

The spec says which pods and why, whoever wrote it; the status what was planned and how far it is. Nothing else is
needed to go on with it: who comes after a crash reads it here.
"""

from enum import StrEnum
from typing import Final

from msgspec import field

from topo_scheduler.api.base import Base, Value
from topo_scheduler.api.objects import ObjectMeta

GROUP: Final = "topology.scheduler"
VERSION: Final = "v1alpha1"
PLURAL: Final = "migrations"
KIND: Final = "Migration"
DEFINITION: Final = f"{PLURAL}.{GROUP}"

MOST_PODS: Final = 4_096
"""Entries of ``spec.pods``, and of ``status.moves`` and ``status.others``."""
MOST_AVOIDED: Final = 1_024
"""Entries of ``spec.avoid``."""
MOST_NAME_CHARACTERS: Final = 253
MOST_UID_CHARACTERS: Final = 128
MOST_TEXT_CHARACTERS: Final = 4_096
"""Characters of each other string of a spec."""
MOST_OWNERS: Final = 64
"""Entries of ``status.owners``."""
MOST_API_VERSION_CHARACTERS: Final = 317
"""Of a group and a version."""


class Phase(StrEnum):
    """How far a Migration is. What has no phase yet is to be planned."""

    PLANNED = "Planned"
    RESERVING = "Reserving"
    EVICTING = "Evicting"
    PLACING = "Placing"
    DONE = "Done"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def over(self) -> bool:
        """Whether nothing more is done."""
        return self in (Phase.DONE, Phase.FAILED, Phase.CANCELLED)

    @property
    def running(self) -> bool:
        """Whether seats are held for it."""
        return self in (Phase.RESERVING, Phase.EVICTING, Phase.PLACING)


class Cause(StrEnum):
    """``spec.reason``: why pods are moved."""

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
    """Holds seats for a gang that waits while ``status.others`` leave them; it moves nobody itself."""
    DEFRAGMENTATION = "Defragmentation"
    IMPROVEMENT = "Improvement"
    REQUESTED = "Requested"

    @property
    def of_node(self) -> bool:
        """Whether it is over when the nodes are well again."""
        return not self.by_choice and self is not Cause.REQUESTED

    @property
    def by_choice(self) -> bool:
        """Whether nothing failed and nobody asked: it is done because it is worth it, or not at all."""
        return self in (Cause.PENDING_GANG, Cause.DEFRAGMENTATION, Cause.IMPROVEMENT)

    @property
    def moves_others(self) -> bool:
        """Whether it is reason enough to move other pods first, where there is no room."""
        return not self.by_choice and self is not Cause.SCALE_DOWN

    @property
    def dead(self) -> bool:
        """Whether nothing can be expected of the node."""
        return self in (Cause.NOT_READY, Cause.UNREACHABLE, Cause.DELETED, Cause.DOMAIN)


class MigrationPod(Value, frozen=True):
    """``spec.pods[]``. Without a uid, whichever pod has the name when it is planned."""

    name: str = ""
    uid: str = ""


class MigrationSpec(Base):
    """``spec`` of a Migration. ``cause`` for people, ``reason`` for machines, ``since`` when what caused it began.

    ``avoid`` nodes and domains to which none of the pods may go, beside the nodes they leave; ``makes_room_for``
    namespace and name of the Migration that waits for this one; ``give_way``: for that one pods leave nodes that were
    lent to them, and no seats are held.
    """

    cause: str = ""
    reason: str = ""
    since: str = ""
    makes_room_for: str = ""
    give_way: bool = False
    avoid: list[str] = []  # noqa: RUF012
    pods: list[MigrationPod] = []  # noqa: RUF012 - msgspec copies defaults


class Move(Value, frozen=True):
    """``status.moves[]``: one pod, the node it leaves and the seat that is held for the pod that replaces it.

    ``workload`` identity of its gang or its own, ``controller`` kind and name of what makes the replacement, ``index``
    the number that the controller gives it. ``requests`` what the seat holds, by resource: milli-CPU, bytes, counts.
    ``to`` is empty while no seat was found, ``replacement`` uid and name of the pod that took it.
    """

    pod: str = ""
    uid: str = ""
    workload: str = ""
    controller: str = ""
    gang: bool = False
    index: int | None = None
    priority: int = 0
    requests: dict[str, int] = {}  # noqa: RUF012
    from_: str = field(name="from", default="")
    to: str = ""
    replacement: str = ""
    replacement_name: str = ""


class OtherPod(Value, frozen=True):
    """``status.others[]``."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class MigrationOwner(Value, frozen=True):
    """``status.owners[]``."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""

    @property
    def fits(self) -> bool:
        """Whether the API server takes it: tenants can write anything into the reference that it comes from."""
        names = max(len(self.kind), len(self.name)) <= MOST_NAME_CHARACTERS and len(self.uid) <= MOST_UID_CHARACTERS
        return names and len(self.api_version) <= MOST_API_VERSION_CHARACTERS


class MigrationCondition(Value, frozen=True):
    """``status.conditions[]``."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class MigrationStatus(Base):
    """``status`` of a Migration. ``from_nodes`` and ``to_nodes`` for people; ``times`` when each phase began.

    ``policy`` what the gang asked for: ``replace``, ``restart-gang`` or ``shrink``; ``give-way`` where pods leave what
    was lent to them. ``others`` pods that must move as well, by Migrations of their own: nobody is evicted before all
    of them have seats. They stand here, where only the scheduler writes, as they may be of other namespaces.
    ``owners`` topmost owners of the pods: once these are gone, a later leader has nothing else to know them by. Objects
    of earlier versions have none.
    """

    phase: str = ""
    policy: str = ""
    message: str = ""
    from_nodes: str = ""
    to_nodes: str = ""
    moves: list[Move] = []  # noqa: RUF012
    conditions: list[MigrationCondition] = []  # noqa: RUF012
    times: dict[str, str] = {}  # noqa: RUF012
    others: list[OtherPod] = []  # noqa: RUF012
    owners: list[MigrationOwner] = []  # noqa: RUF012


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
        """How far it is; None for one that is new, or whose status somebody spoiled: it is planned again."""
        return next((phase for phase in Phase if phase == self.status.phase), None)

    @property
    def shrinks(self) -> bool:
        """Whether nobody takes the place of the pods."""
        return self.status.policy in ("shrink", "give-way")

    @property
    def gives_way(self) -> bool:
        """Whether pods leave nodes that were lent to them, for another Migration."""
        return self.spec.give_way and bool(self.spec.makes_room_for)

    @property
    def yields(self) -> bool:
        """Whether it ends when a node fails on which its pods are: it is by choice, and has evicted nobody."""
        return self.cause.by_choice and self.phase not in (Phase.EVICTING, Phase.PLACING)

    def names(self, name: str, uid: str) -> bool:
        """Whether the spec names a pod."""
        return any(pod.uid == uid if pod.uid else pod.name == name for pod in self.spec.pods)

    @property
    def cause(self) -> Cause:
        """Why, as far as it is known here."""
        return next((cause for cause in Cause if cause == self.spec.reason), Cause.REQUESTED)
