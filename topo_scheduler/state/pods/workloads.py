"""Workloads: groups of pods that the scheduler places together."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import inf
from typing import Final

from topo_scheduler.api.annotations import PlacementRequest
from topo_scheduler.state.devices.extended_resources import RequestMapping
from topo_scheduler.state.devices.inventory import ClaimKey
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.pod_groups import Disruption, PodGroup
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import DEFAULT_GRACE_SECONDS, VictimInfo
from topo_scheduler.state.statistics.run_times import RunKey

MAX_LOST_RANKS: Final = 64
"""Maximum ranks that an incomplete gang remembers until its next decision, in addition to twice its members."""
MAX_SERIES_CHARACTERS: Final = 253
"""Characters that identify the series of a member: those of its name may come from an annotation, of any length."""
NO_SERIES: Final = (0, "")
"""The series of pods whose controller assigns no index, outside gangs, and of pods that are not read yet."""
MAX_CLASSES: Final = 64
"""Pod classes that one gang may have. The searches for heterogeneous gangs are bounded and find little beyond that."""

MANY_PENDING: Final = 256
"""Pending members from which on a workload keeps their order and what follows from them until they change."""


class Stage(StrEnum):
    """The scheduling stage of a member."""

    PENDING = "pending"
    ASSUMED = "assumed"
    BOUND = "bound"


@dataclass(slots=True)
class Member:
    """One pod of a workload.

    ``index`` is the number that its controller gave it, None without one. ``series`` identifies the controller's
    sequence of indices, or the controller of a pod without one, where several controllers made the workload; it sorts
    in controller order. ``rank`` is the rank with which the pod was placed. ``controlled``: it names a controller,
    which makes a new pod when this one is evicted. ``bandwidth`` is what is reserved for its gang on each node, in
    Mbit/s.
    """

    uid: str
    namespace: str
    name: str
    cls: PodClass
    priority: int
    created: float
    enqueued: float
    index: int | None = None
    series: tuple[int, str] = NO_SERIES
    controlled: bool = False
    recreated: bool = False
    """Whether its controller was also read, and is of a kind that makes pods: a pod's user may name any object."""
    daemon: bool = False
    """Whether the pod is of a DaemonSet."""
    preempts: bool = True
    """Whether the scheduler may evict pods of lower priority for this pod."""
    doubt: str = ""
    """Why the workload of this pod is unknown; empty where it is known. The scheduler evicts nothing for such a pod."""
    charged_gpus: int = 0
    claims: tuple[ClaimKey, ...] = ()
    """Its claims of devices, in the order of those of its class."""
    claim_room: Mapping[ClaimKey, int] = field(default_factory=dict)
    """For how many more pods those of them can be reserved that its gang may share."""
    mappings: tuple[RequestMapping, ...] = ()
    """Which container gets which request of the claim for its extended resources."""
    stage: Stage = Stage.PENDING
    node: str = ""
    rank: int = -1
    decided: bool = False
    """Whether this process chose its node: a tenant can also bind a pod itself, in the scheduler's name."""
    bandwidth: int = 0
    evicted: bool = False
    """Whether the scheduler evicted it because its gang could not be completed."""
    leaving: bool = False
    """Whether it is bound and being deleted."""
    bound_at: float = inf
    """When it was bound, in seconds since the epoch, for a pod that was already bound."""
    left_at: float = inf
    """When its deletion was requested, in seconds since the epoch."""
    marked: bool = False
    """Whether it has the condition that its gang ran complete."""
    recorded_size: int = 0
    """Size of its gang as its Binding records it, for a pod that was already bound; 0 where it records none."""
    profile: Profile | None = None
    """What inter-pod rules see of the pod: labels, host ports, volumes, affinity."""
    expected_seconds: float = inf
    """Expected run time from its start in seconds, by deadlines and ``expected-duration`` of the pod and its owners."""
    own_seconds: float = inf
    """The same by what the pod itself states."""
    deadline: float = inf
    """Longest run time in seconds by its own ``activeDeadlineSeconds``, which its kubelet enforces."""
    ends_by: float = inf
    """When ``activeDeadlineSeconds`` is to end its Job, in seconds since the epoch."""
    run: RunKey | None = None
    """The recurring job of which the pod is one run."""
    labels: Mapping[str, str] | None = None
    """Its labels, where its PodGroup defines subgroups by labels."""
    problem: str = ""
    """Why this pod can't be placed even on free nodes; empty when it can."""
    patient_until: float = -inf
    """Until when, in seconds, its problem is not worth an event: Kubernetes is likely to solve it by itself."""
    withdrawn: str = ""
    """Why it must not be bound or moved although a decision says so: it is about to be deleted."""

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def known_series(self) -> str | None:
        """Identifies its series among those of its workload; None if there is none, or until its pod is read."""
        if self.index is None and self.series == NO_SERIES:
            return None
        number, name = self.series
        return f"{number} {name}".rstrip()[:MAX_SERIES_CHARACTERS]

    def forget_request(self) -> None:
        """Forget what the pod of a bound member requests; plans read it again, as after a restart."""
        self.cls, self.claims, self.mappings = PodClass(()), (), ()

    def as_victim(self, started: float) -> VictimInfo:
        """Return the victim information of a pod that is not bound yet. ``started`` is in seconds since the epoch."""
        grace = DEFAULT_GRACE_SECONDS
        return VictimInfo(
            self.namespace, self.name, self.uid, self.priority, started, grace, terminating=False, fixed=False
        )


