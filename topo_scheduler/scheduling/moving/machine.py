"""Which pods would have to move for a gang that waits though enough is free: found and told, not done.

Movable are pods that this process placed and a controller makes again, of no higher priority than the gang, that don't
say `movable: "false"`, are not of a gang in segments, and that no disruption budget keeps. It is looked for off the
path of decisions: when a gang has waited a while, when something became free since, and at a pace that follows what
looking costs.
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Final

from topo_scheduler.api.waiting import RepairSpec
from topo_scheduler.api.words import few_for, few_of
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.barrier import Backoff
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.plan import MovePlan, plan_moves, unbroken
from topo_scheduler.scheduling.parts import More, Parts, always, whole
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.levels import wish_of
from topo_scheduler.scheduling.placing.segments import has_segments
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.victims import PART, Candidate, Candidates, collecting
from topo_scheduler.scheduling.queueing.standing import least_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.budgets import DisruptionLimit
from topo_scheduler.state.crossing import crossed
from topo_scheduler.state.occupants import Occupant
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import Amounts
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads

LOOK_AGAIN: Final = 10.0
"""Seconds between two looks at least."""
PACE: Final = 1e-3
"""Seconds to the next look for each pod that might have been moved."""


GONE: Final = "gone"
"""Stands for the state in which pods that might have moved are gone: nothing can be said."""


class GoneError(Exception):
    """A pod that might have moved is gone."""


@dataclass(slots=True)
class _PendingGang:
    """A gang that waits. ``text`` why, as it was told; ``plan`` found last, ``sentence`` as it was told."""

    since: float
    text: str
    state: Hashable = None
    plan: MovePlan | None = None
    sentence: str = ""
    backoff: Backoff = field(default_factory=Backoff)
    """How often a look for it raised or took too much."""


class Moving:
    """Plans of moves."""

    def __init__(
        self, world: World, workloads: Workloads, attempts: Attempts, preempting: Preempting, spec: RepairSpec
    ) -> None:
        self._world = world
        self._workloads = workloads
        self._attempts = attempts
        self._preempting = preempting
        self._spec = spec
        self._wanted: dict[str, _PendingGang] = {}
        self._not_before = -inf
        self._parts: Parts[tuple[Workload, str]] = Parts(world)
        self._looking: _PendingGang | None = None
        self._now = 0.0

    def configure(self, spec: RepairSpec) -> None:
        """Take over a new configuration."""
        self._spec = spec
        self._parts.drop()
        if self._looking is not None:
            self._looking.state = None
        if not spec.enabled:
            self._wanted.clear()

    # ------------------------------------------------------------ who waits

    def parked(self, workload: Workload, text: str, since: float, *, room_helps: bool) -> str:
        """Note that a workload has no room; return what there is to add to the reason why it waits."""
        if not self._spec.enabled:
            return ""
        if not workload.gang or not room_helps or workload.doubt:
            self._wanted.pop(workload.id, None)
            return ""
        known = self._wanted.setdefault(workload.id, _PendingGang(since, text))
        known.since, known.text = since, text
        return known.sentence

    def told(self, id_: str) -> str:
        """Return the moves that would make room for a workload, in words; empty where none are known."""
        wanted = self._wanted.get(id_)
        return wanted.sentence if wanted is not None else ""

    @property
    def awaited(self) -> bool:
        """Whether a gang waits for which moves are looked for."""
        return bool(self._wanted)

    def plans(self) -> list[tuple[Workload, MovePlan]]:
        """Return the gangs that wait and the plans found last, which may have become impossible; longest wait first."""
        ordered = sorted(self._wanted.items(), key=lambda item: (item[1].since, item[0]))
        found = [(self._workloads.get(id_), one.plan) for id_, one in ordered]
        return [(workload, plan) for workload, plan in found if workload is not None and plan is not None]

    def look_again(self) -> None:
        """More is known of pods than when it was looked last."""
        for one in self._wanted.values():
            one.state = None

    def forget(self, id_: str) -> None:
        """Forget a workload that is placed or gone."""
        if self._wanted:
            self._wanted.pop(id_, None)

    def due(self, now: float, more: More = always) -> list[tuple[Workload, str]]:
        """Look for moves for one gang that has waited long enough; return it and why it waits, if others are found.

        What is not done when there is ``more`` time no longer is gone on with at the next call.
        """
        self._now = now
        if self._parts.stale:
            self._parts.drop()
            self._not_before = now + LOOK_AGAIN
            if self._looking is not None:
                self._looking.state = None
        if not self._parts.going and not self._begin(now):
            return []
        return self._parts.work(more)

    def failed(self, now: float) -> str:
        """Give up a look that raised, and look no more for its gang for a while; return the gang's id."""
        self._parts.drop()
        self._not_before = now + LOOK_AGAIN
        for id_, one in self._wanted.items():
            if one is self._looking:
                one.plan, one.sentence = None, ""
                one.backoff.fail(now)
                return id_
        return ""

    @property
    def working(self) -> bool:
        """Whether a look was begun and not ended."""
        return self._parts.going

    def _begin(self, now: float) -> bool:
        """Begin to look for moves for one gang; return whether there is one for which to look."""
        if not self._wanted or now < self._not_before:
            return False
        for id_, one in sorted(self._wanted.items(), key=lambda item: (item[1].since, item[0])):
            workload = self._workloads.get(id_)
            if workload is None or not workload.at(Stage.PENDING):
                del self._wanted[id_]
            elif self._begins(one) <= now and one.state != (state := self._state(id_)):
                one.state = state
                self._looking = one
                self._parts.begin(self._told_anew(workload, one))
                return True
        return False

    def _begins(self, one: _PendingGang) -> float:
        """Return when a look for a gang may begin at the earliest."""
        return max(one.since + self._spec.after, one.backoff.until)

    def _told_anew(self, workload: Workload, one: _PendingGang) -> Iterator[tuple[Workload, str] | None]:
        """Look for moves for a gang; yields after each part of the work, and the gang if others are found."""
        plan, looked, state = yield from self._look(workload, self._now, self._spec.most_moves)
        self._not_before = self._now + max(LOOK_AGAIN, PACE * looked)
        if self._wanted.get(workload.id) is not one or self._workloads.get(workload.id) is not workload:
            return
        if state is GONE or (plan is not None and state != self._taken() and not self._possible(plan, workload)):
            one.state = None  # what was found can no longer be had
            return
        one.plan = plan
        reader = self._world.reader(workload.namespace)
        before, one.sentence = one.sentence, "" if plan is None else self.sentence(plan, reader)
        if before != one.sentence:
            yield workload, one.text

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        if self._parts.going:
            return self._now
        waits = [self._begins(one) for id_, one in self._wanted.items() if one.state != self._state(id_)]
        return max(min(waits), self._not_before) if waits else None

    # ------------------------------------------------------------ plans

    def plan(self, workload: Workload, now: float, most: int) -> MovePlan | None:
        """Return the fewest pods whose move makes room for a workload, at most so many; None where none are found.

        What is promised to others is to be counted by the caller before (`Preempting.count_for`,
        `Reserving.count_for`). Every plan was tried on a copy of the state.
        """
        return whole(self._look(workload, now, most))[0]

    def movable(self, workload: Workload) -> Candidates:
        """Return the pods that may move for the sake of a workload, GPU-time left out."""
        return whole(self._candidates(workload))

    def again(self, pods: Sequence[Candidate]) -> PlacementQuery:
        """Return what is asked for pods of one workload once they are gone."""
        return self._again(pods)

    def sentence(self, plan: MovePlan, reader: str = "") -> str:
        """Return a plan in words; ``reader`` see `few_for`."""
        names, layout = self._world.nodes.names, self._world.layout
        pods = [f"{move.pod.occupant.key} from {names[move.pod.row]} to {names[move.to]}" for move in plan.moves]
        leaves = ["/".join(layout.paths[leaf]) for leaf in plan.placement.leaves]
        count = f"{len(pods)} pod{'s' if len(pods) > 1 else ''}"
        return f"Moving {count} ({few_for(pods, reader, 'pod')}) would make room in {few_of(leaves)}."

    def _look(
        self, workload: Workload, now: float, most: int
    ) -> Generator[None, None, tuple[MovePlan | None, int, Hashable]]:
        """Return a plan, how many pods might have been moved, and the state for which it was made."""
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
            members = [pod for _, some in groups for pod in some]
            seen = [[member.profile for member in some] for _, some in groups]
            profiles = seen if self._look_around(members, candidates) else ()
            yield
            if not self._there(candidates):
                return None, 0, GONE
            steps = plan_moves(self._attempts.planner, ask, layout, candidates, self._again, now, most, profiles)
            with self._world.nothing_kept():
                self._preempting.count_for(workload)
                next(steps, None)
            state = self._taken()
            plan = yield from steps
        except PluginError:
            return None, 0, None  # the next attempt tells it
        except GoneError:
            return None, 0, GONE
        return plan, len(candidates.pods), state

    def _there(self, candidates: Candidates) -> bool:
        """Return whether all who might have moved are still where they were."""
        entries = ((self._world.ledger.get(pod.occupant.uid), pod.row) for pod in candidates.pods)
        return all(entry is not None and entry.row == row for entry, row in entries)

    def _possible(self, plan: MovePlan, workload: Workload) -> bool:
        """Return whether a plan that was made a moment ago could still be carried out, as far as room goes."""
        nodes, ledger = self._world.nodes, self._world.ledger
        groups, _, _ = self._attempts.groups(workload, workload.at(Stage.PENDING)[: least_of(workload)])
        if [len(members) for _, members in groups] != [len(rows) for rows in plan.placement.rows]:
            return False
        change: Counter[tuple[int, int]] = Counter()
        for move in plan.moves:
            known = ledger.get(move.pod.occupant.uid)
            if known is None or known.row != move.pod.row:
                return False
            for column, amount in known.amounts:
                change[known.row, column] -= amount
                change[move.to, column] += amount
        for (cls, _), rows in zip(groups, plan.placement.rows, strict=True):
            for row in rows:
                for column, amount in cls.amounts:
                    change[row, column] += amount
        held = self._world.held()
        return all(held[at] + more <= nodes.allocatable[at] for at, more in change.items() if more > 0)

    def _taken(self) -> Hashable:
        return self._world.nodes.capacity_changes.position

    def _candidates(self, workload: Workload) -> Generator[None, None, Candidates]:
        budgets = self._preempting.budgets
        found: list[tuple[Occupant, int, Amounts, Profile | None, DisruptionLimit | None]] = []
        for number, (uid, entry) in enumerate(list(self._world.ledger.items())):
            if number % PART == PART - 1:
                yield
            occupant, of_pod = entry.occupant, self._workloads.of_pod(uid)
            if occupant is None or of_pod is None or occupant.fixed or occupant.terminating or entry.row < 0:
                continue
            owner, member = of_pod
            known = bool(member.cls.amounts) and member.controlled and owner.request.movable
            # What links carry is not planned anew for it, nor who of it goes where.
            known = known and not owner.request.bandwidth and not has_segments(owner)
            if not known or occupant.priority > workload.priority or owner is workload:
                continue
            guards = budgets.guarding(entry.profile) if entry.profile is not None else ()
            if len(guards) > 1 or any(guard.allowed <= 0 for guard in guards):
                continue
            found.append((occupant, entry.row, entry.amounts, entry.profile, guards[0] if guards else None))
        found.sort(key=lambda one: (one[1], one[0].key, one[0].uid))
        yield
        candidates = yield from collecting(found, [], {}, {}, self._workloads, self._world, 0.0)
        return unbroken(candidates, self._running)

    def _look_around(self, members: Sequence[Member], candidates: Candidates) -> bool:
        """Return whether it matters to a pod who else is there."""
        if self._world.residents.repelling or any(member.profile and member.profile.repels for member in members):
            return True
        found = (self._workloads.of_pod(pod.occupant.uid) for pod in candidates.pods)
        return any(one is not None and one[1].cls.constraints is not None for one in found)

    def _running(self, id_: str) -> int:
        workload = self._workloads.get(id_)
        if workload is None:
            return -1
        return sum(member.stage is not Stage.PENDING for member in workload.members.values())

    def _again(self, pods: Sequence[Candidate]) -> PlacementQuery:
        """Return what is asked for pods of one workload once they are gone."""
        found = [one for pod in pods if (one := self._workloads.of_pod(pod.occupant.uid)) is not None]
        if len(found) < len(pods):
            raise GoneError
        workload, members = found[0][0], [member for _, member in found]
        groups, _, _ = self._attempts.groups(workload, members)
        ask = self._attempts.ask(workload, groups, (), self._world.layout)
        gone = {member.uid for member in members}
        row_of = self._world.nodes.row_of
        rows = [
            row_of[member.node]
            for member in workload.members.values()
            if member.stage is not Stage.PENDING and member.uid not in gone and member.node in row_of
        ]
        return replace(ask, running=sorted(rows))

    def _state(self, id_: str) -> Hashable:
        """Return what a look for a gang depends on: a new one is worth its price when any of it changed."""
        workload, steps = self._workloads.get(id_), 0
        if workload is not None and workload.request.relax_after:
            steps = wish_of(workload, workload.at(Stage.PENDING), self._world.layout, self._now).steps
        return self._world.improvements, self._preempting.budgets.changes, steps
