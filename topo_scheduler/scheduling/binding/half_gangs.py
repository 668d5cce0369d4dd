"""Gangs of which some members are bound and others are not: each is completed before long, or rolled back.

The clock of a gang starts when something keeps it from being completed: a member finds no room, its bind fails or is
not answered, a plugin fails, or the pods of the missing members do not exist. Every member that is bound starts it
anew. When it has run out, all bound members are evicted, binds of which nothing was sent are taken back, others that
are not settled are withdrawn, and the gang pauses, longer each time. A gang that ran complete once is left as it is:
some of its members bear a condition that says so, so that the next leader knows it too.

Until then the nodes that members had, whose binds failed, are kept from other workloads of the same or lower priority.
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
from topo_scheduler.scheduling.queueing.standing import half_bound
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads

ROLL_BACK_AFTER_SECONDS: Final = 5.0
"""How long a gang may stay half bound without another member being bound."""
IDLE_SECONDS: Final = 1.0
"""For so long a decision of which nothing is written yet, as a rehearsal or volumes are awaited, holds that back."""
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 300.0
PART_INSTRUCTIONS: Final = 256
"""Evictions, events and recalled binds of rollbacks that are handed out at once, two for each bound member."""
PART_SECONDS: Final = 0.1
"""From one part to the next: a tenant can bind thousands of pods itself as a gang that is never complete."""
MARKED_MEMBERS: Final = 3
"""Members of a complete gang that bear the condition: the fact outlives the loss of all but one of them."""

IdleSince = Callable[[str], float]
"""Returns when the bind of a member, by uid, was decided; infinite once it was handed out to be written."""


class HalfGangs:
    """Follows gangs that are half bound. Costs nothing while there are none."""

    def __init__(self, world: World, workloads: Workloads) -> None:
        self._workloads = workloads
        self._clocks: dict[str, None] = {}
        self._succeeded: dict[str, None] = {}
        """Gangs of which a member had succeeded before the first decision, by id."""
        self._hanging: set[str] = set()
        self._withdrawn: set[str] = set()
        self._seats: dict[str, str] = {}
        """Workload of each member whose node is kept, by uid."""
        self.nominations = Nominations(world)
        self._later: dict[str, deque[Evict | EmitEvent | Recall]] = {}
        """What rollbacks ask for and is not handed out yet, by id of the gang; gangs take turns."""
        self._next_part = 0.0

    # ------------------------------------------------------------ the clock

    def hindered(self, workload: Workload, since: float) -> None:
        """Note that something has kept a gang from being completed since a moment."""
        if workload.half_bound_since is None and self._may_be_rolled_back(workload):
            workload.half_bound_since = since
            self._clocks[workload.id] = None

    def gets_on(self, workload: Workload, now: float) -> None:
        """Note that a member was bound."""
        workload.progressed = now
        if workload.half_bound_since is not None:
            workload.half_bound_since = now
        elif workload.failing:
            self.hindered(workload, now)  # the bind of another member failed before this one took effect

    def hangs(self, workload: Workload, member: Member, decided: float) -> None:
        """Note that the API server answers, but not to the bind of a member, or to those before which it waits."""
        self._hanging.add(member.uid)
        self.hindered(workload, max(workload.progressed, decided))

    def lacks_pods(self, workload: Workload, now: float) -> None:
        """Start the clock of a half-bound gang whose missing members have no pods: no attempt comes that would."""
        if workload.gang and all(member.stage is Stage.BOUND for member in workload.members.values()):
            self.hindered(workload, now)

    def succeeded(self, gang: str) -> None:
        """Note before the first decision that a member of a gang has succeeded."""
        self._succeeded[gang] = None

    def begin(self) -> None:
        """Take gangs of which a member has succeeded for complete: what marked them may have been that member."""
        for id_ in self._succeeded:
            workload = self._workloads.get(id_)
            if workload is not None and workload.bound_earlier:
                workload.complete = True
        self._succeeded.clear()

    def complete(self, workload: Workload) -> None:
        """Note that all of a gang is bound."""
        workload.half_bound_since = None
        workload.rollbacks, workload.not_before = 0, 0.0

    def next_due(self, idle_since: IdleSince) -> float | None:
        """Return when `take_due` must be asked next."""
        part = [self._next_part] if self._later else []
        return min([due for _, due in self._half(idle_since)] + part, default=None)

    def take_due(self, now: float, idle_since: IdleSince) -> list[Workload]:
        """Return the gangs that are to be rolled back now."""
        self._let_go()
        return [workload for workload, due in self._half(idle_since) if now >= due]

    def pause(self, workload: Workload, now: float) -> float:
        """Return until when a gang must not be tried; the present where it may be."""
        unsettled = any(
            (member.evicted and not member.leaving) or member.uid in self._withdrawn
            for member in workload.members.values()
        )
        return max(workload.not_before, now + 1.0 if unsettled else now)

    # ------------------------------------------------------------ rolling back

    def roll_back(self, workload: Workload, now: float) -> list[str]:
        """Begin to roll a gang back: see `part`; return the members whose binds are to be withdrawn, by uid."""
        pause = doubled(FIRST_PAUSE_SECONDS, workload.rollbacks + 1, LONGEST_PAUSE_SECONDS)
        workload.rollbacks += 1
        workload.not_before = now + pause
        workload.half_bound_since, workload.progressed = None, 0.0
        workload.ran.clear()
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
            said = text if member.controlled else f"{text} This pod has no controller: create it again."
            if member.uid not in waiting:
                later += self._evict(member, text, said)
        pending = workload.at(Stage.PENDING)
        later += [EmitEvent(reference(one), True, Reason.FAILED_SCHEDULING, text) for one in pending]
        return [member.uid for member in withdrawn]

    def part(self, now: float) -> list[Instruction]:
        """Return the next part of what rollbacks ask for, without pods that are gone meanwhile."""
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
                    self._later[id_] = later  # behind the others
        return out

    def bound_too_late(self, workload: Workload, member: Member) -> list[Instruction]:
        """Return what is to be done when a bind took effect that was to be withdrawn."""
        if member.uid not in self._withdrawn or workload.complete:
            return []
        text = f"gang {workload.name} was rolled back before this bind took effect"
        return [*self._evict(member, text, text)]

    def is_withdrawn(self, uid: str) -> bool:
        """Return whether a bind is to have no effect any more."""
        return uid in self._withdrawn

    def eviction_refused(self, workload: Workload, member: Member, message: str, now: float) -> list[Instruction]:
        """Take over that a member stays for now: its gang is rolled back again after its pause, if it is half then."""
        member.evicted = False
        if self._may_be_rolled_back(workload):
            workload.half_bound_since = max(now, workload.not_before) - ROLL_BACK_AFTER_SECONDS
            self._clocks[workload.id] = None
        text = f"gang {workload.name} could not be completed, and this member can't be evicted yet: {message}"
        return [EmitEvent(reference(member), True, Reason.ROLLED_BACK, text)]

    def ended(self, uid: str) -> None:
        """Note that a bind has ended, or that its pod is gone."""
        self._hanging.discard(uid)
        self._withdrawn.discard(uid)

    # ------------------------------------------------------------ seats

    def keep_seat(self, workload: Workload, member: Member, node: str) -> None:
        """Keep a node for a member that was not bound there, as long as its gang is half bound."""
        if half_bound(workload) and member.uid not in self._withdrawn:
            self._seats[member.uid] = workload.id
            seat = Nomination(_seat(member.uid), node, workload.priority, member.cls.amounts, None)
            self.nominations.put(seat)

    def own(self, workload: Workload) -> Mapping[str, object]:
        """Return the seats that are kept for a workload."""
        if not self._seats:
            return {}
        return {_seat(uid): None for uid, id_ in self._seats.items() if id_ == workload.id}

    # ------------------------------------------------------------ gangs that ran complete

    def bears(self, workload: Workload, member: Member) -> None:
        """Note a member of a gang that bears the condition, as far as it must be known of that many."""
        if (
            member.marked
            and member.uid not in workload.marked_members
            and len(workload.marked_members) < MARKED_MEMBERS
        ):
            workload.marked_members = (*workload.marked_members, member.uid)

    def marks(self, workload: Workload, *, spread: bool = False) -> list[Instruction]:
        """Return what is to be written so that the next leader knows that a gang ran complete.

        ``spread``: over the order of ranks, as it becomes complete. For a bearer that leaves the member that came last
        stands in: that is found at once, and a gang may have thousands of members, each of which is deleted.
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
            chosen = list(islice((one for one in latest if _stays(one) and not one.marked), lack))
        for member in chosen:
            member.marked = True
            self.bears(workload, member)
        return [MarkComplete(reference(member)) for member in chosen]

    # ------------------------------------------------------------ inside

    def _may_be_rolled_back(self, workload: Workload) -> bool:
        # Of a gang that an older version bound it is not known whether it ran complete, unless a bind fails now.
        known = (
            not workload.bound_earlier
            or workload.attempts
            or any(one.recorded_size for one in workload.members.values())
        )
        return bool(known) and half_bound(workload)

    def _half(self, idle_since: IdleSince) -> list[tuple[Workload, float]]:
        known = [workload for id_ in self._clocks if (workload := self._workloads.get(id_)) is not None]
        half = [(workload, since) for workload in known if (since := workload.half_bound_since) is not None]
        self._clocks = {workload.id: None for workload, _ in half}
        dues = [(workload, self._due(workload, since, idle_since)) for workload, since in half]
        return [(workload, due) for workload, due in dues if due < inf]

    def _due(self, workload: Workload, since: float, idle_since: IdleSince) -> float:
        """Return when a gang is to be rolled back; infinite as long as binds are on their way: who is bound then?

        One that hangs, or waits behind such, is no reason to wait.
        """
        assumed = (member.uid for member in workload.members.values() if member.stage is Stage.ASSUMED)
        idle = [idle_since(uid) for uid in assumed if uid not in self._hanging]
        return max([since + ROLL_BACK_AFTER_SECONDS, *(at + IDLE_SECONDS for at in idle)])

    def _evict(self, member: Member, text: str, said: str) -> list[Evict | EmitEvent | Recall]:
        member.evicted = True
        return [Evict(reference(member), text), EmitEvent(reference(member), True, Reason.ROLLED_BACK, said)]

    def _let_go(self) -> None:
        for uid, id_ in list(self._seats.items()):
            found = self._workloads.of_pod(uid)
            waits = found is not None and found[0].id == id_ and found[1].stage is Stage.PENDING
            if found is None or not waits or not half_bound(found[0]):
                del self._seats[uid]
                self.nominations.drop(_seat(uid))


def _stays(member: Member) -> bool:
    return member.stage is Stage.BOUND and not (member.leaving or member.evicted)


def _seat(uid: str) -> str:
    return f"half-bound:{uid}"


def _spread(members: list[Member], count: int) -> Iterable[Member]:
    """Yield so many members, as far from one another in the order of ranks as can be."""
    last = len(members) - 1
    for number in range(count):
        yield members[last * number // max(1, count - 1) if count > 1 else 0]