@dataclass(frozen=True, slots=True)
class RequeueConditions:
    """What decides whether a change in the cluster could help an unschedulable workload.

    ``classes`` of its pending members, each once. ``refused``: no change to other objects helps it.
    """

    classes: tuple[PodClass, ...] = ()
    refused: bool = False
    depends_on_pods: bool = field(init=False, default=False)
    """Whether any of the classes has constraints that depend on other pods."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "depends_on_pods", any(cls.constraints is not None for cls in self.classes))


NO_CONDITIONS: Final = RequeueConditions()


@dataclass(frozen=True, slots=True)
class Subgroups:
    """Subgroups of ``size`` consecutive ranks that a controller wants together; 0 for none.

    ``ahead`` is the number of members before the first subgroup. They belong to it, or are ``apart`` from all.
    """

    size: int = 0
    ahead: int = 0
    apart: bool = False

    def number(self, rank: int) -> int:
        """Return the number of the subgroup of a rank, -1 for a rank outside all subgroups."""
        if rank < self.ahead:
            return -1 if self.apart else 0
        return (rank - self.ahead) // self.size


NO_SUBGROUPS: Final = Subgroups()


@dataclass(frozen=True, slots=True)
class CreationLimit:
    """Why a controller may never make all pods of a gang, and the remedy: the end of a sentence, or nothing.

    With more than ``pods`` pending pods the reason is another one.
    """

    text: str = ""
    pods: int = 0


NO_CREATION_LIMIT: Final = CreationLimit()


MembersByClass = Sequence[tuple[PodClass, Sequence[Member]]]
"""Members of a workload by class, in the order of its placement query."""


@dataclass(slots=True)
class MemberShortage:
    """The events on a gang's members about pods that must still appear.

    ``text`` is the message to publish on all members from ``due`` on, in seconds; empty once it is published.
    ``notified`` has the uids of pending members with such an event. ``members`` counts the members that ever had one,
    ``times`` the events in all.
    """

    text: str = ""
    due: float = 0.0
    notified: set[str] = field(default_factory=set)
    members: int = 0
    times: int = 0


@dataclass(slots=True)
class Workload:
    """Pods that are placed together: a gang, or one pod.

    ``size`` is the number of members that must be placed at once; members that run count. ``controller`` is kind and
    name of the object that made the pods, for messages. ``complete``: all members ran at some time, and some have run
    ever since. From then on the scheduler replaces lost members singly; before that it rolls back a gang that can't be
    completed.

    ``group`` is the PodGroup that defines the gang, if one does. ``level`` is the level of the fabric at which all
    members must share one domain; ``tiers`` is the same as a number of levels from the leaf (1) outward.
    ``subgroups`` are pods of consecutive ranks that the controller wants together. ``awaits`` is what must appear
    before the size is known. ``creation_limit`` is why that many pods may never exist at once.
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
    creation_limit: CreationLimit = NO_CREATION_LIMIT
    disruption_mode: Disruption = Disruption.POD
    members: dict[str, Member] = field(default_factory=dict)
    complete: bool = False
    attempts: int = 0
    room_helps: bool = True
    """Whether freed capacity could help, as of the last attempt; otherwise only different nodes can."""
    partially_bound_since: float | None = None
    """Since when the remaining members of a partially bound gang can't be bound, in seconds."""
    progressed: float = 0.0
    """When a member was bound last, in seconds; 0 if this process bound none."""
    rollbacks: int = 0
    """How often the scheduler rolled it back since it was complete."""
    not_before: float = 0.0
    """Earliest time of the next attempt after a rollback, in seconds."""
    ran: dict[int, str] = field(default_factory=dict)
    """Ranks of which a member is bound or has succeeded. One that is being deleted counts until the next decision.

    By rank the uid of the last such member; empty if it has succeeded.
    """
    ran_of: int = 0
    """Largest size of the gang when one of these members was bound: a Job counts fewer once some have succeeded."""
    kept_ranks: int = 0
    """Number of these ranks after the last time that some were forgotten."""
    failing: bool = False
    """Whether a bind of the last decision failed."""
    requeue_conditions: RequeueConditions = NO_CONDITIONS
    """Its pending members as of when it was found unschedulable; a change to them makes the workload active."""
    shortage: MemberShortage | None = None
    lacking_since: float | None = None
    """Since when it lacks pods without an event on its members that says so, in seconds."""
    plugin_failures: int = 0
    """Consecutive attempts that failed because a plugin failed."""
    failures: int = 0
    """Consecutive attempts that raised or exceeded their budget; the pause before the next attempt grows with them."""
    bound_earlier: bool = False
    """Whether an earlier process bound members: then it is unknown whether the gang ever ran complete."""
    resumed: bool = False
    """Whether members were bound before the first decision of this process: an earlier process placed them."""
    speaker: str = ""
    """The pod whose annotations count for all: the first pending member in order, so that the choice is stable."""
    bound: int = 0
    """Members that are bound. The count is kept, as a gang may have thousands and every change reads it."""
    pending: int = 0
    """Members that are pending; the count is kept likewise."""
    marked_members: tuple[str, ...] = ()
    """Uids of members known to have the condition that the gang ran complete, deleted ones included."""
    first_bound_at: float = inf
    """Lower bound of when the first member that is not being deleted was bound, in seconds since the epoch."""
    marked_until: float = -inf
    """When the last member with that condition was deleted: upper bound in seconds since the epoch, infinite if one
    stays."""
    _ordered: list[Member] | None = field(init=False, default=None, repr=False, compare=False)
    """Its pending members in order; None if it is not known, or if they are few."""
    _known_problem: str | None = field(init=False, default=None, repr=False, compare=False)
    _known_since: float | None = field(init=False, default=None, repr=False, compare=False)
    _known_bounds: tuple[int, float] | None = field(init=False, default=None, repr=False, compare=False)
    """Lowest priority and creation time of its members; None if they are not known, or if few members are pending."""

    def set_stage(self, member: Member, stage: Stage) -> None:
        """Set the stage of a member. Nothing else sets the stage of a member of a workload."""
        self._ordered = self._known_problem = self._known_since = None
        before, member.stage = member.stage, stage
        self.bound += (stage is Stage.BOUND) - (before is Stage.BOUND)
        self.pending += (stage is Stage.PENDING) - (before is Stage.PENDING)

    def make_pending(self, member: Member) -> None:
        """Make a member pending again, without a node."""
        self.set_stage(member, Stage.PENDING)
        member.node, member.rank, member.bandwidth = "", -1, 0
        self.forget_lost_gang()

    def put(self, member: Member) -> None:
        """Add a member; it replaces the previous member of the same uid."""
        if (previous := self.members.get(member.uid)) is not None:
            self._count(previous, -1)
            self._forget_derived(previous)
        self.members[member.uid] = member
        self._count(member, 1)
        self._forget_derived(member, joins=True)

    def take(self, uid: str) -> None:
        """Remove a member, if the workload has it."""
        if (member := self.members.pop(uid, None)) is not None:
            self._count(member, -1)
            self._forget_derived(member)

    def _forget_derived(self, member: Member, *, joins: bool = False) -> None:
        """Forget what follows from the members, as one joins or leaves; only correct their order."""
        self._known_problem = self._known_since = self._known_bounds = None
        ordered = self._ordered
        if ordered is None or member.stage is not Stage.PENDING:
            return
        key = member_order(member)
        at, end = bisect_left(ordered, key, key=member_order), bisect_right(ordered, key, key=member_order)
        if joins and at == end:
            ordered.insert(at, member)
        elif not joins and end - at == 1 and ordered[at] is member:
            del ordered[at]
        else:
            self._ordered = None  # members of equal keys are in the order in which they joined

    def note_ran(self, member: Member) -> None:
        """Note that a member of an incomplete gang is bound. Ranks are bounded, as tenants can lose members at will."""
        if member.rank >= 0 and not self.complete and not member.leaving:
            self.ran[member.rank] = member.uid
            self.ran_of = max(self.ran_of, self.size)
            if len(self.ran) > 2 * max(len(self.members), self.kept_ranks) + MAX_LOST_RANKS:
                self.forget_lost()

    def note_times(self, member: Member) -> None:
        """Note when a bound member was bound, and until when the condition that it carries counts."""
        if not member.leaving:
            self.first_bound_at = min(self.first_bound_at, -inf if member.marked else member.bound_at)
        if member.marked:
            self.marked_until = max(self.marked_until, member.left_at if member.leaving else inf)

    def forget_lost(self) -> None:
        """Forget the ranks of lost members: the scheduler places new members instead, which may have other ranks.

        Members that are being deleted count as lost: a Job creates their replacements while they still run. So do
        members that succeeded if the size is unknown: there could be any number of them.
        """
        size_known = size_of(self) > 0
        staying = {uid for uid in self.ran.values() if uid in self.members and not self.members[uid].leaving}
        self.ran = {rank: uid for rank, uid in self.ran.items() if uid in staying or (size_known and not uid)}
        self.kept_ranks = len(self.ran)

    def forget_ran(self) -> None:
        """Forget all ranks of which a member was bound."""
        self.ran.clear()
        self.ran_of = 0

    def forget_lost_gang(self) -> None:
        """Count the gang as incomplete if none of its members runs on, although binds of others may be in flight."""
        placed = len(self.members) - self.pending
        if not self.complete or 0 < placed == self.bound:
            return  # those that are all being deleted become a workload of their own, as soon as others are pending
        if not any(member.stage is Stage.BOUND and not member.leaving for member in self.members.values()):
            self.complete = False
            self.forget_ran()

    @property
    def ran_whole(self) -> bool:
        """Whether members of as many ranks as the size were bound, each still bound or succeeded."""
        size = size_of(self)
        return bool(size) and len(self.ran) >= max(size, self.ran_of if "" in self.ran.values() else 0)

    def recount(self) -> None:
        """Count the members again, after the caller replaced them."""
        self.bound = self.pending = 0
        self._ordered = self._known_problem = self._known_since = self._known_bounds = None
        for member in self.members.values():
            self._count(member, 1)

    def _count(self, member: Member, delta: int) -> None:
        self.bound += delta * (member.stage is Stage.BOUND)
        self.pending += delta * (member.stage is Stage.PENDING)

    def speaks(self, member: Member) -> bool:
        """Return whether the annotations of this member now count for all."""
        speaker = self.members.get(self.speaker)
        return (
            speaker is None
            or speaker.uid == member.uid
            or speaker.stage is not Stage.PENDING
            or member_order(member) < member_order(speaker)
        )

    def at(self, stage: Stage) -> list[Member]:
        """Return the members at a stage, in order of index, age and name."""
        if stage is Stage.PENDING and self._ordered is not None:
            return self._ordered.copy()
        members = [member for member in self.members.values() if member.stage is stage]
        if len(members) > 1:
            members.sort(key=member_order)
        if stage is Stage.PENDING and len(members) >= MANY_PENDING:
            self._ordered = members.copy()
        return members

    @property
    def only(self) -> Member | None:
        """The member of a workload that has just one, as most do; None otherwise."""
        if len(self.members) != 1:
            return None
        (member,) = self.members.values()
        return member

    def has_same_request_as(self, other: "Workload") -> bool:
        """Whether another workload describes the same request."""
        return all(getattr(self, name) == getattr(other, name) for name in _DESCRIBED) and _alike(
            self.group, other.group
        )

    def take_request_of(self, other: "Workload") -> None:
        """Take over the request that another workload describes."""
        for name in (*_DESCRIBED, "group"):
            setattr(self, name, getattr(other, name))

    @property
    def priority(self) -> int:
        """Priority of its PodGroup, else the lowest priority of a member: a gang can't go before any of its members."""
        if self.group is not None and self.group.priority is not None:
            return self.group.priority
        if (only := self.only) is not None:
            return only.priority
        return self._bounds()[0]

    def priority_as_victim(self, own: int) -> int:
        """Return the priority that protects a member, whose own is ``own``.

        That of its PodGroup counts if it is higher: otherwise two workloads could evict each other without end.
        """
        return own if self.group is None or self.group.priority is None else max(own, self.group.priority)

    @property
    def created(self) -> float:
        """When the oldest member was created, in seconds."""
        if (only := self.only) is not None:
            return only.created
        return self._bounds()[1]

    def _bounds(self) -> tuple[int, float]:
        """Return the lowest priority of a member, and when the oldest was created, in seconds."""
        bounds = self._known_bounds
        if bounds is None:
            priority = min((member.priority for member in self.members.values()), default=0)
            bounds = priority, min((member.created for member in self.members.values()), default=0.0)
            if self.pending >= MANY_PENDING:
                self._known_bounds = bounds
        return bounds

    @property
    def pending_since(self) -> float:
        """Since when the first of its pending members is pending, in seconds; 0 if none is."""
        since = self._known_since
        if since is None:
            waiting = (member.enqueued for member in self.members.values() if member.stage is Stage.PENDING)
            since = min(waiting, default=0.0)
            if self.pending >= MANY_PENDING:
                self._known_since = since
        return since

    @property
    def doubt(self) -> str:
        """Why the workload of a pending member is unknown: then the scheduler evicts nothing for the gang."""
        return next(
            (member.doubt for member in self.members.values() if member.doubt and member.stage is Stage.PENDING), ""
        )

    def patient_until(self) -> float:
        """Return until when, in seconds, the problems of its pending members are not worth an event."""
        return min((member.patient_until for member in self.at(Stage.PENDING) if member.problem), default=-inf)

    @property
    def problem(self) -> str:
        """Why the workload can't be placed even on free nodes; empty when it can."""
        if self._known_problem is not None:
            return self._known_problem
        pending = self.at(Stage.PENDING)
        problem, shared = "", False
        for member in pending:
            if member.problem:
                problem = f"pod {member.key}: {member.problem}"
                break
            shared = shared or bool(member.claim_room)
        if shared and not problem:
            problem = _too_many_consumers(pending)
        # Equal classes are mostly one object, and comparing classes is slow.
        if not problem and len(pending) > MAX_CLASSES and len({id(member.cls) for member in pending}) > MAX_CLASSES:
            classes = len({member.cls for member in pending})
            if classes > MAX_CLASSES:
                problem = (
                    f"its pending pods are of {classes} different classes, a gang may have {MAX_CLASSES}; give pods"
                    " that need nearly the same the same requests, selectors, affinity and tolerations"
                )
        if len(pending) >= MANY_PENDING:
            self._known_problem = problem
        return problem


