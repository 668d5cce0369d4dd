"""Workloads: pods grouped into what is placed as one."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from topo_scheduler.api.annotations import PlacementRequest
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.residents import Profile


class Stage(StrEnum):
    """Where a member is on its way."""

    PENDING = "pending"
    ASSUMED = "assumed"
    BOUND = "bound"


@dataclass(slots=True)
class Member:
    """One pod of a workload.

    ``index`` the rank its controller gave it, None when it gave none; ``rank`` the one it was placed with.
    ``controlled``: a controller makes a new pod when this one is evicted. ``bandwidth`` Mbit/s charged to its node.
    """

    uid: str
    namespace: str
    name: str
    cls: PodClass
    priority: int
    created: float
    enqueued: float
    index: int | None = None
    controlled: bool = False
    preempts: bool = True
    """Whether pods of lower priority may be evicted for it."""
    charged_gpus: int = 0
    stage: Stage = Stage.PENDING
    node: str = ""
    rank: int = -1
    bandwidth: int = 0
    evicted: bool = False
    """Whether it was told to go, as its gang could not be completed."""
    profile: Profile | None = None
    """What its neighbours will see of it."""
    problem: str = ""
    """Why this pod can't be placed whatever is free; empty when it can."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Workload:
    """Pods that are placed together: a gang, or one pod.

    ``size`` members that must be placed at once (those that run count); ``controller`` kind and name of what made
    the pods, for messages; ``complete`` whether all of it ran at some time: from then on lost members are re-placed
    singly, before that a gang that can't be completed is rolled back.
    """

    id: str
    namespace: str
    name: str
    controller: str
    size: int
    request: PlacementRequest
    gang: bool
    members: dict[str, Member] = field(default_factory=dict)
    complete: bool = False
    attempts: int = 0
    room_helps: bool = True
    """Whether room could help, as of the last attempt; otherwise only other nodes can."""
    half_bound_since: float | None = None
    ran: set[int] = field(default_factory=set)
    """Ranks of which a member was bound at some time."""
    failing: bool = False
    """Whether a bind of the last decision failed."""
    disruption_mode: str = "pod"
    """``gang`` where members that run go all together once fewer than its minimum would be left."""
    found: bool = False
    """Whether members were found bound by an earlier process: it is not known whether it ever ran whole."""

    def at(self, stage: Stage) -> list[Member]:
        """Return the members at a stage, in order of index, age and name."""
        found = [member for member in self.members.values() if member.stage is stage]
        if len(found) > 1:
            found.sort(key=_order)
        return found

    def described_by(self, other: "Workload") -> bool:
        """Whether another says the same of what is wanted."""
        return (self.size, self.gang, self.request, self.name, self.controller) == (
            other.size,
            other.gang,
            other.request,
            other.name,
            other.controller,
        )

    @property
    def priority(self) -> int:
        """The lowest priority of a member: the whole can't go before any part of it."""
        return min((member.priority for member in self.members.values()), default=0)

    @property
    def created(self) -> float:
        """When the oldest member was created, in seconds."""
        return min((member.created for member in self.members.values()), default=0.0)

    @property
    def problem(self) -> str:
        """Why the workload can't be placed whatever is free; empty when it can."""
        return next((f"pod {m.key}: {m.problem}" for m in self.at(Stage.PENDING) if m.problem), "")


def _order(member: Member) -> tuple[int, float, str]:
    return (member.index if member.index is not None else 1 << 60, member.created, member.name)


class Workloads:
    """All workloads that have members, and which workload each pod belongs to."""

    def __init__(self) -> None:
        self._by_id: dict[str, Workload] = {}
        self._of_pod: dict[str, str] = {}

    def __iter__(self) -> Iterator[Workload]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id_: str) -> Workload | None:
        """Return a workload by id."""
        return self._by_id.get(id_)

    def of_pod(self, uid: str) -> tuple[Workload, Member] | None:
        """Return the workload and the member a pod is."""
        id_ = self._of_pod.get(uid)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        return workload, workload.members[uid]

    def join(self, template: Workload, member: Member, *, describes: bool = True) -> Workload:
        """Put a pod into the workload it belongs to, which is made when it is the first.

        ``describes``: the template says what the workload wants now; False for one made up for a pod found bound.
        """
        known = self._of_pod.get(member.uid)
        if known is not None and known != template.id:
            self.leave(member.uid)
        workload = self._by_id.setdefault(template.id, template)
        if describes and workload is not template:
            workload.size, workload.gang, workload.request = template.size, template.gang, template.request
            workload.name, workload.controller = template.name, template.controller
            workload.disruption_mode = template.disruption_mode
        workload.members[member.uid] = member
        self._of_pod[member.uid] = workload.id
        return workload

    def leave(self, uid: str) -> Workload | None:
        """Take a pod out; return the workload it was in. A workload without members is forgotten."""
        id_ = self._of_pod.pop(uid, None)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        del workload.members[uid]
        if not workload.members:
            del self._by_id[id_]
        return workload
