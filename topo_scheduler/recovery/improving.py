"""Gangs that lie in more leaves than they would if they were placed now: they return to fewer, if that is worth it.

A gang in too many leaves is taken to run slower by ``improvement.slowdown``: returning gains that share of its GPUs
times the seconds that it is still expected to run. It costs what moving *all* of its pods costs (`room.cost_of`),
however few of them move, as the others stand still until they are back; a gang of which nothing tells when it ends
stays.
"""

from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec
from topo_scheduler.recovery.by_choice import leaves_of, seats_of_whole, unread
from topo_scheduler.recovery.ground import Ground
from topo_scheduler.recovery.instructions import CreateMigration, Instruction, LearnPods
from topo_scheduler.recovery.naming import name_for
from topo_scheduler.recovery.reading import may_move
from topo_scheduler.recovery.room import cost_of
from topo_scheduler.recovery.seating import Leaver, leaver
from topo_scheduler.recovery.tracked import stamp
from topo_scheduler.state.resources import GPU
from topo_scheduler.state.workloads import Stage, Workload

LOOK: Final = 30.0
"""Seconds between two looks, at least."""
AGAIN: Final = 600.0
"""Seconds after which a gang for which a Migration was made is looked at again."""
MOST_TRIED: Final = 4
"""Gangs that are tried in one look, at most; the others are in the next."""


@dataclass(slots=True)
class Improving:
    """Gangs that might lie in fewer leaves."""

    ground: Ground
    _at: float = -inf
    _state: object = None
    _more: bool = True
    """Whether gangs are left to be looked at."""
    _not_before: dict[str, float] = field(default_factory=dict)
    """By gang: when it may be tried again."""
    _tried: set[str] = field(default_factory=set)
    """Gangs that were tried since something became free."""
    _read: set[str] = field(default_factory=set)
    """Uids of pods of which nothing more is to be learned, or that are being read."""

    def step(self, now: float) -> list[Instruction]:
        """Return the Migrations to create, and the pods to be read before it is known what moving them costs."""
        if not self.ground.spec.improvement.enabled or now < self._at + LOOK:
            return []
        engine, self._at = self.ground.engine, now
        if (state := engine.world.improvements) != self._state:
            self._state, self._more = state, True
            self._tried.clear()
        if not self._more:
            return []
        self._not_before = {id_: at for id_, at in self._not_before.items() if at > now}
        self._read = {uid for uid in self._read if engine.world.ledger.get(uid) is not None}
        spread = [one for one in engine.workloads if self._may_spread(one)]
        if strangers := unread(engine, (uid for one in spread for uid in one.members), self._read):
            return [LearnPods(strangers)]
        self._more = len(spread) > MOST_TRIED
        out: list[Instruction] = []
        for workload in sorted(spread, key=lambda one: one.id)[:MOST_TRIED]:
            self._tried.add(workload.id)
            if (create := self._improved(workload, now)) is not None:
                self._not_before[workload.id] = now + AGAIN
                out.append(create)
        return out

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next."""
        if not self.ground.spec.improvement.enabled:
            return None
        return max(now, self._at + LOOK)

    def _may_spread(self, workload: Workload) -> bool:
        """Whether a gang runs whole in several leaves, and was not tried since something became free."""
        if not workload.gang or workload.id in self._tried or workload.id in self._not_before:
            return False
        members = workload.members.values()
        if len(members) < max(2, workload.size) or any(member.stage is not Stage.BOUND for member in members):
            return False
        return leaves_of(self.ground.engine, (member.node for member in members)) > 1

    def _improved(self, workload: Workload, now: float) -> CreateMigration | None:
        """Return the Migration that brings a gang into fewer leaves; None where there is none, or it isn't worth it."""
        ground, engine, wall = self.ground, self.ground.engine, self.ground.epoch + now
        found = [leaver(engine, uid) for uid in sorted(workload.members)]
        members = [one for one in found if one is not None and may_move(one)]
        if len(members) < len(found) or not self._worth_it(members, now):
            return None
        taken = {uid for one in ground.tracked.values() for uid in (move.uid for move in one.migration.status.moves)}
        if not taken.isdisjoint(workload.members) or ground.moved.resting(members, ground.spec.limits, wall):
            return None
        seats = seats_of_whole(engine, members, ground.detection.avoided(now), now)
        before = leaves_of(engine, (one.entry.node for one in members))
        after = leaves_of(engine, seats.values()) if seats else before
        astray = [one for one in members if seats.get(one.member.uid) != one.entry.node]
        if after >= before or not astray:
            return None
        count = f"{len(astray)} pod{'s' if len(astray) > 1 else ''}"
        leaves = f"{after} lea{'ves' if after > 1 else 'f'}"
        spec = MigrationSpec(
            cause=f"gang {workload.namespace}/{workload.name} lies in {leaves} instead of {before} if {count} move",
            reason=Cause.IMPROVEMENT.value,
            pods=[MigrationPod(one.member.name, one.member.uid) for one in astray],
        )
        create = CreateMigration(workload.namespace, name_for(astray, stamp(wall)), spec)
        ground.intended[create.key] = ()
        return create

    def _worth_it(self, members: list[Leaver], now: float) -> bool:
        """Whether a gang gains more by running faster than its pods lose by being moved, in GPU-seconds."""
        ends, spec = self.ground.engine.reserving.ends, self.ground.spec.improvement
        left = min((ends.of(one.member.uid, one.entry, now) - now for one in members), default=inf)
        if left == inf:
            return False
        gpus = sum(one.entry.amount(GPU) for one in members)
        return spec.slowdown * gpus * left > sum(cost_of(one, self.ground.epoch + now) for one in members)
