"""Creates Migrations for gangs that are pending although enough GPUs are free: one for each such gang.

The same for single pods that ask for a MIG slot.

The engine finds the moves (`scheduling.moving`). Here they are checked again, and dropped if a workload was moved
lately. `gang_room` executes these Migrations.
"""

from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, OtherPod
from topo_scheduler.recovery.model.instructions import CreateMigration, LearnPods
from topo_scheduler.recovery.model.migration_state import timestamp
from topo_scheduler.recovery.model.naming import name_of
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pods
from topo_scheduler.recovery.optimisation.sliced_search import Look, VoluntarySearch
from topo_scheduler.recovery.planning.migration_validation import may_move
from topo_scheduler.recovery.planning.slot_seats import slot_seats
from topo_scheduler.recovery.planning.voluntary_checks import why_no_room_is_made
from topo_scheduler.recovery.planning.voluntary_moves import find_pods_to_read, gang_seats
from topo_scheduler.scheduling.moving.plan import MovePlan
from topo_scheduler.scheduling.queueing.queue_keys import lacking, least_of, order_of
from topo_scheduler.state.pods.workloads import Member, Stage, Workload

AGAIN_SECONDS: Final = 300.0
"""Seconds after which another Migration may be created for the same gang."""


@dataclass
class Defragmenting(VoluntarySearch):
    """Gangs for which moves may make room."""

    pause = 5.0
    _not_before: dict[str, float] = field(default_factory=dict)
    """When another Migration may be created, by gang."""
    _read: set[str] = field(default_factory=set)
    """Uids of pods that need not be read again, or that are being read."""

    def _look(self) -> Look:
        """Check all pods, then all pending gangs; yields after each slice of the work, and the instructions."""
        view = self.context.view
        self._not_before = {id_: at for id_, at in self._not_before.items() if at > self._now}
        uids = [uid for uid, _ in view.entries()]
        self._read.intersection_update(uids)
        if unread := (yield from find_pods_to_read(view, uids, self._read)):
            yield [LearnPods(unread)]
        for id_ in [workload.id for workload, _ in view.planning.gang_plans() if workload.id not in self._not_before]:
            yield None
            planned = next((entry for entry in view.planning.gang_plans() if entry[0].id == id_), None)
            if planned is not None and (create := self._create_migration(*planned, self._now)) is not None:
                self._not_before[id_] = self._now + AGAIN_SECONDS
                yield [create]

    @property
    def _on(self) -> bool:
        spec = self.context.spec.defragmentation
        return (spec.enabled or spec.mig_slots) and self.context.view.planning.gangs_wait

    def _create_migration(self, workload: Workload, plan: MovePlan, now: float) -> CreateMigration | None:
        """Return the Migration that holds a gang's seats; None if there is one, or if moves would be useless now."""
        context, spec = self.context, self.context.spec.defragmentation
        if not (spec.enabled if workload.gang else spec.mig_slots):
            return None
        if not workload.gang and context.view.held.has_seat_for(workload):
            return None  # it was moved itself, and its slot is being freed
        if why_no_room_is_made(context, workload.namespace, now):
            return None
        pending = workload.at(Stage.PENDING)
        members = pending[: least_of(workload)]
        pods = find_moving_pods(context.view, (move.pod.occupant.uid for move in plan.moves))
        leaving_pods = [pod for pod in pods if may_move(pod)]
        if (
            not members
            or lacking(workload, pending)
            or len(leaving_pods) < len(plan.moves)
            or self._under_way(members, leaving_pods)
        ):
            return None
        wall = context.epoch + now
        if context.moved.resting(leaving_pods, context.spec.limits, wall):
            return None
        avoided = context.detection.avoided(now)
        if workload.gang:
            possible = bool(gang_seats(context.view, workload, members, leaving_pods, avoided, "", now))
        else:
            possible = bool(slot_seats(context.view, workload, members[0], leaving_pods, avoided, "", now))
        if not possible:
            return None
        since = timestamp(context.epoch + order_of(workload).since)
        uids = [*(member.uid for member in members), *(pod.member.uid for pod in leaving_pods)]
        name = name_of(workload, [*uids, timestamp(wall)])
        named = [OtherPod(pod.member.namespace, pod.member.name, pod.member.uid) for pod in leaving_pods]
        moves = context.view.planning.described(plan, workload.namespace)
        kind, cause = ("gang", Cause.PENDING_GANG) if workload.gang else ("pod", Cause.PENDING_POD)
        migration = MigrationSpec(
            cause=f"{kind} {workload.namespace}/{workload.name} is pending. {moves}",
            reason=cause.value,
            since=since,
            pods=[MigrationPod(member.name, member.uid) for member in members],
        )
        create = CreateMigration(workload.namespace, name, migration)
        context.intended[create.key] = tuple(named)
        return create

    def _under_way(self, members: list[Member], leaving_pods: list[MovingPod]) -> bool:
        """Return whether a Migration, created or intended, holds seats for these members or moves these pods."""
        uids = {member.uid for member in members} | {pod.member.uid for pod in leaving_pods}
        if any(other.uid in uids for named in self.context.intended.values() for other in named):
            return True
        return any(
            not uids.isdisjoint(
                [
                    *self.context.named_uids(tracked.migration),
                    *(other.uid for other in tracked.migration.status.others),
                ]
            )
            for tracked in self.context.tracked.values()
        )
