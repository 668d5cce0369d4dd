"""From gangs that wait for room, though enough is free, to the Migrations that make it: one for each such gang.

The moves are those the engine found and told (`moving`); here they are tried again, and made unless a workload was
moved lately. What is made of them is `gang_room`.
"""

from collections.abc import Callable
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, OtherPod
from topo_scheduler.recovery.by_choice import gang_seats, look_for_unread
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.instructions import CreateMigration, Instruction, LearnPods
from topo_scheduler.recovery.looking import Look, Looking
from topo_scheduler.recovery.naming import name_of
from topo_scheduler.recovery.reading import may_move
from topo_scheduler.recovery.seating import MovingPod, leaver
from topo_scheduler.recovery.tracked import stamp
from topo_scheduler.scheduling.moving.plan import MovePlan
from topo_scheduler.scheduling.queueing.standing import lacking, least_of, order_of
from topo_scheduler.state.workloads import Member, Stage, Workload

LOOK: Final = 5.0
"""Seconds between two looks while gangs wait."""
AGAIN: Final = 300.0
"""Seconds after which it is tried again for a gang."""


class Defragmenting:
    """Gangs for which room is to be made."""

    def __init__(self, ground: MigrationContext, clock: Callable[[], float]) -> None:
        """``clock`` seconds, tells how long a step takes: see `looking`."""
        self.ground = ground
        self._looking = Looking(ground.engine.world, clock)
        self._at = self._now = -inf
        self._not_before: dict[str, float] = {}
        """By gang."""
        self._read: set[str] = set()
        """Uids of pods of which nothing more is to be learned, or that are being read."""

    def step(self, now: float) -> list[Instruction]:
        """Return the Migrations to create, and the pods to be read before it is known who may move."""
        self._now = now
        if not self._on or not self.ground.engine.moving.awaited:
            self._looking.drop()
            return []
        if not self._looking.going and now >= self._at + LOOK:
            self._at = now
            self._looking.begin(self._look())
        return self._looking.step(now)

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next."""
        if not self._on or not self.ground.engine.moving.awaited:
            return None
        return self._looking.next_due() if self._looking.going else max(now, self._at + LOOK)

    def _look(self) -> Look:
        """Look at all pods, then at all gangs that wait; yields after each part, and what is to be done."""
        engine, ledger = self.ground.engine, self.ground.engine.world.ledger
        self._not_before = {id_: at for id_, at in self._not_before.items() if at > self._now}
        uids = [uid for uid, _ in ledger.items()]
        self._read.intersection_update(uids)
        if strangers := (yield from look_for_unread(engine, uids, self._read)):
            yield [LearnPods(strangers)]
        for id_ in [workload.id for workload, _ in engine.moving.plans() if workload.id not in self._not_before]:
            yield None
            known = next((one for one in engine.moving.plans() if one[0].id == id_), None)
            if known is not None and (create := self._made(*known, self._now)) is not None:
                self._not_before[id_] = self._now + AGAIN
                yield [create]

    @property
    def _on(self) -> bool:
        return self.ground.spec.defragmentation.enabled

    def _made(self, workload: Workload, plan: MovePlan, now: float) -> CreateMigration | None:
        """Return the Migration that holds a gang's seats; None where there is one, or moves would do no good now."""
        ground = self.ground
        pending = workload.at(Stage.PENDING)
        members = pending[: least_of(workload)]
        found = [leaver(ground.engine, move.pod.occupant.uid) for move in plan.moves]
        others = [one for one in found if one is not None and may_move(one)]
        if not members or lacking(workload, pending) or len(others) < len(found) or self._under_way(members, others):
            return None
        wall = ground.epoch + now
        if ground.moved.resting(others, ground.spec.limits, wall):
            return None
        avoided = ground.detection.avoided(now)
        if not gang_seats(ground.engine, workload, members, others, avoided, "", now):
            return None
        since = stamp(ground.epoch + order_of(workload).since)
        name = name_of(workload, [*(one.uid for one in members), *(one.member.uid for one in others), stamp(wall)])
        named = [OtherPod(one.member.namespace, one.member.name, one.member.uid) for one in others]
        reader = ground.engine.world.reader(workload.namespace)
        spec = MigrationSpec(
            cause=f"gang {workload.namespace}/{workload.name} waits. {ground.engine.moving.sentence(plan, reader)}",
            reason=Cause.PENDING_GANG.value,
            since=since,
            pods=[MigrationPod(one.name, one.uid) for one in members],
        )
        create = CreateMigration(workload.namespace, name, spec)
        ground.intended[create.key] = tuple(named)
        return create

    def _under_way(self, members: list[Member], others: list[MovingPod]) -> bool:
        """Whether a Migration holds seats for these members, or moves one of these pods, or is about to."""
        uids = {one.uid for one in members} | {one.member.uid for one in others}
        if any(other.uid in uids for named in self.ground.intended.values() for other in named):
            return True
        return any(
            not uids.isdisjoint(
                [
                    *(move.uid for move in one.migration.status.moves),
                    *(pod.uid for pod in one.migration.spec.pods),
                    *(other.uid for other in one.migration.status.others),
                ]
            )
            for one in self.ground.tracked.values()
        )
