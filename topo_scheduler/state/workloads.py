"""Workloads: pods grouped into what is placed as one."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Final

from topo_scheduler.api.annotations import PlacementRequest
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.groups import Disruption, PodGroup
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.runs import Run

MOST_LOST: Final = 64
"""Ranks of lost members of an incomplete gang that are remembered until its next decision, beside twice its members."""
MOST_CLASSES: Final = 64
"""Classes of pods in one gang: the searches for gangs of different pods are bounded, and find little beyond that."""


class Stage(StrEnum):
    """Where a member is on its way."""

    PENDING = "pending"
    ASSUMED = "assumed"
    BOUND = "bound"


@dataclass(slots=True)
class Member:
    """One pod of a workload.

    ``index`` the number its controller gave it, None when it gave none; ``series`` of which row of such numbers it is,
    where several controllers made the workload, the first in order first; ``rank`` the one it was placed with.
    ``controlled``: a controller makes a new pod when this one is evicted. ``bandwidth`` Mbit/s a node reserved for its
    gang.
    """

    uid: str
    namespace: str
    name: str
    cls: PodClass
    priority: int
    created: float
    enqueued: float
    index: int | None = None
    series: tuple[int, str] = (0, "")
    controlled: bool = False
    preempts: bool = True
    """Whether pods of lower priority may be evicted for it."""
    doubt: str = ""
    """Why it is not known what it is part of; empty where that is known. Nothing is evicted for such a pod."""
    charged_gpus: int = 0
    stage: Stage = Stage.PENDING
    node: str = ""
    rank: int = -1
    decided: bool = False
    """Whether this process decided where it runs: a tenant can put a pod on a node itself, in the scheduler's name."""
    bandwidth: int = 0
    evicted: bool = False
    """Whether it was told to go, as its gang could not be completed."""
    leaving: bool = False
    """Whether it is bound and being deleted."""
    marked: bool = False
    """Whether it bears the condition that its gang ran complete."""
    told_size: int = 0
    """Size of its gang as its Binding says, where it was found bound; 0 where it does not say."""
    profile: Profile | None = None
    """What its neighbours will see of it."""
    lasts: float = inf
    """Seconds it is expected to run from its start, by its deadlines and ``expected-duration``."""
    deadline: float = inf
    """The same by deadlines alone, which others enforce."""
    ends_by: float = inf
    """When its Job is ended by ``activeDeadlineSeconds``, in seconds since the epoch."""
    run: Run | None = None
    """What it is a run of."""
    labels: Mapping[str, str] | None = None
    """Its labels, where its PodGroup has subgroups that are told by them."""
    problem: str = ""
    """Why this pod can't be placed whatever is free; empty when it can."""
    withdrawn: str = ""
    """Why it must not be bound though that was decided, or not be moved: it is about to be deleted."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class SetAside:
    """What it takes to tell whether a workload that was set aside is helped by what happened.

    ``classes`` of its waiting members, each once; ``refused``: nothing that happens to others helps it.
    """

    classes: tuple[PodClass, ...] = ()
    refused: bool = False
    looks_around: bool = field(init=False, default=False)
    """Whether it matters to any of them who else is there."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "looks_around", any(cls.constraints is not None for cls in self.classes))


NOT_SET_ASIDE: Final = SetAside()


@dataclass(frozen=True, slots=True)
class Subgroups:
    """Runs of so many consecutive ranks that a controller wants together; 0 for none.

    ``ahead`` members before the first run: they belong to it, or are ``apart`` from all.
    """

    size: int = 0
    ahead: int = 0
    apart: bool = False

    def number(self, rank: int) -> int:
        """Return the number of the subgroup of a rank, -1 for one that is in none."""
        if rank < self.ahead:
            return -1 if self.apart else 0
        return (rank - self.ahead) // self.size


NO_SUBGROUPS: Final = Subgroups()


