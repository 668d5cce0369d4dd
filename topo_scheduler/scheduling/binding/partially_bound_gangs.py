"""Gangs of which some members are bound and others are not: each is completed before long, or rolled back.

The clock of a gang starts when something keeps it from being completed. A member finds no room, its bind fails or gets
no answer, a plugin fails, or the pods of the missing members do not exist. Every member that is bound restarts the
clock. When the time is up, the scheduler evicts all bound members. It takes back binds of which nothing was sent, and
withdraws other binds that are not settled. The gang then backs off, longer each time.

A gang that ran complete once is never rolled back. Some of its members carry a condition that records this, so that the
next leader knows it too.

Until then the nodes of members whose binds failed stay reserved against other workloads of the same or lower priority.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from math import inf
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.scheduling.instructions import EmitEvent, Evict, Instruction, MarkComplete, Recall, reference
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.scheduling.preemption.nominations import Nomination, Nominations
from topo_scheduler.scheduling.queueing.queue_keys import is_partially_bound
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads

ROLL_BACK_AFTER_SECONDS: Final = 5.0
"""Seconds for which a gang may stay partially bound without another member being bound."""
IDLE_SECONDS: Final = 1.0
"""Seconds for which an unwritten decision, which waits for a dry run or volumes, delays a rollback."""
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 300.0
PART_INSTRUCTIONS: Final = 256
"""Evictions, events and recalled binds of rollbacks that one part hands out, two for each bound member."""
PART_SECONDS: Final = 0.1
"""Seconds between two parts: a tenant can itself bind thousands of pods as a gang that is never complete."""
MARKED_MEMBERS: Final = 3
"""Members of a complete gang that carry the condition: the fact survives the loss of all but one of them."""

IdleSince = Callable[[str], float]
"""Returns when the bind of a member, by uid, was decided, in seconds; infinite once it was handed out to be written."""


class PartiallyBoundGangs:
    """Follows gangs that are partially bound. It costs nothing while there are none."""

    def __init__(self, workloads: Workloads, nominations: Nominations) -> None:
        self._workloads = workloads
        self._clocks: dict[str, None] = {}
        self._succeeded: dict[str, float] = {}
        """Ids of gangs of which a member had succeeded before the first decision, and when the last one did."""
        self._may_lack_marks: dict[str, None] = {}
        """Ids of complete gangs of which a member changed or left since the last step."""
        self.hanging: set[str] = set()
        """Uids of pods whose binds hang, or wait behind such binds. Read only."""
        self._withdrawn: set[str] = set()
        self._seats: dict[str, dict[str, None]] = {}
        """Uids of the members whose nodes are reserved, by id of the gang."""
        self.nominations = nominations
        self._later: dict[str, deque[Evict | EmitEvent | Recall]] = {}
        """Instructions of rollbacks that are not handed out yet, by id of the gang; gangs take turns."""
        self._next_part = 0.0

    # ------------------------------------------------------------ the clock

    def hindered(self, workload: Workload, since: float) -> None:
        """Record that something has kept a gang from being completed since a moment."""
        if workload.partially_bound_since is None and self._may_be_rolled_back(workload):
            workload.partially_bound_since = since
            self._clocks[workload.id] = None

    def gets_on(self, workload: Workload, now: float) -> None:
        """Record that a member was bound."""
        workload.progressed = now
        if workload.partially_bound_since is not None:
            workload.partially_bound_since = now
        elif workload.failing:
            self.hindered(workload, now)  # the bind of another member failed before this one took effect

    def hangs(self, workload: Workload, member: Member, decided: float) -> None:
        """Record that the API server answers, but not to the bind of a member, or to binds that block this one."""
        self.hanging.add(member.uid)
        self.hindered(workload, max(workload.progressed, decided))

    def lacks_pods(self, workload: Workload, now: float) -> None:
        """Start the clock of a partially bound gang whose missing members have no pods: no attempt would start it."""
        if workload.gang and all(member.stage is Stage.BOUND for member in workload.members.values()):
            self.hindered(workload, now)

    def succeeded(self, gang: str, at: float | None) -> None:
        """Record, before the first decision, that a member of a gang has succeeded.

        ``at``: when it ended, in seconds since the epoch; None if that is unknown.
        """
        self._succeeded[gang] = max(inf if at is None else at, self._succeeded.get(gang, -inf))

    def begin(self) -> None:
        """Treat gangs of which a member has succeeded as complete: that member may have carried the condition.

        This does not hold for members that were bound after it had ended: they belong to a later gang of that name.
        """
        for id_, ended in self._succeeded.items():
            workload = self._workloads.get(id_)
            if workload is not None and workload.bound_earlier:
                bound = (member for member in workload.members.values() if member.stage is Stage.BOUND)
                workload.complete = workload.complete or any(member.bound_at <= ended for member in bound)
        self._succeeded.clear()

    def complete(self, workload: Workload) -> None:
        """Record that all members of a gang are bound."""
        workload.partially_bound_since = None
        workload.rollbacks, workload.not_before = 0, 0.0

    def next_due(self, idle_since: IdleSince) -> float | None:
        """Return when to call `take_due` next."""
        part = [self._next_part] if self._later else []
        return min([due for _, due in self._partially_bound(idle_since)] + part, default=None)

    def take_due(self, now: float, idle_since: IdleSince) -> list[Workload]:
        """Return the gangs to roll back now."""
        self._let_go()
        return [workload for workload, due in self._partially_bound(idle_since) if now >= due]

    def pause(self, workload: Workload, now: float) -> float:
        """Return until when the scheduler must not retry a gang; ``now`` if it may retry it."""
        members = workload.members
        unsettled = [uid for uid, member in members.items() if member.evicted and not member.leaving]
        waits = unsettled or not self._withdrawn.isdisjoint(members)
        return max(workload.not_before, now + 1.0 if waits else now)

    # ------------------------------------------------------------ rolling back

    def roll_back(self, workload: Workload, now: float) -> list[str]:
        """Begin to roll a gang back: see `part`. Return the members whose binds are to be withdrawn, by uid."""
        pause = doubled(FIRST_PAUSE_SECONDS, workload.rollbacks + 1, LONGEST_PAUSE_SECONDS)
        workload.rollbacks += 1
        workload.not_before = now + pause
        workload.partially_bound_since, workload.progressed = None, 0.0
        workload.forget_ran()
        bound = [member for member in workload.at(Stage.BOUND) if not member.leaving]
        text = (
            f"gang {workload.name} could not be completed: {len(bound)} of {workload.size} members were bound. They are"
            f" evicted, and the gang is tried again in {pause:.0f} s."
        )
        later = self._later.setdefault(workload.id, deque())
        withdrawn = workload.at(Stage.ASSUMED)
        self._withdrawn.update(member.uid for member in withdrawn)
        later += [Recall(reference(member), workload.id) for member in withdrawn]
        waiting = {instruction.pod.uid for instruction in later if not isinstance(instruction, Recall)}
        for member in bound:
            message = text if member.controlled else f"{text} This pod has no controller: create it again."
            if member.uid not in waiting:
                later += self._evict(member, text, message)
        pending = workload.at(Stage.PENDING)
        later += [EmitEvent(reference(other), True, Reason.FAILED_SCHEDULING, text) for other in pending]
        return [member.uid for member in withdrawn]

    def part(self, now: float) -> list[Instruction]:
        """Return the next part of the instructions of rollbacks, without pods that were deleted meanwhile."""
        out: list[Instruction] = []
        if self._later and now >= self._next_part:
            self._next_part = now + PART_SECONDS
            for id_ in list(self._later):
                if len(out) >= PART_INSTRUCTIONS:
                    break
                later = self._later.pop(id_)
                share = max(2, PART_INSTRUCTIONS // (len(self._later) + 1))
                for _ in range(min(share, len(later), PART_INSTRUCTIONS - len(out))):
                    instruction = later.popleft()
                    if self._workloads.of_pod(instruction.pod.uid) is not None:
                        out.append(instruction)
                if later:
                    self._later[id_] = later  # behind the other gangs
        return out

    def bound_too_late(self, workload: Workload, member: Member) -> list[Instruction]:
        """Return what to do when a bind took effect that the scheduler meant to withdraw."""
        if member.uid not in self._withdrawn or workload.complete:
            return []
        text = f"gang {workload.name} was rolled back before this bind took effect"
        return [*self._evict(member, text, text)]

    def is_withdrawn(self, uid: str) -> bool:
        """Return whether a bind was withdrawn, so that it must not take effect."""
        return uid in self._withdrawn

    def eviction_refused(self, workload: Workload, member: Member, message: str, now: float) -> list[Instruction]:
        """Record that a member stays for now: after its backoff a gang still partially bound is rolled back again."""
        member.evicted = False
        if self._may_be_rolled_back(workload):
            workload.partially_bound_since = max(now, workload.not_before) - ROLL_BACK_AFTER_SECONDS
            self._clocks[workload.id] = None
        text = f"gang {workload.name} could not be completed, and this member can't be evicted yet: {message}"
        return [EmitEvent(reference(member), True, Reason.ROLLED_BACK, text)]

    def ended(self, uid: str) -> None:
        """Record that a bind has ended, or that its pod was deleted."""
        self.hanging.discard(uid)
        self._withdrawn.discard(uid)

    # ------------------------------------------------------------ seats

    def keep_seat(self, workload: Workload, member: Member, node: str) -> None:
        """Reserve a node for a member that was not bound there, as long as its gang is partially bound."""
        if member.uid in self._withdrawn:
            return
        # While its clock runs, the gang was partially bound at the last step. Thousands of binds may fail together.
        if workload.partially_bound_since is not None or is_partially_bound(workload):
            self._seats.setdefault(workload.id, {})[member.uid] = None
            name = _seat(workload.id, member.uid)
            self.nominations.put(
                Nomination(name, node, workload.priority, member.cls.amounts, None, workload.namespace)
            )

    def own(self, workload: Workload) -> Mapping[str, object]:
        """Return the nodes reserved for members of a workload, by the names of their nominations."""
        seats = self._seats.get(workload.id)
        return {_seat(workload.id, uid): None for uid in seats} if seats else {}

    # ------------------------------------------------------------ gangs that ran complete

    def bears(self, workload: Workload, member: Member) -> None:
        """Record a member of a gang that carries the condition, until `MARKED_MEMBERS` of them are known."""
        if (
            member.marked
            and member.uid not in workload.marked_members
            and len(workload.marked_members) < MARKED_MEMBERS
        ):
            workload.marked_members = (*workload.marked_members, member.uid)

    def may_lack_marks(self, workload: Workload) -> None:
        """Record that a member of a gang changed or left: the step marks another if fewer carry the condition now.

        Not at once: a gang may have thousands of members that are deleted one after the other.
        """
        if workload.gang and workload.complete:
            self._may_lack_marks[workload.id] = None

    def missing_marks(self) -> list[Instruction]:
        """Return the conditions to write in place of those of members that left since the last step."""
        changed, self._may_lack_marks = self._may_lack_marks, {}
        known = (workload for id_ in changed if (workload := self._workloads.get(id_)) is not None)
        return [instruction for workload in known for instruction in self.marks(workload)]

    def marks(self, workload: Workload, *, spread: bool = False) -> list[Instruction]:
        """Return the conditions to write so that the next leader knows that a gang ran complete.

        ``spread``: choose the members evenly over the order of ranks, as the gang becomes complete. Otherwise the
        member that came last replaces a marked one that leaves.
        """
        if not workload.gang or not workload.complete:
            return []
        known = (workload.members.get(uid) for uid in workload.marked_members)
        workload.marked_members = tuple(member.uid for member in known if member and member.marked and _stays(member))
        lack = MARKED_MEMBERS - len(workload.marked_members)
        if lack <= 0:
            return []
        if spread:
            stay = [member for member in workload.at(Stage.BOUND) if _stays(member)]
            lack -= sum(member.marked and member.uid not in workload.marked_members for member in stay)
            fresh = [member for member in stay if not member.marked]
            chosen = list(_spread(fresh, min(lack, len(fresh))))
        else:
            latest = reversed(workload.members.values())
            chosen = list(islice((recent for recent in latest if _stays(recent) and not recent.marked), lack))
        for member in chosen:
            member.marked = True
            self.bears(workload, member)
        return [MarkComplete(reference(member)) for member in chosen]

    # ------------------------------------------------------------ inside

    def _may_be_rolled_back(self, workload: Workload) -> bool:
        # It is unknown whether a gang that an older version bound ran complete, unless a bind fails now.
        members = workload.members.values()
        known = (
            not workload.bound_earlier
            or workload.attempts
            or any(member.recorded_size for member in members)
            or all(member.decided for member in members if member.stage is Stage.BOUND)
        )
        return bool(known) and is_partially_bound(workload)

    def _partially_bound(self, idle_since: IdleSince) -> list[tuple[Workload, float]]:
        known = [workload for id_ in self._clocks if (workload := self._workloads.get(id_)) is not None]
        partially_bound = [
            (workload, since) for workload in known if (since := workload.partially_bound_since) is not None
        ]
        self._clocks = {workload.id: None for workload, _ in partially_bound}
        dues = [(workload, self._due(workload, since, idle_since)) for workload, since in partially_bound]
        return [(workload, due) for workload, due in dues if due < inf]

    def _due(self, workload: Workload, since: float, idle_since: IdleSince) -> float:
        """Return when to roll a gang back, in seconds; infinite while binds of it are being written.

        Until those end, the scheduler does not know which members will be bound. A bind that hangs, or waits behind
        such a bind, is no reason to delay the rollback.
        """
        assumed = (member.uid for member in workload.members.values() if member.stage is Stage.ASSUMED)
        idle = [idle_since(uid) for uid in assumed if uid not in self.hanging]
        return max([since + ROLL_BACK_AFTER_SECONDS, *(at + IDLE_SECONDS for at in idle)])

    def _evict(self, member: Member, text: str, message: str) -> list[Evict | EmitEvent | Recall]:
        member.evicted = True
        return [Evict(reference(member), text), EmitEvent(reference(member), True, Reason.ROLLED_BACK, message)]

    def _let_go(self) -> None:
        for id_, uids in list(self._seats.items()):
            workload = self._workloads.get(id_)
            members = workload.members if workload is not None and is_partially_bound(workload) else {}
            for uid in list(uids):
                member = members.get(uid)
                if member is None or member.stage is not Stage.PENDING:
                    del uids[uid]
                    self.nominations.drop(_seat(id_, uid))
            if not uids:
                del self._seats[id_]


def _stays(member: Member) -> bool:
    return member.stage is Stage.BOUND and not (member.leaving or member.evicted)


def _seat(gang: str, uid: str) -> str:
    return f"partially-bound:{gang}:{uid}"


def _spread(members: list[Member], count: int) -> Iterable[Member]:
    """Yield ``count`` members, as far from one another in the order of ranks as possible."""
    last = len(members) - 1
    for number in range(count):
        yield members[last * number // max(1, count - 1) if count > 1 else 0]