def _too_many_consumers(pending: Sequence[Member]) -> str:
    """Return which claim more pods of a gang share than it can be reserved for; empty if there is none."""
    sharing: Counter[ClaimKey] = Counter()
    room: dict[ClaimKey, int] = {}
    for member in pending:
        sharing.update(member.claim_room.keys())
        room.update(member.claim_room)
    for key, count in sharing.items():
        if count > room[key]:
            return (
                f'{count} pending pods share resourceclaim "{key[1]}", which Kubernetes can reserve for {room[key]}'
                " more; share several claims among them, or use a template"
            )
    return ""


def size_of(workload: Workload) -> int:
    """Return the number of members of a workload: 1 for a single pod, 0 where it is unknown, as after a restart."""
    if not workload.gang:
        return 1
    return 0 if workload.bound_earlier and workload.size == 1 else workload.size


_LEAVING: Final = "(leaving) "
"""Prefix of the key of members that leave a gang. No id that a tenant writes equals it: ids begin with a namespace, or
are uids."""
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
    "creation_limit",
    "disruption_mode",
)


def _alike(group: PodGroup | None, other: PodGroup | None) -> bool:
    return group is other or (group is not None and other is not None and group.has_same_request_as(other))


def member_order(member: Member) -> tuple[bool, tuple[int, str], int, float, str]:
    """Return the key that sorts members by index, age and name."""
    index = member.index
    series = member.series if index is not None else (0, "")
    return (index is None, series, index or 0, member.created, member.name)


