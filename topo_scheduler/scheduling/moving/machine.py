"""Which pods would have to move for a gang that is pending though enough GPUs are free. The plan is published only.

The same for a single pod that asks for MIG slots, if recovery may move pods for these (`slot_moves`).

A pod is movable if this process placed it, its controller recreates it, and its priority is not above the gang's. It
must not say `movable: "false"`, be in a gang in segments, or be protected by a disruption budget. The search runs apart
from decisions. It starts once a gang has been pending for a while and resources became free since the last search. The
pause between searches grows with their cost.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from topo_scheduler.api.text import few_for, few_of
from topo_scheduler.api.waiting import RepairSpec
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Backoff
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.plan import MovePlan, plan_moves, unbroken
from topo_scheduler.scheduling.moving.replacement_query import GoneError
from topo_scheduler.scheduling.moving.slot_search import SlotSearch, slots_sentence, unmoved
from topo_scheduler.scheduling.placing.levels import wish_of
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.segments import has_segments
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.victims import PODS_PER_PART, Candidate, Candidates, collecting
from topo_scheduler.scheduling.queueing.queue_keys import least_of
from topo_scheduler.scheduling.time_slicing import More, SlicedSearch, always, whole
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.resources import Amounts
from topo_scheduler.state.pods.disruption_budgets import DisruptionLimit
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import LONGEST_WAIT_SECONDS, VictimInfo
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, Workloads
from topo_scheduler.state.topology.topology_merge import crossed

MIN_PAUSE_SECONDS: Final = 10.0
"""Seconds between two searches at least."""
PAUSE_SECONDS_PER_CANDIDATE: Final = 1e-3
"""Seconds until the next search for each candidate of this one."""
MAX_PODS: Final = 256
"""Pending pods in no gang for which the scheduler seeks moves."""
MAX_PODS_OF_NAMESPACE: Final = 32
"""The same of one namespace. Others follow once these have a place."""


GONE: Final = "gone"
"""Stands for the state of a search during which candidates disappeared: it has no result."""


@dataclass(slots=True)
class _PendingGang:
    """A pending gang, or a single pod that asks for MIG slots.

    Attributes:
        since: time from which it has been pending, in seconds.
        text: the published reason.
        state: state at the last search.
        plan: result of the last search.
        sentence: ``plan`` as published.
        obstacle: why no pod is moved to make room for its namespace now; empty if its reason has that already.
    """

    since: float
    text: str
    pod_of: str = ""
    """The namespace of a pod in no gang."""
    state: Hashable = None
    plan: MovePlan | None = None
    sentence: str = ""
    obstacle: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    """Pauses the searches that raised or exceeded their budget."""

    @property
    def described(self) -> str:
        """The plan as published, and why it is not carried out now."""
        return f"{self.sentence} {self.obstacle}".rstrip() if self.sentence else ""


class Moving:
    """Plans of moves for pending gangs."""

    def __init__(
        self,
        world: World,
        workloads: Workloads,
        attempts: Attempts,
        preempting: Preempting,
        spec: RepairSpec,
        *,
        slots: bool = False,
    ) -> None:
        """``slots``: whether to search for moves for pods that ask for MIG slots, too."""
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._preempting = preempting
        self._spec = spec
        self._slots = slots
        self._wanted: dict[str, _PendingGang] = {}
        self._not_before = -inf
        self._parts: SlicedSearch[tuple[Workload, str]] = SlicedSearch(world)
        self._searched: _PendingGang | None = None
        self._now = 0.0

    def configure(self, spec: RepairSpec, *, slots: bool = False) -> None:
        """Apply a new configuration."""
        self._spec, self._slots = spec, slots
        self._parts.drop()
        if self._searched is not None:
            self._searched.state = None
        for id_, gang in list(self._wanted.items()):
            if not (slots if gang.pod_of else spec.enabled):
                self.forget(id_)

    # ------------------------------------------------------------ pending gangs

    def found_unschedulable(self, workload: Workload, text: str, since: float, *, room_helps: bool) -> str:
        """Record that a workload has no room. Return the sentence to add to its reason; empty without a plan."""
        if not (self._spec.enabled or self._slots):
            return ""
        if not self._is_wanted(workload) or not room_helps or workload.doubt:
            self.forget(workload.id)
            return ""
        gang = self._wanted.get(workload.id)
        if gang is None:
            gang = self._wanted[workload.id] = _PendingGang(since, text, "" if workload.gang else workload.namespace)
        gang.since, gang.text = since, text
        self._note_obstacle(gang, workload.namespace)
        return gang.described

    def _is_wanted(self, workload: Workload) -> bool:
        """Return whether a search may help a workload. Pods in no gang must have claims, and there is a cap on them."""
        if workload.gang:
            return self._spec.enabled
        if not self._slots or not any(member.cls.claims for member in workload.at(Stage.PENDING)):
            return False
        if workload.id in self._wanted:
            return True
        namespaces = [gang.pod_of for gang in self._wanted.values() if gang.pod_of]
        return len(namespaces) < MAX_PODS and namespaces.count(workload.namespace) < MAX_PODS_OF_NAMESPACE

    def describe(self, id_: str) -> str:
        """Return the moves that would make room for a workload, as text. Empty without a plan."""
        gang = self._wanted.get(id_)
        return gang.described if gang is not None else ""

    @property
    def awaited(self) -> bool:
        """Whether a gang is pending that moves may help."""
        return bool(self._wanted)

    def plans(self) -> list[tuple[Workload, MovePlan]]:
        """Return the pending gangs and their last plans, the longest pending first. Plans may no longer be possible."""
        ordered = sorted(self._wanted.items(), key=lambda item: (item[1].since, item[0]))
        workload_plans = [(self._workloads.get(id_), gang.plan) for id_, gang in ordered]
        return [(workload, plan) for workload, plan in workload_plans if workload is not None and plan is not None]

    def search_again(self) -> None:
        """Search again for all gangs, because more is known about pods than at the last search."""
        for gang in self._wanted.values():
            gang.state = None

    def forget(self, id_: str) -> None:
        """Forget a workload that is placed or gone."""
        if self._wanted:
            self._wanted.pop(id_, None)

    def due(
        self, now: float, more: More = always, clock: Callable[[], float] | None = None
    ) -> list[tuple[Workload, str]]:
        """Search for moves for one gang that has been pending long enough. Return it if the plan changed.

        ``more`` returns whether there is time left. The next call continues an unfinished search. ``clock`` limits the
        time of each part of it. The result also contains the reason of the gang.
        """
        self._now = now
        if self._parts.stale:
            self._parts.drop()
            self._not_before = now + MIN_PAUSE_SECONDS
            if self._searched is not None:
                self._searched.state = None
        if not self._parts.going and not self._begin(now):
            return []
        return self._parts.work(more, clock)

    def failed(self, now: float) -> str:
        """Give up a search that raised, and pause searches for its gang. Return the ID of the gang."""
        self._parts.drop()
        self._not_before = now + MIN_PAUSE_SECONDS
        for id_, gang in self._wanted.items():
            if gang is self._searched:
                gang.plan, gang.sentence = None, ""
                gang.backoff.fail(now)
                return id_
        return ""

    @property
    def working(self) -> bool:
        """Whether a search is in progress."""
        return self._parts.going

    def _begin(self, now: float) -> bool:
        """Begin to search for moves for one gang. Return whether there is such a gang."""
        if not self._wanted or now < self._not_before:
            return False
        for id_, gang in sorted(self._wanted.items(), key=lambda item: (item[1].since, item[0])):
            workload = self._workloads.get(id_)
            if workload is None or not workload.at(Stage.PENDING):
                self.forget(id_)
            elif self._earliest_begin(gang) <= now and gang.state != (state := self._state(id_)):
                gang.state = state
                self._searched = gang
                self._parts.begin(self._search_for(workload, gang))
                return True
        return False

    def _earliest_begin(self, gang: _PendingGang) -> float:
        """Return the earliest time at which a search for a gang may begin."""
        return max(gang.since + self._spec.after, gang.backoff.until)

    def _search_for(self, workload: Workload, gang: _PendingGang) -> Iterator[tuple[Workload, str] | None]:
        """Search for moves for a gang. Yield None after each part of the work, and the gang if the plan changed."""
        if gang.pod_of:
            plan, candidate_count, state = yield from self._find_slot_plan(workload)
        else:
            plan, candidate_count, state = yield from self._find_plan(workload, self._now, self._spec.max_moves)
        self._not_before = self._now + max(MIN_PAUSE_SECONDS, PAUSE_SECONDS_PER_CANDIDATE * candidate_count)
        if self._wanted.get(workload.id) is not gang or self._workloads.get(workload.id) is not workload:
            return
        position = self._world.nodes.capacity_changes.position
        if state is GONE or (plan is not None and state != position and not self._is_possible(plan, workload)):
            gang.state = None  # the plan is no longer possible
            return
        gang.plan = plan
        reader = self._world.reader(workload.namespace)
        sentence_before, gang.sentence = gang.sentence, "" if plan is None else self.sentence(plan, reader)
        if sentence_before != gang.sentence:
            self._note_obstacle(gang, workload.namespace)
            yield workload, gang.text

    def _note_obstacle(self, gang: _PendingGang, namespace: str) -> None:
        obstacle = self._preempting.room_by_moves.obstacle(namespace, self._now)
        gang.obstacle = "" if obstacle in gang.text else obstacle

    def next_due(self) -> float | None:
        """Return when `due` must be called next."""
        if self._parts.going:
            return self._now
        begin_times = [
            self._earliest_begin(gang) for id_, gang in self._wanted.items() if gang.state != self._state(id_)
        ]
        return max(min(begin_times), self._not_before) if begin_times else None

    # ------------------------------------------------------------ plans

    def plan(self, workload: Workload, now: float, max_moves: int) -> MovePlan | None:
        """Return the fewest pods whose move makes room for a workload, or None if the search finds none.

        The caller must first count what is promised to other workloads (`Preempting.count_for`,
        `Reserving.count_for`). The search verifies every plan on a copy of the state.

        Args:
            workload: the pending workload.
            now: time in seconds.
            max_moves: pods that may move at most.
        """
        return whole(self._find_plan(workload, now, max_moves))[0]

    def movable(self, workload: Workload) -> Candidates:
        """Return the pods that may move to make room for a workload, with a GPU-time of 0."""
        return whole(self._candidates(workload))

    def sentence(self, plan: MovePlan, reader: str = "") -> str:
        """Return a plan as text. ``reader``: namespace whose names the text may contain, see `few_for`."""
        names, layout = self._world.nodes.names, self._world.layout
        if plan.devices:
            return slots_sentence(plan, names, reader)
        pods = [f"{move.pod.occupant.key} from {names[move.pod.row]} to {names[move.to]}" for move in plan.moves]
        leaves = ["/".join(layout.paths[leaf]) for leaf in plan.placement.leaves]
        count = f"{len(pods)} pod{'s' if len(pods) > 1 else ''}"
        return f"Moving {count} ({few_for(pods, reader, 'pod')}) would make room in {few_of(leaves)}."

    def _find_slot_plan(self, workload: Workload) -> Generator[None, None, tuple[MovePlan | None, int, Hashable]]:
        """Return the same for a single pod that asks for MIG slots."""
        if not self._preempting.budgets.known:
            return None, 0, None
        candidates = yield from self._candidates(workload)
        yield
        searched = SlotSearch(self._world, self._workloads, self._attempts, self._preempting, workload, candidates)
        try:
            plan = yield from searched.find(self._now, self._spec.max_moves)
        except PluginError:
            return None, 0, None  # the next attempt reports it
        except GoneError:
            return None, 0, GONE
        return plan, len(candidates.pods), self._world.nodes.capacity_changes.position

    def _find_plan(
        self, workload: Workload, now: float, max_moves: int
    ) -> Generator[None, None, tuple[MovePlan | None, int, Hashable]]:
        """Return a plan, the number of candidates, and the state for which it was made."""
        if not self._preempting.budgets.known:
            return None, 0, None
        layout = self._world.layout
        try:
            groups, _, never = self._attempts.groups(workload, workload.at(Stage.PENDING)[: least_of(workload)])
            if never:
                return None, 0, None
            candidates = yield from self._candidates(workload)
            yield
            ask = self._attempts.ask_by_now(workload, groups, layout, now)
            layout = crossed(layout, ask.woven)
            members = [pod for _, members_of_class in groups for pod in members_of_class]
            group_profiles = [[member.profile for member in members_of_class] for _, members_of_class in groups]
            profiles = group_profiles if self._rules_apply(members, candidates) else ()
            yield
            if not unmoved(self._world, candidates):
                return None, 0, GONE
            steps = plan_moves(
                self._attempts.planner, ask, layout, candidates, self.again, now, max_moves, profiles, groups
            )
            with self._world.nothing_kept():
                self._preempting.count_for(workload)
                next(steps, None)
            state: Hashable = self._world.nodes.capacity_changes.position
            plan = yield from steps
        except PluginError:
            return None, 0, None  # the next attempt reports it
        except GoneError:
            return None, 0, GONE
        return plan, len(candidates.pods), state

    def _is_possible(self, plan: MovePlan, workload: Workload) -> bool:
        """Return whether nodes still have the resources for a plan that was made a moment ago."""
        nodes, ledger = self._world.nodes, self._world.ledger
        groups, _, _ = self._attempts.groups(workload, workload.at(Stage.PENDING)[: least_of(workload)])
        if [len(members) for _, members in groups] != [len(rows) for rows in plan.placement.rows]:
            return False
        changes: Counter[tuple[int, int]] = Counter()
        for move in plan.moves:
            entry = ledger.get(move.pod.occupant.uid)
            if entry is None or entry.row != move.pod.row:
                return False
            for column, amount in entry.amounts:
                changes[entry.row, column] -= amount
                changes[move.to, column] += amount
        for (cls, _), rows in zip(groups, plan.placement.rows, strict=True):
            for row in rows:
                for column, amount in cls.amounts:
                    changes[row, column] += amount
        held = self._world.held()
        return all(held[cell] + added <= nodes.allocatable[cell] for cell, added in changes.items() if added > 0)

    def _candidates(self, workload: Workload) -> Generator[None, None, Candidates]:
        budgets = self._preempting.budgets
        rows: list[tuple[VictimInfo, int, Amounts, Profile | None, DisruptionLimit | None]] = []
        for count, (uid, entry) in enumerate(list(self._world.ledger.items())):
            if count % PODS_PER_PART == PODS_PER_PART - 1:
                yield
            occupant, of_pod = entry.occupant, self._workloads.of_pod(uid)
            if occupant is None or of_pod is None or occupant.fixed or occupant.terminating or entry.row < 0:
                continue
            owner, member = of_pod
            is_movable = bool(member.cls.amounts) and member.recreated and owner.request.movable
            # A move does not plan link bandwidth or segments again.
            is_movable = is_movable and not owner.request.bandwidth and not has_segments(owner)
            if not is_movable or owner is workload:
                continue
            if owner.priority_as_victim(occupant.priority) > workload.priority:
                continue
            if occupant.grace > LONGEST_WAIT_SECONDS:
                continue  # others would wait for it, and lose their seats
            guards = budgets.guarding(entry.profile)
            if len(guards) > 1 or any(guard.allowed <= 0 for guard in guards):
                continue
            rows.append((occupant, entry.row, entry.amounts, entry.profile, guards[0] if guards else None))
        rows.sort(key=lambda item: (item[1], item[0].key, item[0].uid))
        yield
        candidates = yield from collecting(rows, [], {}, {}, self._workloads, self._world, 0.0)
        return unbroken(candidates, self._running)

    def _rules_apply(self, members: Sequence[Member], candidates: Candidates) -> bool:
        """Return whether rules about other pods apply to a member or a candidate."""
        if self._world.pod_index.repelling or any(member.profile and member.profile.repels for member in members):
            return True
        owners = (self._workloads.of_pod(pod.occupant.uid) for pod in candidates.pods)
        return any(owner is not None and owner[1].cls.constraints is not None for owner in owners)

    def _running(self, id_: str) -> int:
        workload = self._workloads.get(id_)
        if workload is None:
            return -1
        return sum(member.stage is not Stage.PENDING for member in workload.members.values())

    def again(self, pods: Sequence[Candidate]) -> PlacementQuery:
        """Return the query that places the pods of one workload again once they are gone."""
        owners = [owner for pod in pods if (owner := self._workloads.of_pod(pod.occupant.uid)) is not None]
        if len(owners) < len(pods):
            raise GoneError
        workload, members = owners[0][0], [member for _, member in owners]
        groups, _, _ = self._attempts.groups(workload, members)
        ask = self._attempts.ask(workload, groups, (), self._world.layout)
        moving_uids = {member.uid for member in members}
        row_of = self._world.nodes.row_of
        rows = [
            row_of[member.node]
            for member in workload.members.values()
            if member.stage is not Stage.PENDING and member.uid not in moving_uids and member.node in row_of
        ]
        return replace(ask, running=sorted(rows))

    def _state(self, id_: str) -> Hashable:
        """Return the state on which a search for a gang depends: a new search is useful only if it changed."""
        workload, steps = self._workloads.get(id_), 0
        if workload is not None and workload.request.relax_after:
            steps = wish_of(workload, workload.at(Stage.PENDING), self._world.layout, self._now).steps
        return self._world.improvements, self._preempting.budgets.changes, steps
