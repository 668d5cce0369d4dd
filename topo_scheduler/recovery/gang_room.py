"""The Migration of a gang that waits: it holds the gang's seats while others, by Migrations of their own, leave them.

It evicts nobody, and so goes from Reserving to Placing. All others have seats before the first of them is evicted. It
is over when the gang is bound, or when it is clear that moving the others would do no good; those that were not evicted
by then stay.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Final

import msgspec

from topo_scheduler.api.migrations import Cause, Migration, MigrationPod, MigrationSpec, Move, OtherPod, Phase
from topo_scheduler.recovery.by_choice import gang_seats, together, unread
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.instructions import CreateMigration
from topo_scheduler.recovery.naming import makes_room_for, name_for
from topo_scheduler.recovery.reading import may_move, rest_of_gang, restarts
from topo_scheduler.recovery.seating import MovingPod, leaver, move_of, vacant, who
from topo_scheduler.recovery.tracked import Condition, Tracked
from topo_scheduler.scheduling.queueing.standing import lacking
from topo_scheduler.state.workloads import Member, Stage, Workload

PATIENCE: Final = 30.0
"""Seconds in which the gang must have been understood, and the others must have seats."""


@dataclass(slots=True)
class _Others:
    """What is known of those who leave for one gang, beyond the objects."""

    asked: float = inf
    """When their Migrations were created, in seconds."""
    seen: set[str] = field(default_factory=set)
    """Uids of pods of which a Migration was seen."""


class GangRoom:
    """Migrations with the reason ``PendingGang``."""

    def __init__(self, ground: MigrationContext) -> None:
        self._ground = ground
        self._first: dict[str, float] = {}
        """When a Migration whose gang is not known was seen first, by its uid; minus infinity where it was known."""
        self._others: dict[str, _Others] = {}
        """By the uid of the Migration."""

    def forget(self, uid: str) -> None:
        """A Migration is over, or was deleted."""
        self._first.pop(uid, None)
        self._others.pop(uid, None)

    def advance(self, known: Tracked, now: float) -> None:
        """Do what is to be done now."""
        migration = known.migration
        workload = self._workload(migration)
        if workload is None:
            self._unknown(known, now)
            return
        self._first[migration.metadata.uid] = -inf
        match migration.phase:
            case None:
                self._plan(known, workload, now)
            case Phase.PLANNED:
                self._begin(known, workload, now)
            case Phase.RESERVING:
                self._reserve(known, workload, now)
            case _:
                self._place(known, workload, now)

    # ------------------------------------------------------------ planning

    def _plan(self, known: Tracked, workload: Workload, now: float) -> None:
        migration = known.migration
        members = self._waiting(migration, workload)
        named = self._ground.intended.get(migration.key)
        if named is None:
            text = "it is not known any more who would make room: what made this Migration has ended"
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", text, now)
            return
        others = self._who_leaves(known, workload, members, named, now)
        if others is None:
            return
        seats = self._seats(known, workload, members, others, now)
        if not seats:
            self._no_room(known, now)
            return
        found = Condition("Reserved", status=False, reason="Planned", message="seats are held once it begins")
        moves = self._moves(workload, members, seats)
        self._ground.write(known, now, Phase.PLANNED, moves, found, message=migration.spec.cause, others=named)

    def _begin(self, known: Tracked, workload: Workload, now: float) -> None:
        migration, ground = known.migration, self._ground
        members = self._waiting(migration, workload)
        others = self._who_leaves(known, workload, members, migration.status.others, now)
        if others is None:
            return
        if not ground.spec.defragmentation.enabled:
            self._ground.end(known, Phase.CANCELLED, "Off", "recovery.defragmentation.enabled is not set", now)
            return
        if held := ground.holds_back(migration, others, now):
            ground.write(known, now, None, None, held)
            return
        seats = self._seats(known, workload, members, others, now)
        if not seats:
            self._no_room(known, now)
            return
        moves = self._moves(workload, members, seats)
        ground.keep(migration, moves)
        ground.limits.begin(migration, ground.epoch + now)
        ground.moved.begin(migration, len(others), ground.epoch + now)
        text = f"{len(moves)} seats are held, which {who(others)} leave first"
        held = Condition("Reserved", status=True, reason="SeatsHeld", message=text)
        ground.write(known, now, Phase.RESERVING, moves, held)

    def _reserve(self, known: Tracked, workload: Workload, now: float) -> None:
        """Wait until the others are gone."""
        migration, ground = known.migration, self._ground
        moves = migration.status.moves
        waiting = self._waiting(migration, workload)
        if waiting and (lost := ground.lost_target(moves, now)) is not None:
            self._ground.end(known, Phase.CANCELLED, "SeatLost", f"node {lost} can't be used now", now)
            return
        ground.keep(migration, self._unseated(workload, moves))
        if not waiting or vacant(ground.engine, moves):
            ground.write(known, now, Phase.PLACING, None)
        elif why := self._why_not(known, now):
            self._ground.end(known, Phase.CANCELLED, "NoRoom", why, now)

    def _why_not(self, known: Tracked, now: float) -> str:
        """Have the Migrations of the others made, once; return why waiting for them has no use any more."""
        migration = known.migration
        others = self._others.setdefault(migration.metadata.uid, _Others())
        there = [leaver(self._ground.engine, other.uid) for other in migration.status.others]
        left = [one for one in there if one is not None]
        moving = self._ground.moved_for(migration.key)
        others.seen |= {one.member.uid for one in left if one.member.uid in moving}
        missing = [one for one in left if one.member.uid not in moving]
        if stays := next((one.member.key for one in missing if one.member.uid in others.seen), ""):
            return f"pod {stays} does not leave: the Migration that moved it is over"
        if missing and others.asked == inf:
            others.asked = now
            for some in together(missing):
                self._create(migration, some)
        if missing and now - others.asked > PATIENCE:
            return f"pod {missing[0].member.key} does not leave: no Migration could be made that moves it"
        waits = [move.pod for one, move in moving.values() if one.phase is None or not one.phase.running]
        if waits and self._ground.since(known, Phase.RESERVING, now) > PATIENCE:
            return f"pod {waits[0]} does not leave: no seat is held for it"
        if self._ground.since(known, Phase.RESERVING, now) > self._ground.spec.seats_expire:
            return "the others did not leave in time"
        return ""

    def _create(self, migration: Migration, some: Sequence[MovingPod]) -> None:
        namespace = some[0].workload.namespace
        spec = MigrationSpec(
            cause=makes_room_for(migration.key, self._ground.engine.world.reader(namespace)),
            reason=Cause.DEFRAGMENTATION.value,
            makes_room_for=migration.key,
            pods=[MigrationPod(one.member.name, one.member.uid) for one in some],
        )
        name = name_for(some, migration.metadata.uid)
        self._ground.out.append(CreateMigration(namespace, name, spec))

    # ------------------------------------------------------------ placing

    def _place(self, known: Tracked, workload: Workload, now: float) -> None:
        """Keep the seats until the gang is bound."""
        migration, moves = known.migration, known.migration.status.moves
        found = self._seated(workload, moves)
        bound = {uid: one for uid, one in found.items() if one.stage is Stage.BOUND}
        if len(bound) == len(moves):
            done = [
                msgspec.structs.replace(move, replacement=bound[move.uid].uid, replacement_name=bound[move.uid].name)
                for move in moves
            ]
            placed = Condition("Placed", status=True, reason="Bound", message=f"{len(done)} pods are bound")
            text = f"{len(done)} pods of the gang are bound"
            self._ground.end(known, Phase.DONE, "", text, now, done, placed)
        elif len(found) < len(moves) and not self._waiting(migration, workload):
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", "the gang waits no longer", now)
        elif self._ground.since(known, Phase.PLACING, now) > self._ground.spec.seats_expire:
            text = "the gang did not take its room in time; others may use it"
            self._ground.end(known, Phase.FAILED, "NotTaken", text, now)
        else:
            self._ground.keep(migration, self._unseated(workload, moves))

    def _seated(self, workload: Workload, moves: Sequence[Move]) -> dict[str, Member]:
        """Return the member with a place that each seat was for, by the uid of the pod that waited."""
        seated = [one for one in workload.members.values() if one.stage is not Stage.PENDING]
        by_uid, by_index = {one.uid: one for one in seated}, {one.index: one for one in seated}
        found: dict[str, Member] = {}
        for move in moves:
            one = by_uid.get(move.uid) or (by_index.get(move.index) if move.index is not None else None)
            if one is not None:
                found[move.uid] = one
        return found

    def _unseated(self, workload: Workload, moves: Sequence[Move]) -> list[Move]:
        """Return the moves whose seats are still needed."""
        found = self._seated(workload, moves)
        return [move for move in moves if move.uid not in found]

    # ------------------------------------------------------------ inside

    def _workload(self, migration: Migration) -> Workload | None:
        """Return the gang; None while nothing is known of it, or when it is gone."""
        workloads = self._ground.engine.workloads
        if migration.status.moves:
            return workloads.get(migration.status.moves[0].workload)
        found = (workloads.of_pod(pod.uid) for pod in migration.spec.pods)
        return next((one[0] for one in found if one is not None), None)

    def _unknown(self, known: Tracked, now: float) -> None:
        """The gang is gone; or it was not understood yet, if this process has just begun."""
        migration = known.migration
        if migration.phase is not None and migration.phase.running:
            self._ground.keep(migration, migration.status.moves)
        if now - self._first.setdefault(migration.metadata.uid, now) >= PATIENCE:
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", "the gang is gone", now)

    def _waiting(self, migration: Migration, workload: Workload) -> list[Member]:
        """Return the members that wait and for which seats are wanted."""
        moves = migration.status.moves
        wanted = {move.uid for move in moves} | {pod.uid for pod in migration.spec.pods}
        numbers = {move.index for move in moves} - {None}
        return [one for one in workload.at(Stage.PENDING) if one.uid in wanted or one.index in numbers]

    def _who_leaves(
        self,
        known: Tracked,
        workload: Workload,
        members: Sequence[Member],
        named: Sequence[OtherPod],
        now: float,
    ) -> list[MovingPod] | None:
        """Return the others that are still there; None while they are being read, or where it ended as useless."""
        others = self._leavers(known, named)
        if others is None:
            return None
        if not members or lacking(workload, members):
            text = "pods of the gang are gone" if members else "the gang waits no longer"
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", text, now)
            return None
        if wrong := self._wrong(known, workload, others):
            self._ground.end(known, Phase.CANCELLED, *wrong, now)
            return None
        return others

    def _leavers(self, known: Tracked, named: Sequence[OtherPod]) -> list[MovingPod] | None:
        """Return the others that are still there; None while they are being read."""
        engine = self._ground.engine
        uids = [other.uid for other in named if engine.world.ledger.get(other.uid) is not None]
        if strangers := unread(engine, uids, set(known.learned)):
            self._ground.learn(known, strangers)
            return None
        return [one for uid in uids if (one := leaver(engine, uid)) is not None]

    def _wrong(self, known: Tracked, workload: Workload, others: Sequence[MovingPod]) -> tuple[str, str] | None:
        """Return reason and text of why others can't be moved for a gang."""
        taken, leave = self._ground.others(known), {one.member.uid for one in others}
        for one in others:
            name = one.member.key
            if restarts(one) and any(rest.member.uid not in leave for rest in rest_of_gang(self._ground.engine, [one])):
                return "NotMovable", f"pod {name} stays: all of its gang would have to start again"
            if not may_move(one):
                return "NotMovable", f"pod {name} stays: it says so, or nobody would make it again"
            if one.workload.priority > workload.priority:
                return "NotMovable", f"pod {name} stays: its priority is above that of the gang"
            if one.member.uid in taken:
                return "AlreadyMoved", f"pod {name} is moved by Migration {taken[one.member.uid]} already"
        return None

    def _seats(
        self, known: Tracked, workload: Workload, members: Sequence[Member], others: Sequence[MovingPod], now: float
    ) -> dict[str, str]:
        avoided = self._ground.detection.avoided(now)
        return dict(gang_seats(self._ground.engine, workload, members, others, avoided, known.migration.key, now))

    def _moves(self, workload: Workload, members: Sequence[Member], seats: dict[str, str]) -> list[Move]:
        engine = self._ground.engine
        return [move_of(engine, workload, one, one.cls.amounts, to=seats[one.uid]) for one in members]

    def _no_room(self, known: Tracked, now: float) -> None:
        text = "moving these pods would not make room for the gang, as things are now"
        self._ground.end(known, Phase.CANCELLED, "NoRoom", text, now)