@dataclass(slots=True)
class Shortage:
    """What the members of a gang were told of the pods that must yet appear.

    ``text`` that all of them are to be told from ``due`` on, in seconds, empty where they were; ``heard`` uids of
    waiting members that were told of any; ``members`` how many ever were, ``times`` how often that was in all.
    """

    text: str = ""
    due: float = 0.0
    heard: set[str] = field(default_factory=set)
    members: int = 0
    times: int = 0


@dataclass(slots=True)
class Workload:
    """Pods that are placed together: a gang, or one pod.

    ``size`` members that must be placed at once (those that run count); ``controller`` kind and name of what made
    the pods, for messages; ``complete`` whether all of it ran at some time, and some of it since: from then on lost
    members are re-placed singly, before that a gang that can't be completed is rolled back. ``group`` the PodGroup
    that says so, if one does; ``level`` of the fabric of which all members must share one domain, ``tiers`` the same as
    a number of levels from the leaf (1) outward; ``subgroups`` pods of consecutive ranks that its controller wants
    together; ``awaits`` what must appear before its size is known; ``too_large`` why so many pods never come.
    """

    id: str
    namespace: str
    name: str
    controller: str
    size: int
    request: PlacementRequest
    gang: bool
    group: PodGroup | None = None
    level: str = ""
    tiers: int = 0
    subgroups: Subgroups = NO_SUBGROUPS
    awaits: str = ""
    too_large: str = ""
    disruption_mode: Disruption = Disruption.POD
    members: dict[str, Member] = field(default_factory=dict)
    complete: bool = False
    attempts: int = 0
    room_helps: bool = True
    """Whether room could help, as of the last attempt; otherwise only other nodes can."""
    half_bound_since: float | None = None
    """Since when something keeps the rest of a half-bound gang from being bound, in seconds."""
    progressed: float = 0.0
    """When a member was bound last, in seconds; 0 if none was by this process."""
    rollbacks: int = 0
    """How often it was rolled back since it was complete."""
    not_before: float = 0.0
    """When it may be tried again after it was rolled back, in seconds."""
    ran: dict[int, str] = field(default_factory=dict)
    """Ranks of which a member was bound since the last decision, still is, or has succeeded, with the uid of the last
    one; empty where it has succeeded."""
    kept: int = 0
    """Ranks that were left of these when some were forgotten last."""
    failing: bool = False
    """Whether a bind of the last decision failed."""
    set_aside: SetAside = NOT_SET_ASIDE
    """What its waiting members are, as of when it was set aside: whatever changes them makes it active."""
    shortage: Shortage | None = None
    lacking_since: float | None = None
    """Since when it lacks pods without its members having been told, in seconds."""
    plugin_failures: int = 0
    """Attempts in a row that failed because a plugin did."""
    failures: int = 0
    """Attempts in a row that raised or exceeded their budget: the pause before the next grows with them."""
    found: bool = False
    """Whether members were found bound by an earlier process: it is not known whether it ever ran whole."""
    resumed: bool = False
    """Whether members were found bound before the first decision of this process: an earlier one placed them."""
    speaker: str = ""
    """The pod whose annotations speak for all: the first in order of those that wait, so that it is always the same."""
    bound: int = 0
    """Members that are bound: counted as they change, as a gang may have thousands and is asked after each."""
    pending: int = 0
    """Members that are pending, counted likewise."""
    bearers: tuple[str, ...] = ()
    """Members known to bear the condition that it ran complete, by uid; those that are gone since are among them."""

    def turn(self, member: Member, stage: Stage) -> None:
        """Let a member be at another stage. Nothing else sets the stage of a member of a workload."""
        self._count(member, -1)
        member.stage = stage
        self._count(member, 1)

    def unplace(self, member: Member) -> None:
        """Let a member be pending again, without a place."""
        self.turn(member, Stage.PENDING)
        member.node, member.rank, member.bandwidth = "", -1, 0

    def put(self, member: Member) -> None:
        """Take a member in, in the place of what was known of the same pod."""
        if (known := self.members.get(member.uid)) is not None:
            self._count(known, -1)
        self.members[member.uid] = member
        self._count(member, 1)

    def take(self, uid: str) -> None:
        """Take a member out, if it is one."""
        if (member := self.members.pop(uid, None)) is not None:
            self._count(member, -1)

    def note_ran(self, member: Member) -> None:
        """Note that a member is bound, while a gang is not complete. How many are lost is its tenant's choice."""
        if member.rank >= 0 and not self.complete and not member.leaving:
            self.ran[member.rank] = member.uid
            if len(self.ran) > 2 * max(len(self.members), self.kept) + MOST_LOST:
                self.forget_lost()

    def forget_lost(self) -> None:
        """Count members that were lost no more, as others are placed in their stead and may have other ranks.

        Nor those that are being deleted: a Job makes their replacements while they still run. Nor those that succeeded
        where the size is not known: those could be any number.
        """
        sized = size_of(self) > 0
        stay = {uid for uid in self.ran.values() if uid in self.members and not self.members[uid].leaving}
        self.ran = {rank: uid for rank, uid in self.ran.items() if uid in stay or (sized and not uid)}
        self.kept = len(self.ran)

    def recount(self) -> None:
        """Count the members anew, after others were put in their place."""
        self.bound = self.pending = 0
        for member in self.members.values():
            self._count(member, 1)

    def _count(self, member: Member, by: int) -> None:
        self.bound += by * (member.stage is Stage.BOUND)
        self.pending += by * (member.stage is Stage.PENDING)

    def speaks(self, member: Member) -> bool:
        """Return whether a member speaks for all from now on."""
        known = self.members.get(self.speaker)
        return (
            known is None
            or known.uid == member.uid
            or known.stage is not Stage.PENDING
            or _order(member) < _order(known)
        )

    def at(self, stage: Stage) -> list[Member]:
        """Return the members at a stage, in order of index, age and name."""
        found = [member for member in self.members.values() if member.stage is stage]
        if len(found) > 1:
            found.sort(key=_order)
        return found

    @property
    def only(self) -> Member | None:
        """The one member of a workload that has just one; most do."""
        if len(self.members) != 1:
            return None
        (member,) = self.members.values()
        return member

    def described_by(self, other: "Workload") -> bool:
        """Whether another says the same of what is wanted."""
        return all(getattr(self, name) == getattr(other, name) for name in _DESCRIBED) and _alike(
            self.group, other.group
        )

    def describe(self, other: "Workload") -> None:
        """Take over what another says of what is wanted."""
        for name in (*_DESCRIBED, "group"):
            setattr(self, name, getattr(other, name))

    @property
    def priority(self) -> int:
        """That of its PodGroup, else the lowest of a member: the whole can't go before any part of it."""
        if self.group is not None and self.group.priority is not None:
            return self.group.priority
        if (only := self.only) is not None:
            return only.priority
        return min((member.priority for member in self.members.values()), default=0)

    @property
    def created(self) -> float:
        """When the oldest member was created, in seconds."""
        if (only := self.only) is not None:
            return only.created
        return min((member.created for member in self.members.values()), default=0.0)

    @property
    def doubt(self) -> str:
        """Why it is not known what a pending member is part of: then nothing is evicted for any of them."""
        return next((one.doubt for one in self.members.values() if one.doubt and one.stage is Stage.PENDING), "")

    @property
    def problem(self) -> str:
        """Why the workload can't be placed whatever is free; empty when it can."""
        pending = self.at(Stage.PENDING)
        for member in pending:
            if member.problem:
                return f"pod {member.key}: {member.problem}"
        # Equal classes are one object mostly, and to compare classes takes long.
        if len(pending) > MOST_CLASSES and len({id(member.cls) for member in pending}) > MOST_CLASSES:
            classes = len({member.cls for member in pending})
            if classes > MOST_CLASSES:
                return (
                    f"its pending pods are of {classes} different classes, a gang may have {MOST_CLASSES}; give pods"
                    " that need nearly the same the same requests, selectors, affinity and tolerations"
                )
        return ""


