"""Which pods would have to move for a gang that waits though enough is free: found and told, not done.

Movable are pods that this process placed and a controller makes again, of no higher priority than the gang, that don't
say `movable: "false"`, are not of a gang in segments, and that no disruption budget keeps. It is looked for off the
path of decisions: when a gang has waited a while, when something became free since, and at a pace that follows what
looking costs.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from topo_scheduler.api.waiting import RepairSpec
from topo_scheduler.scheduling.attempts import Attempts
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.plan import MovePlan, plan_moves, unbroken
from topo_scheduler.scheduling.placing.ask import Ask
from topo_scheduler.scheduling.placing.segments import has_segments
from topo_scheduler.scheduling.preemption.machine import Preempting
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, collect
from topo_scheduler.scheduling.queueing.standing import least_of
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.budgets import Guard
from topo_scheduler.state.occupants import Occupant
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import Amounts
from topo_scheduler.state.workloads import Member, Stage, Workload, Workloads

LOOK_AGAIN: Final = 10.0
"""Seconds between two looks at least."""
PACE: Final = 1e-3
"""Seconds to the next look for each pod that might have been moved."""


@dataclass(slots=True)
class _Wanted:
    """A gang that waits. ``text`` why, as it was told; ``sentence`` the plan, as it was told last."""

    since: float
    text: str
    state: Hashable = None
    sentence: str = ""


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
        self._wanted: dict[str, _Wanted] = {}
        self._not_before = -inf

    def configure(self, spec: RepairSpec) -> None:
        """Take over a new configuration."""
        self._spec = spec
        if not spec.enabled:
            self._wanted.clear()

    # ------------------------------------------------------------ who waits

    def parked(self, workload: Workload, text: str, since: float, *, room_helps: bool) -> str:
        """Note that a workload has no room; return what there is to add to the reason why it waits."""
        if not self._spec.enabled:
            return ""
        if not workload.gang or not room_helps:
            self._wanted.pop(workload.id, None)
            return ""
        known = self._wanted.setdefault(workload.id, _Wanted(since, text))
        known.since, known.text = since, text
        return known.sentence

    def told(self, id_: str) -> str:
        """Return the moves that would make room for a workload, in words; empty where none are known."""
        wanted = self._wanted.get(id_)
        return wanted.sentence if wanted is not None else ""

    def forget(self, id_: str) -> None:
        """Forget a workload that is placed or gone."""
        if self._wanted:
            self._wanted.pop(id_, None)

    def due(self, now: float) -> list[tuple[Workload, str]]:
        """Look for moves for one gang that has waited long enough; return it and why it waits, if others are found."""
        if not self._wanted or now < self._not_before:
            return []
        state = self._state()
        for id_, one in sorted(self._wanted.items(), key=lambda item: (item[1].since, item[0])):
            workload = self._workloads.get(id_)
            if workload is None or not workload.at(Stage.PENDING):
                del self._wanted[id_]
            elif one.since + self._spec.after <= now and one.state != state:
                one.state = state
                plan, looked = self._look(workload, now, self._spec.most_moves)
                self._not_before = now + max(LOOK_AGAIN, PACE * looked)
                before, one.sentence = one.sentence, "" if plan is None else self.sentence(plan)
                return [(workload, one.text)] if before != one.sentence else []
        return []

    def next_due(self) -> float | None:
        """Return when `due` must be asked next."""
        state = self._state() if self._wanted else None
        waits = [one.since + self._spec.after for one in self._wanted.values() if one.state != state]
        return max(min(waits), self._not_before) if waits else None

    # ------------------------------------------------------------ plans

    def plan(self, workload: Workload, now: float, most: int) -> MovePlan | None:
        """Return the fewest pods whose move makes room for a workload, at most so many; None where none are found.

        What is promised to others is to be counted by the caller before (`Preempting.count_for`,
        `Reserving.count_for`). Every plan was tried on a copy of the state.
        """
        return self._look(workload, now, most)[0]

    def sentence(self, plan: MovePlan) -> str:
        """Return a plan in words."""
        names, layout = self._world.nodes.names, self._world.layout
        pods = [f"{move.pod.occupant.key} from {names[move.pod.row]} to {names[move.to]}" for move in plan.moves]
        more = f" and {len(pods) - 4} more" if len(pods) > 4 else ""
        leaves = ["/".join(layout.paths[leaf]) for leaf in plan.placement.leaves]
        where = ", ".join(leaves[:4]) + (f" and {len(leaves) - 4} more" if len(leaves) > 4 else "")
        count = f"{len(pods)} pod{'s' if len(pods) > 1 else ''}"
        return f"Moving {count} ({', '.join(pods[:4])}{more}) would make room in {where}."

    def _look(self, workload: Workload, now: float, most: int) -> tuple[MovePlan | None, int]:
        if not self._preempting.budgets.known:
            return None, 0
        self._preempting.count_for(workload)
        layout = self._world.layout
        try:
            groups, _, never = self._attempts.groups(workload, workload.at(Stage.PENDING)[: least_of(workload)])
            if never:
                return None, 0
            ask = self._attempts.ask(workload, groups, (), layout)
            candidates = self._candidates(workload)
            members = [pod for _, some in groups for pod in some]
            seen = [[member.profile for member in some] for _, some in groups]
            profiles = seen if self._look_around(members, candidates) else ()
            plan = plan_moves(self._attempts.planner, ask, layout, candidates, self._again, now, most, profiles)
        except PluginError:
            return None, 0  # the next attempt tells it
        return plan, len(candidates.pods)

    def _candidates(self, workload: Workload) -> Candidates:
        budgets = self._preempting.budgets
        found: list[tuple[Occupant, int, Amounts, Profile | None, Guard | None]] = []
        for uid, entry in self._world.ledger.items():
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
        candidates = collect(found, [], {}, {}, self._workloads, self._world, 0.0)
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

    def _again(self, pods: Sequence[Candidate]) -> Ask:
        """Return what is asked for pods of one workload once they are gone."""
        found = [one for pod in pods if (one := self._workloads.of_pod(pod.occupant.uid)) is not None]
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

    def _state(self) -> Hashable:
        return self._world.improvements, self._preempting.budgets.changes