class Workloads:
    """All workloads that have members, and which workload each pod belongs to.

    If all placed members of a gang are being deleted, they become a workload of their own with the same id. Only its
    pods lead to it: its key is not an id. The pods that replace them form a new gang.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, Workload] = {}
        self._of_pod: dict[str, str] = {}
        self._ending: set[str] = set()
        """Gangs of which members are being deleted."""
        self._listing = False

    def __iter__(self) -> Iterator[Workload]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id_: str) -> Workload | None:
        """Return a workload by id."""
        return self._by_id.get(id_)

    def of_pod(self, uid: str) -> tuple[Workload, Member] | None:
        """Return the workload of a pod and the pod's member."""
        id_ = self._of_pod.get(uid)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        return workload, workload.members[uid]

    def decided(self, uid: str) -> bool:
        """Return whether this process decided where a pod runs."""
        member_entry = self.of_pod(uid)
        return member_entry is not None and member_entry[1].decided

    def join(self, template: Workload, member: Member, *, describes: bool = True) -> Workload:
        """Put a pod into its workload, which the first pod creates from the template.

        ``describes``: the template has the current request; False for a template made up for a bound pod.
        """
        previous_id = self._of_pod.get(member.uid)
        if previous_id is not None and previous_id != template.id:
            self.leave(member.uid)
        workload = self._by_id.setdefault(template.id, template)
        if describes and workload.speaks(member):
            workload.speaker = member.uid
            if workload is not template:
                workload.take_request_of(template)
        workload.put(member)
        self._of_pod[member.uid] = workload.id
        if member.leaving:
            self._ending.add(workload.id)
        self._split_off_leaving(workload)
        return workload

    def listing(self) -> None:
        """Keep each gang together until `listed`: the members that stay may be the last to appear."""
        self._listing = True

    def listed(self) -> list[Workload]:
        """Return the workloads whose pending pods now form a new gang, as those that are placed are being deleted."""
        self._listing = False
        ending = [workload for id_ in sorted(self._ending) if (workload := self._by_id.get(id_)) is not None]
        return [workload for workload in ending if self._split_off_leaving(workload)]

    def leave(self, uid: str, *, succeeded: bool = False) -> Workload | None:
        """Remove a pod; return its workload. ``succeeded``: the pod has done its part of a gang's work.

        A workload without members is removed. One of which no member runs any more no longer counts as complete, unless
        the last one succeeded while another was being bound.
        """
        id_ = self._of_pod.pop(uid, None)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        rank = workload.members[uid].rank
        workload.take(uid)
        if workload.ran.get(rank) == uid:
            if succeeded:
                workload.ran[rank] = ""
            else:
                del workload.ran[rank]
        if workload.id == id_:
            self._split_off_leaving(workload)
        if not workload.members:
            del self._by_id[id_]
            self._ending.discard(id_)
        elif not succeeded or workload.pending == len(workload.members):
            # Members that have done their part are not lost: one that is being bound in another's place runs on.
            workload.forget_lost_gang()
        return workload

    def leaves(self, uid: str, at: float = inf) -> Workload | None:
        """Mark a bound pod as being deleted; return the workload whose pending pods now form a new gang, if they do.

        ``at`` is when its deletion was requested, in seconds since the epoch.
        """
        id_ = self._of_pod.get(uid)
        if id_ is None:
            return None
        workload = self._by_id[id_]
        member = workload.members[uid]
        member.leaving, member.left_at = True, at
        if not workload.complete and workload.ran.get(member.rank) == uid:
            del workload.ran[member.rank]  # a member that is bound from now on never ran together with this one
        workload.forget_lost_gang()
        if workload.id != id_:
            return None
        self._ending.add(id_)
        return workload if self._split_off_leaving(workload) else None

    def _split_off_leaving(self, workload: Workload) -> bool:
        """Split placed members from pending ones if all placed ones are being deleted; return whether that was done."""
        if self._listing or not workload.gang or workload.id not in self._ending:
            return False
        if not 0 < workload.pending < len(workload.members):
            return False
        if any(member.stage is not Stage.PENDING and not member.leaving for member in workload.members.values()):
            return False
        placed = [member for member in workload.members.values() if member.stage is not Stage.PENDING]
        leaving_id = f"{_LEAVING}{workload.id}"
        if leaving_id not in self._by_id:
            leaving_workload = replace(
                workload, members={}, ran=dict(workload.ran), speaker="", bound=0, pending=0, marked_members=()
            )
            self._by_id[leaving_id] = leaving_workload
        for member in placed:
            workload.take(member.uid)
            self._by_id[leaving_id].put(member)
            self._of_pod[member.uid] = leaving_id
        workload.complete, workload.partially_bound_since, workload.bound_earlier = False, None, False
        workload.forget_ran()
        self._ending.discard(workload.id)
        return True
