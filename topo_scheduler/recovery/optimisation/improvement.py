"""Consolidation: moves gangs that span more leaves than a placement now would need, if the gain exceeds the cost.

A gang in too many leaves runs slower by ``improvement.slowdown``. So returning to fewer leaves gains that share of its
GPUs times its expected remaining seconds. The cost is that of moving *all* its pods (`relocation.cost_of`), however few
of them move, as the others stand still meanwhile. A gang without a known end stays.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec
from topo_scheduler.recovery.model.instructions import CreateMigration, LearnPods
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pods
from topo_scheduler.recovery.optimisation.sliced_search import Look, VoluntarySearch
from topo_scheduler.recovery.planning.migration_validation import may_move
from topo_scheduler.recovery.planning.relocation import cost_of
from topo_scheduler.recovery.planning.voluntary_moves import (
    CHECKED_PODS_OF_SLICE,
    find_pods_to_read,
    leaves_of,
    seats_of_whole,
)
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.workloads import Stage, Workload

AGAIN_SECONDS: Final = 600.0
"""Seconds after which a gang with a Migration is checked again."""
MAX_TRIED_GANGS: Final = 4
"""Gangs that are tried in one search, at most; the next search tries the others."""


@dataclass
class Improving(VoluntarySearch):
    """Gangs that could use fewer leaves."""

    pause = 30.0
    _state: object = None
    _more: bool = True
    """Whether gangs remain to be checked."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """When a gang may be tried again, by gang."""
    _tried: set[str] = field(default_factory=set)
    """Gangs that were tried since resources were last freed."""
    _read: set[str] = field(default_factory=set)
    """Uids of pods that need not be read again, or that are being read."""

    @property
    def _on(self) -> bool:
        return self.context.spec.improvement.enabled

    def _may_begin(self) -> bool:
        if (state := self.context.view.improvements) != self._state:
            self._state, self._more = state, True
            self._tried.clear()
        return self._more

    def _look(self) -> Look:
        """Check all gangs, and try some; yields after each slice of the work, and the instructions."""
        view = self.context.view
        self._not_before = {id_: at for id_, at in self._not_before.items() if at > self._now}
        self._read = {uid for uid in self._read if view.entry(uid) is not None}
        spread: list[Workload] = []
        for number, workload in enumerate(view.workloads()):
            if number % CHECKED_PODS_OF_SLICE == CHECKED_PODS_OF_SLICE - 1:
                yield None
            if self._may_spread(workload):
                spread.append(workload)
        uids = [uid for workload in spread for uid in workload.members]
        if unread := (yield from find_pods_to_read(view, uids, self._read)):
            yield [LearnPods(unread)]
            return
        self._more = len(spread) > MAX_TRIED_GANGS
        for id_ in sorted(workload.id for workload in spread)[:MAX_TRIED_GANGS]:
            yield None
            self._tried.add(id_)
            gang = view.workload(id_)
            if (
                gang is not None
                and self._spreads(gang)
                and (create := self._create_migration(gang, self._now)) is not None
            ):
                self._not_before[id_] = self._now + AGAIN_SECONDS
                yield [create]

    def _may_spread(self, workload: Workload) -> bool:
        """Return whether a complete gang runs in several leaves, and was not tried since resources were last freed."""
        tried = workload.id in self._tried or workload.id in self._not_before
        return workload.gang and not tried and self._spreads(workload)

    def _spreads(self, workload: Workload) -> bool:
        """Return whether a complete gang runs in several leaves."""
        members = workload.members.values()
        if len(members) < max(2, workload.size) or any(member.stage is not Stage.BOUND for member in members):
            return False
        return leaves_of(self.context.view, (member.node for member in members)) > 1

    def _create_migration(self, workload: Workload, now: float) -> CreateMigration | None:
        """Return the Migration that moves a gang to fewer leaves; None if there is none, or its gain is too small."""
        context, view, wall = self.context, self.context.view, self.context.epoch + now
        members = list(filter(may_move, find_moving_pods(view, sorted(workload.members))))
        if len(members) < len(workload.members) or not self._worth_it(members, now):
            return None
        taken = {move.uid for tracked in context.tracked.values() for move in context.own_moves(tracked.migration)}
        if not taken.isdisjoint(workload.members) or context.moved.resting(members, context.spec.limits, wall):
            return None
        seats = seats_of_whole(view, members, context.detection.avoided(now), now)
        before = leaves_of(view, (pod.entry.node for pod in members))
        after = leaves_of(view, seats.values()) if seats else before
        moving = [pod for pod in members if seats.get(pod.member.uid) != pod.entry.node]
        if after >= before or not moving:
            return None
        count = f"{len(moving)} pod{'s' if len(moving) > 1 else ''}"
        leaves = f"{after} lea{'ves' if after > 1 else 'f'}"
        spec = MigrationSpec(
            cause=f"gang {workload.namespace}/{workload.name} lies in {leaves} instead of {before} if {count} move",
            reason=Cause.IMPROVEMENT.value,
            pods=[MigrationPod(pod.member.name, pod.member.uid) for pod in moving],
        )
        create = CreateMigration(workload.namespace, name_for(moving, timestamp(wall)), spec)
        context.intended[create.key] = ()
        return create

    def _worth_it(self, members: list[MovingPod], now: float) -> bool:
        """Return whether a gang gains more by running faster than its pods lose by the move, in GPU-seconds."""
        view, spec = self.context.view, self.context.spec.improvement
        remaining = min((view.expected_end(pod.member.uid, pod.entry, now) - now for pod in members), default=inf)
        if remaining == inf:
            return False
        gpus = sum(pod.entry.amount(GPU) for pod in members)
        return spec.slowdown * gpus * remaining > sum(cost_of(pod, self.context.epoch + now) for pod in members)
