"""The Migration of a pending gang: it holds the gang's seats while other pods, by Migrations of their own, leave them.

The same for a single pending pod that asks for a MIG slot; then its seat has the slot.

It evicts no pod, and so goes from Reserving to Placing. All other pods have seats before the first of them is evicted.
It ends when the gang is bound, or when moving the other pods has become useless. Pods that were not evicted by then
stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Cause, Migration, MigrationPod, MigrationSpec, Move, OtherPod, Phase
from topo_scheduler.api.text import counted, one_for
from topo_scheduler.recovery.model.instructions import CreateMigration
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import ConditionUpdate, Tracked, with_replacements
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pods, move_of, pod_names, same_place, vacant
from topo_scheduler.recovery.planning.migration_validation import may_move, rest_of_gang, restarts
from topo_scheduler.recovery.planning.slot_seats import move_to_slot, slot_seats, with_places
from topo_scheduler.recovery.planning.voluntary_checks import longest_wait, why_no_room_is_made
from topo_scheduler.recovery.planning.voluntary_moves import find_pods_to_read, gang_seats, group_by_workload
from topo_scheduler.scheduling.queueing.queue_keys import lacking
from topo_scheduler.scheduling.time_slicing import whole
from topo_scheduler.state.pods.workloads import Member, Stage, Workload

PATIENCE_SECONDS: Final = 30.0
"""Seconds within which the gang must be known, and the other pods must have seats."""


@dataclass(slots=True)
class _DepartureProgress:
    """What this process knows of the pods that leave for one gang, beyond the objects."""

    created_at: float = inf
    """When their Migrations were created, in seconds."""
    seen: set[str] = field(default_factory=set)
    """Uids of pods for which a Migration was seen."""


@dataclass(slots=True)
class GangRoom:
    """Migrations with the reasons ``PendingGang`` and ``PendingPod``."""

    context: MigrationContext
    _first: dict[str, float] = field(default_factory=dict)
    """When a Migration of an unknown gang was first seen, by its uid; minus infinity once the gang was known."""
    _departures: dict[str, _DepartureProgress] = field(default_factory=dict)
    """Pods that leave, by the uid of the Migration."""

    def forget(self, uid: str) -> None:
        """Forget a Migration that is over, or was deleted."""
        self._first.pop(uid, None)
        self._departures.pop(uid, None)

    def advance(self, tracked: Tracked, now: float) -> None:
        """Do the work that is due."""
        migration = tracked.migration
        workload = self._workload(migration)
        if workload is None:
            self._handle_unknown(tracked, now)
            return
        self._first[migration.metadata.uid] = -inf
        match migration.phase:
            case None:
                self._plan(tracked, workload, now)
            case Phase.PLANNED:
                self._begin(tracked, workload, now)
            case Phase.RESERVING:
                self._reserve(tracked, workload, now)
            case _:
                self._place(tracked, workload, now)

    # ------------------------------------------------------------ planning

    def _plan(self, tracked: Tracked, workload: Workload, now: float) -> None:
        migration = tracked.migration
        members = self._waiting(migration, workload)
        named = self.context.intended.get(migration.key)
        if named is None:
            text = "the pods that would make room are no longer known: the plan behind this Migration has ended"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, text, now)
            return
        leaving_pods = self._check_leaving(tracked, workload, members, named, now)
        if leaving_pods is None:
            return
        moves, others = self._moves(tracked, workload, members, leaving_pods, named, now)
        if not moves:
            return
        reserved = ConditionUpdate(
            ConditionType.RESERVED,
            status=False,
            reason=MigrationReason.PLANNED,
            message="nodes are reserved when it begins",
        )
        self.context.write(tracked, now, Phase.PLANNED, moves, reserved, message=migration.spec.cause, others=others)

    def _begin(self, tracked: Tracked, workload: Workload, now: float) -> None:
        migration, context = tracked.migration, self.context
        members = self._waiting(migration, workload)
        leaving_pods = self._check_leaving(tracked, workload, members, migration.status.others, now)
        if leaving_pods is None:
            return
        spec = context.spec.defragmentation
        if not (spec.enabled if workload.gang else spec.mig_slots):
            field = "enabled" if workload.gang else "migSlots"
            self.context.end(
                tracked, Phase.CANCELLED, MigrationReason.OFF, f"recovery.defragmentation.{field} is not set", now
            )
            return
        blocking = context.waiting_condition(migration, leaving_pods, now)
        if blocking is None and (text := why_no_room_is_made(context, workload.namespace, now, migration.key)):
            blocking = ConditionUpdate(
                ConditionType.RESERVED, status=False, reason=MigrationReason.IN_VAIN, message=text
            )
        if blocking is not None:
            context.release(migration.key)
            context.write(tracked, now, None, None, blocking)
            return
        moves, others = self._moves(tracked, workload, members, leaving_pods, migration.status.others, now)
        if not moves:
            return
        context.keep(migration, moves)
        context.begin(migration, len(leaving_pods), now)
        leaving = pod_names(context.view, leaving_pods, migration.metadata.namespace)
        text = f"room for {counted(len(moves), 'pod')} is reserved, which {leaving} leave first"
        held = ConditionUpdate(ConditionType.RESERVED, status=True, reason=MigrationReason.NODES_RESERVED, message=text)
        context.write(tracked, now, Phase.RESERVING, moves, held, others=others)

    def _reserve(self, tracked: Tracked, workload: Workload, now: float) -> None:
        """Wait until the other pods are gone."""
        migration, context = tracked.migration, self.context
        moves = migration.status.moves
        pending = self._waiting(migration, workload)
        if pending and (lost := context.lost_target(moves, now)) is not None:
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.SEAT_LOST, f"node {lost} can't be used now", now)
            return
        context.keep(migration, self._unseated(workload, moves))
        if not pending or self._left(migration):
            context.write(tracked, now, Phase.PLACING, None)
        elif reason := self._reason_useless(tracked, now):
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NO_ROOM, reason, now)

    def _left(self, migration: Migration) -> bool:
        """Return whether there is room for the seats now. Slots are free once the pods that leave are gone."""
        view = self.context.view
        if migration.cause is Cause.PENDING_POD and any(view.entry(pod.uid) for pod in migration.status.others):
            return False
        return vacant(view, migration.status.moves)

    def _reason_useless(self, tracked: Tracked, now: float) -> str:
        """Create the Migrations of the other pods, once; return why waiting for them is useless, or an empty string."""
        migration = tracked.migration
        progress = self._departures.setdefault(migration.metadata.uid, _DepartureProgress())
        remaining = find_moving_pods(self.context.view, (other.uid for other in migration.status.others))
        # Any user can say that a Migration of other pods makes room for this one.
        others = {other.uid for other in migration.status.others}
        moved_for = self.context.moved_for(migration.key)
        moving = {uid: moved for uid, moved in moved_for.items() if uid in others}
        progress.seen |= {pod.member.uid for pod in remaining if pod.member.uid in moving}
        missing = [pod for pod in remaining if pod.member.uid not in moving]
        if stays := next((pod.member.key for pod in missing if pod.member.uid in progress.seen), ""):
            return f"{self._called(stays, migration)} is not moved: its Migration has ended"
        if missing and progress.created_at == inf:
            progress.created_at = now
            for group in group_by_workload(missing):
                self._create(migration, group)
        if missing and now - progress.created_at > PATIENCE_SECONDS:
            return (
                f"{self._called(missing[0].member.key, migration)} is not moved: no Migration could be created for it"
            )
        without_seat = [
            f"{helper.metadata.namespace}/{move.pod}" for helper, move in moving.values() if not helper.running
        ]
        if without_seat and self.context.since(tracked, Phase.RESERVING, now) > PATIENCE_SECONDS:
            return f"{self._called(without_seat[0], migration)} is not moved: no node is reserved for it"
        if self.context.since(tracked, Phase.RESERVING, now) > longest_wait(self.context, migration):
            return "the pods to move did not leave in time"
        return ""

    def _create(self, migration: Migration, group: Sequence[MovingPod]) -> None:
        namespace = group[0].workload.namespace
        spec = MigrationSpec(
            cause=f"makes room for {one_for(migration.key, self.context.view.reader(namespace), 'Migration')}",
            reason=Cause.DEFRAGMENTATION.value,
            makes_room_for=migration.key,
            pods=[MigrationPod(pod.member.name, pod.member.uid) for pod in group],
        )
        name = name_for(group, migration.metadata.uid)
        self.context.out.append(CreateMigration(namespace, name, spec))

    # ------------------------------------------------------------ placing

    def _place(self, tracked: Tracked, workload: Workload, now: float) -> None:
        """Keep the seats until the gang is bound."""
        migration, moves = tracked.migration, tracked.migration.status.moves
        seated = self._seated(workload, moves)
        bound = {uid: member for uid, member in seated.items() if member.stage is Stage.BOUND}
        if len(bound) == len(moves):
            done = with_replacements(moves, bound)
            placed = ConditionUpdate(
                ConditionType.PLACED,
                status=True,
                reason=MigrationReason.BOUND,
                message=counted(len(done), "pod", "is bound", "are bound"),
            )
            text = counted(len(done), "pod", "of the gang is bound", "of the gang are bound")
            text = text if workload.gang else "the pod is bound"
            self.context.end(tracked, Phase.DONE, placed, text, now, done)
        elif len(seated) < len(moves) and not self._waiting(migration, workload):
            self.context.end(
                tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, f"the {_kind(workload)} is no longer pending", now
            )
        elif self.context.since(tracked, Phase.PLACING, now) > self.context.spec.reservation_timeout:
            text = f"the {_kind(workload)} did not use its room in time; other workloads may use it"
            self.context.end(tracked, Phase.FAILED, MigrationReason.NOT_TAKEN, text, now)
        else:
            self.context.keep(migration, self._unseated(workload, moves))

    def _seated(self, workload: Workload, moves: Sequence[Move]) -> dict[str, Member]:
        """Return the member that took each seat, by the uid of the pod for which the seat was planned."""
        seated = [member for member in workload.members.values() if member.stage is not Stage.PENDING]
        by_uid = {member.uid: member for member in seated}
        # A Job makes the replacement of a pod while that is still being deleted.
        by_index: dict[int | None, list[Member]] = {}
        for member in seated:
            if member.index is not None and not member.leaving:
                by_index.setdefault(member.index, []).append(member)
        taken: dict[str, Member] = {}
        for move in moves:
            same = (member for member in by_index.get(move.index, ()) if same_place(move, member))
            member_or_none = by_uid.get(move.uid) or next(same, None)
            if member_or_none is not None:
                taken[move.uid] = member_or_none
        return taken

    def _unseated(self, workload: Workload, moves: Sequence[Move]) -> list[Move]:
        """Return the moves whose seats are still needed."""
        seated = self._seated(workload, moves)
        return [move for move in moves if move.uid not in seated]

    # ------------------------------------------------------------ helpers

    def _workload(self, migration: Migration) -> Workload | None:
        """Return the gang; None if it is not known yet, or is gone."""
        view = self.context.view
        if migration.status.moves:
            return view.workload(migration.status.moves[0].workload)
        known_pods = (view.member(pod.uid) for pod in migration.spec.pods)
        return next((known_pod[0] for known_pod in known_pods if known_pod is not None), None)

    def _handle_unknown(self, tracked: Tracked, now: float) -> None:
        """Handle an unknown gang: it is gone, or this process has just begun and does not know it yet."""
        migration = tracked.migration
        if migration.running:
            self.context.keep(migration, migration.status.moves)
        if now - self._first.setdefault(migration.metadata.uid, now) >= PATIENCE_SECONDS:
            kind = "pod" if migration.cause is Cause.PENDING_POD else "gang"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, f"the {kind} is gone", now)

    def _waiting(self, migration: Migration, workload: Workload) -> list[Member]:
        """Return the pending members that need seats."""
        moves = migration.status.moves
        uids = {move.uid for move in moves} | {pod.uid for pod in migration.spec.pods}
        by_index: dict[int | None, list[Move]] = {}
        for move in moves:
            by_index.setdefault(move.index, []).append(move)
        return [
            member
            for member in workload.at(Stage.PENDING)
            if member.uid in uids
            or (member.index is not None and any(same_place(move, member) for move in by_index.get(member.index, ())))
        ]

    def _check_leaving(
        self,
        tracked: Tracked,
        workload: Workload,
        members: Sequence[Member],
        named: Sequence[OtherPod],
        now: float,
    ) -> list[MovingPod] | None:
        """Return the other pods that still exist; None while they are being read, or if the Migration ended."""
        view = self.context.view
        uids = [other.uid for other in named if view.entry(other.uid) is not None]
        if unread_pods := whole(find_pods_to_read(view, uids, set(tracked.learned))):
            self.context.learn(tracked, unread_pods)
            return None
        leaving_pods = find_moving_pods(view, uids)
        if not members or lacking(workload, members):
            text = "pods of the gang are gone" if members else f"the {_kind(workload)} is no longer pending"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, text, now)
            return None
        if problem := self._wrong(tracked, workload, leaving_pods):
            self.context.end(tracked, Phase.CANCELLED, *problem, now)
            return None
        return leaving_pods

    def _called(self, key: str, migration: Migration) -> str:
        """Return how messages of a Migration refer to a pod."""
        return one_for(key, self.context.view.reader(migration.metadata.namespace), "pod")

    def _wrong(
        self, tracked: Tracked, workload: Workload, leaving_pods: Sequence[MovingPod]
    ) -> tuple[MigrationReason, str] | None:
        """Return reason and text of why the other pods can't be moved for a gang; None if they can."""
        taken, leaving = self.context.moved_elsewhere(tracked), {pod.member.uid for pod in leaving_pods}
        for pod in leaving_pods:
            name = self._called(pod.member.key, tracked.migration)
            if restarts(pod) and any(
                remaining.member.uid not in leaving for remaining in rest_of_gang(self.context.view, [pod])
            ):
                return MigrationReason.NOT_MOVABLE, f"{name} stays: its whole gang would have to restart"
            if not may_move(pod):
                return (
                    MigrationReason.NOT_MOVABLE,
                    f"{name} stays: it must not move, or no controller would recreate it",
                )
            if pod.workload.priority > workload.priority:
                return MigrationReason.NOT_MOVABLE, f"{name} stays: its priority is above that of the {_kind(workload)}"
            if pod.member.uid in taken:
                return MigrationReason.ALREADY_MOVED, f"{name} is moved by another Migration already"
        return None

    def _moves(
        self,
        tracked: Tracked,
        workload: Workload,
        members: Sequence[Member],
        leaving_pods: Sequence[MovingPod],
        others: Sequence[OtherPod],
        now: float,
    ) -> tuple[list[Move], Sequence[OtherPod]]:
        """Return the moves of the members to their seats, and the other pods, for a MIG slot with their places.

        Without room, end the Migration and return none.
        """
        view, avoided, key = self.context.view, self.context.detection.avoided(now), tracked.migration.key
        if workload.gang:
            seats = gang_seats(view, workload, members, leaving_pods, avoided, key, now)
            moves = [
                move_of(view, workload, member, member.cls.amounts, to=seats[member.uid]) for member in members if seats
            ]
        else:
            slots = slot_seats(view, workload, members[0], leaving_pods, avoided, key, now)
            moves = [move_to_slot(view, workload, member, slots[member.uid]) for member in members if slots]
            others = with_places(view, others, slots)
        if not moves:
            text = f"moving these pods would not make room for the {_kind(workload)}, as things are now"
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NO_ROOM, text, now)
        return moves, others


def _kind(workload: Workload) -> str:
    return "gang" if workload.gang else "pod"