def size_of(workload: Workload) -> int:
    """Return of how many members a workload is, 1 for a pod alone; 0 where that is not known, as after a restart."""
    if not workload.gang:
        return 1
    return 0 if workload.found and workload.size == 1 else workload.size


_LEAVING: Final = "(leaving) "
"""Begins the key of those who leave a gang: ids begin with a namespace or are uids, whatever tenants write."""
_DESCRIBED: Final = (
    "size",
    "gang",
    "request",
    "name",
    "controller",
    "level",
    "tiers",
    "subgroups",
    "awaits",
    "too_large",
    "disruption_mode",
)


def _alike(one: PodGroup | None, other: PodGroup | None) -> bool:
    return one is other or (one is not None and other is not None and one.asks_as(other))


def _order(member: Member) -> tuple[bool, tuple[int, str], int, float, str]:
    index = member.index
    series = member.series if index is not None else (0, "")
    return (index is None, series, index or 0, member.created, member.name)


class Workloads:
    """All workloads that have members, and which workload each pod belongs to.

    Where all members of a gang that have a place are being deleted, they are a workload of their own with the same id,
    which is found by its pods only, under a key that is no id: whoever comes in their place is a gang that begins anew.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Workload] = {}
        self._of_pod: dict[str, str] = {}
        self._ending: set[str] = set()
        """Gangs of which members are being deleted."""

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

    def decided(self, uid: str) -> bool:
        """Return whether this process decided where a pod runs."""
        found = self.of_pod(uid)
        return found is not None and found[1].decided

    def join(self, template: Workload, member: Member, *, describes: bool = True) -> Workload:
        """Put a pod into the workload it belongs to, which is made when it is the first.

        ``describes``: the template says what the workload wants now; False for one made up for a pod found bound.
        """
        known = self._of_pod.get(member.uid)
        if known is not None and known != template.id:
            self.leave(member.uid)
        workload = self._by_id.setdefault(template.id, template)
        if describes and workload.speaks(member):
            workload.speaker = member.uid
            if workload is not template:
                workload.describe(template)
        workload.put(member)
        self._of_pod[member.uid] = workload.id
        if member.leaving:
            self._ending.add(workload.id)
        self._part(workload)
        return workload

    def leave(self, uid: str, *, succeeded: bool = False) -> Workload | None:
        """Take a pod out; return the workload it was in. ``succeeded``: its part of a gang's work is done.

        A workload without members is forgotten; so is that it ran whole where none of those that are left has a place.
        """
        id_ = self._of_pod.pop(uid, None)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        rank = workload.members[uid].rank
        workload.take(uid)
        if succeeded and workload.ran.get(rank) == uid:
            workload.ran[rank] = ""
        if workload.id == id_:
            self._part(workload)
        if not workload.members:
            del self._by_id[id_]
            self._ending.discard(id_)
        elif workload.complete and workload.pending == len(workload.members):
            workload.complete = False
            workload.ran.clear()
        return workload

    def leaves(self, uid: str) -> Workload | None:
        """Note that a pod is bound and being deleted; return the workload whose other pods begin anew, if they do."""
        id_ = self._of_pod.get(uid)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        workload.members[uid].leaving = True
        if workload.id != id_:
            return None
        self._ending.add(id_)
        return workload if self._part(workload) else None

    def _part(self, workload: Workload) -> bool:
        """Part those who leave from those who wait, where nobody stays; return whether that was done."""
        if not workload.gang or workload.id not in self._ending or not 0 < workload.pending < len(workload.members):
            return False
        if any(one.stage is not Stage.PENDING and not one.leaving for one in workload.members.values()):
            return False
        placed = [one for one in workload.members.values() if one.stage is not Stage.PENDING]
        key = f"{_LEAVING}{workload.id}"
        if key not in self._by_id:
            gone = replace(workload, members={}, ran=dict(workload.ran), speaker="", bound=0, pending=0, bearers=())
            self._by_id[key] = gone
        for member in placed:
            workload.take(member.uid)
            self._by_id[key].put(member)
            self._of_pod[member.uid] = key
        workload.complete, workload.half_bound_since, workload.found = False, None, False
        workload.ran.clear()
        self._ending.discard(workload.id)
        return True
