"""Gangs that lie in more leaves than they would if they were placed now: they return to fewer, if that is worth it.

A gang in too many leaves is taken to run slower by ``improvement.slowdown``: returning gains that share of its GPUs
times the seconds that it is still expected to run. It costs what moving *all* of its pods costs (`room.cost_of`),
however few of them move, as the others stand still until they are back; a gang of which nothing tells when it ends
stays.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec
from topo_scheduler.recovery.by_choice import LOOKED_AT, leaves_of, look_for_unread, seats_of_whole
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.instructions import CreateMigration, Instruction, LearnPods
from topo_scheduler.recovery.looking import Look, Looking
from topo_scheduler.recovery.naming import name_for
from topo_scheduler.recovery.reading import may_move
from topo_scheduler.recovery.room import cost_of
from topo_scheduler.recovery.seating import MovingPod, leaver
from topo_scheduler.recovery.tracked import stamp
from topo_scheduler.state.resources import GPU
from topo_scheduler.state.workloads import Stage, Workload

LOOK: Final = 30.0
"""Seconds between two looks, at least."""
AGAIN: Final = 600.0
"""Seconds after which a gang for which a Migration was made is looked at again."""
MOST_TRIED: Final = 4
"""Gangs that are tried in one look, at most; the others are in the next."""


class Improving:
    """Gangs that might lie in fewer leaves."""

    def __init__(self, ground: MigrationContext, clock: Callable[[], float]) -> None:
        """``clock`` seconds, tells how long a step takes: see `looking`."""
        self.ground = ground
        self._looking = Looking(ground.engine.world, clock)
        self._at = self._now = -inf
        self._state: object = None
        self._more = True
        """Whether gangs are left to be looked at."""
        self._not_before: dict[str, float] = {}
        """By gang: when it may be tried again."""
        self._tried: set[str] = set()
        """Gangs that were tried since something became free."""
        self._read: set[str] = set()
        """Uids of pods of which nothing more is to be learned, or that are being read."""

    def step(self, now: float) -> list[Instruction]:
        """Return the Migrations to create, and the pods to be read before it is known what moving them costs."""
        self._now = now
        if not self.ground.spec.improvement.enabled:
            self._looking.drop()
            return []
        if not self._looking.going and now >= self._at + LOOK:
            self._at = now
            if (state := self.ground.engine.world.improvements) != self._state:
                self._state, self._more = state, True
                self._tried.clear()
            if self._more:
                self._looking.begin(self._look())
        return self._looking.step(now)

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next."""
        if not self.ground.spec.improvement.enabled:
            return None
        return self._looking.next_due() if self._looking.going else max(now, self._at + LOOK)

    def _look(self) -> Look:
        """Look at all gangs, and try some; yields after each part, and what is to be done."""
        engine = self.ground.engine
        self._not_before = {id_: at for id_, at in self._not_before.items() if at > self._now}
        self._read = {uid for uid in self._read if engine.world.ledger.get(uid) is not None}
        spread: list[Workload] = []
        for number, workload in enumerate(list(engine.workloads)):
            if number % LOOKED_AT == LOOKED_AT - 1:
                yield None
            if self._may_spread(workload):
                spread.append(workload)
        uids = [uid for workload in spread for uid in workload.members]
        if strangers := (yield from look_for_unread(engine, uids, self._read)):
            yield [LearnPods(strangers)]
            return
        self._more = len(spread) > MOST_TRIED
        for id_ in sorted(workload.id for workload in spread)[:MOST_TRIED]:
            yield None
            self._tried.add(id_)
            known = engine.workloads.get(id_)
            if known is not None and self._spreads(known) and (create := self._improved(known, self._now)) is not None:
                self._not_before[id_] = self._now + AGAIN
                yield [create]

    def _may_spread(self, workload: Workload) -> bool:
        """Whether a gang runs whole in several leaves, and was not tried since something became free."""
        tried = workload.id in self._tried or workload.id in self._not_before
        return workload.gang and not tried and self._spreads(workload)

    def _spreads(self, workload: Workload) -> bool:
        """Whether a gang runs whole in several leaves."""
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

    def _worth_it(self, members: list[MovingPod], now: float) -> bool:
        """Whether a gang gains more by running faster than its pods lose by being moved, in GPU-seconds."""
        ends, spec = self.ground.engine.reserving.ends, self.ground.spec.improvement
        left = min((ends.of(one.member.uid, one.entry, now) - now for one in members), default=inf)
        if left == inf:
            return False
        gpus = sum(one.entry.amount(GPU) for one in members)
        return spec.slowdown * gpus * left > sum(cost_of(one, self.ground.epoch + now) for one in members)
