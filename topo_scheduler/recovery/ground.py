"""What planning and execution of Migrations share: the facts, the seats, and how a status is written."""

from collections.abc import Mapping, Sequence
from typing import Final

from topo_scheduler.api.migrations import Migration, Move, OtherPod, Phase
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.detection import Detection
from topo_scheduler.recovery.finished import Finished
from topo_scheduler.recovery.instructions import CreateMigration, Instruction, LearnPods, TellMigration
from topo_scheduler.recovery.limits import MigrationLimits
from topo_scheduler.recovery.moved import Moved
from topo_scheduler.recovery.seating import MovingPod, leaver, seat_of
from topo_scheduler.recovery.tracked import Condition, Tracked, changed_status, spent, write
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat
from topo_scheduler.state.workloads import Stage

BELIEVED_AFTER: Final = 60.0
"""Seconds after which a time is believed that another process wrote: at first its clock may be ahead, or ours."""
LEARNING: Final = "learning"
"""State of one for which pods are being read."""


class MigrationContext:
    """All Migrations that are not over, by namespace and name, and what they are looked at with."""

    def __init__(self, engine: Engine, detection: Detection, spec: RecoverySpec, epoch: float) -> None:
        """``epoch``: what makes seconds since the epoch of the times that are passed."""
        self.engine = engine
        self.detection = detection
        self.spec = spec
        self.epoch = epoch
        self.limits = MigrationLimits()
        self.moved = Moved()
        self.finished = Finished()
        self.tracked: dict[str, Tracked] = {}
        self.intended: dict[str, tuple[OtherPod, ...]] = {}
        """Pods that are to move as well, by Migrations that are being created: namespace and name."""
        self._movers: dict[bool, dict[str, str]] = {}
        self.coming: Sequence[CreateMigration] = ()
        """Migrations of failures that are being created."""
        self.out: list[Instruction] = []
        """What is to be carried out."""

    # ------------------------------------------------------------ seats

    def keep(self, migration: Migration, moves: Sequence[Move]) -> None:
        """Hold the seats of moves which nobody took yet."""
        wanted = self._seats(migration, moves)
        if any(not self.engine.preempting.replacements.holds(seat.id) for seat in wanted):
            self.engine.seats_kept(migration.key, wanted)

    def keep_only(self, migration: Migration, moves: Sequence[Move]) -> None:
        """Give back the seats of a Migration but for those of some moves."""
        if wanted := self._seats(migration, moves):
            self.engine.seats_kept(migration.key, wanted)

    def _seats(self, migration: Migration, moves: Sequence[Move]) -> list[ReservedSeat]:
        """Return the seats of moves which nobody took yet."""
        taken = self.engine.preempting.replacements.taken
        seats = [seat_of(migration.key, migration.metadata.namespace, move) for move in moves if move.to]
        return [seat for seat in seats if not self._sits(taken.get(seat.id, ""))]

    def _sits(self, uid: str) -> bool:
        found = self.engine.workloads.of_pod(uid)
        return found is not None and found[1].stage is not Stage.PENDING

    def release(self, key: str) -> None:
        """Give the seats of a Migration back."""
        replacements = self.engine.preempting.replacements
        if replacements.knows(key):
            self.engine.seats_kept(key, [])

    # ------------------------------------------------------------ inside

    def leavers(self, migration: Migration) -> list[MovingPod]:
        """Return the pods of a Migration that are still there, and of which anything is known."""
        found = (leaver(self.engine, move.uid) for move in migration.status.moves)
        return [one for one in found if one is not None]

    def warranted(self, migration: Migration) -> bool:
        """Whether each node that the pods of a Migration leave has failed, is gone, or is cordoned.

        Tenants can create Migrations and write any reason into them, but can bring about none of these facts. Without
        them a Migration moves no pod but its own, and uses no spare node.
        """
        moves = migration.status.moves
        nodes = {move.from_ for move in moves if migration.names(move.pod, move.uid)} or {move.from_ for move in moves}
        if not nodes:
            ledger = self.engine.world.ledger
            nodes = {entry.node for pod in migration.spec.pods if (entry := ledger.get(pod.uid)) is not None}
        return bool(nodes) and all(self._given_up(node) for node in nodes)

    def _given_up(self, node: str) -> bool:
        nodes = self.engine.world.nodes
        row = nodes.row_of.get(node)
        return row is None or bool(nodes.unschedulable[row]) or self.detection.ill(node)

    def is_there(self, move: Move) -> bool:
        """Whether a pod still holds its place."""
        return self.engine.world.ledger.get(move.uid) is not None

    def others(self, known: Tracked) -> Mapping[str, str]:
        """Return which pods other Migrations move already, with the names of those.

        Where nodes failed those by choice that have evicted nobody don't count: they end.
        """
        heals = known.migration.cause.of_node
        if known.migration.status.moves:
            return self._moved(heals, known)
        # Once for all that are planned one after the other: a spine may have hundreds.
        if heals not in self._movers:
            self._movers[heals] = self._moved(heals, known)
        return self._movers[heals]

    def _moved(self, heals: bool, known: Tracked) -> dict[str, str]:
        return {
            move.uid: one.migration.key
            for one in self.tracked.values()
            if one is not known and not (heals and one.migration.yields)
            for move in one.migration.status.moves
        }

    def changed(self) -> None:
        """A Migration came, went, or is not as it was."""
        self._movers.clear()

    def moved_for(self, key: str) -> dict[str, tuple[Migration, Move]]:
        """Return the moves of Migrations that make room for one, by the uid of the pod."""
        return {
            move.uid: (one.migration, move)
            for one in self.tracked.values()
            if one.migration.spec.makes_room_for == key
            for move in one.migration.status.moves
        }

    def helpers(self, migration: Migration) -> bool:
        """Whether Migrations are under way that make room for one."""
        return any(one.migration.spec.makes_room_for == migration.key for one in self.tracked.values())

    def holds_back(self, migration: Migration, leavers: Sequence[MovingPod], now: float) -> Condition | None:
        """Return why a Migration must not begin now, as a condition. ``leavers`` pods that are moved by it."""
        cause, spec, wall = migration.cause, self.spec, self.epoch + now
        by_choice = cause.by_choice and not migration.spec.makes_room_for
        reason, text = "Limited", self.limits.lacking(migration, spec.limits, wall)
        if spec.dry_run:
            reason, text = "DryRun", "recovery.dryRun is set: it is planned and reported only"
        elif self.detection.held and (cause.dead or cause.by_choice):
            reason, text = "HeldBack", self.detection.held
        elif by_choice and not text:
            text = self.moved.lacking(len(leavers), migration.key, spec.limits, wall)
            text = text or self.moved.resting(leavers, spec.limits, wall)
        return Condition("Reserved", status=False, reason=reason, message=text) if text else None

    def lost_target(self, moves: Sequence[Move], now: float) -> str | None:
        """Return the first target of some moves that is gone or no target any more; None where all are good."""
        row_of, avoided = self.engine.world.nodes.row_of, self.detection.avoided(now)
        return next((move.to for move in moves if move.to not in row_of or move.to in avoided), None)

    def since(self, known: Tracked, phase: Phase, now: float) -> float:
        """Return for how many seconds a Migration has been in a phase, or beyond it.

        The time on the object may be that of another clock. So it counts only once this process has seen the phase for
        a while, and never makes it shorter than that.
        """
        text, seen = known.stamps.get(phase, ("", now))
        own, begun = now - seen, seconds_of(text)
        return own if begun is None or own < BELIEVED_AFTER else max(own, self.epoch + now - begun)

    def over_at(self, known: Tracked, phase: Phase, seconds: float) -> float | None:
        """Return when it will have been in a phase for so many seconds; None where it has not begun."""
        if phase not in known.stamps:
            return None
        text, seen = known.stamps[phase]
        begun = seconds_of(text)
        told = seen if begun is None else begun - self.epoch
        return min(seen + seconds, max(seen + BELIEVED_AFTER, told + seconds))

    def end(
        self,
        known: Tracked,
        phase: Phase,
        reason: str,
        message: str,
        now: float,
        moves: Sequence[Move] | None = None,
        condition: Condition | None = None,
    ) -> None:
        """Let a Migration be over."""
        told = condition or Condition("Placed", status=False, reason=reason or phase.value, message=message)
        self.tell(known, warning=phase is Phase.FAILED, reason=f"Migration{phase.value}", message=message)
        self.release(known.migration.key)
        known.ending = True
        self.write(known, now, phase, moves, told, message=message)

    def refuse(self, migration: Migration, now: float, reason: str, message: str) -> None:
        """Let a Migration fail of which nothing is kept."""
        meta, told = migration.metadata, Condition("Reserved", status=False, reason=reason, message=message)
        status = changed_status(
            migration, self.epoch + now, phase=Phase.FAILED, moves=(), message=message, conditions=[told]
        )
        self.out.append(TellMigration(meta.namespace, meta.name, meta.uid, True, "MigrationFailed", message))
        if status is not None:
            self.out.append(write(migration, status))

    def write(
        self,
        known: Tracked,
        now: float,
        phase: Phase | None,
        moves: Sequence[Move] | None,
        *conditions: Condition,
        message: str | None = None,
        policy: str | None = None,
        others: Sequence[OtherPod] | None = None,
    ) -> None:
        """Write what changed in a status, if anything did."""
        wall = self.epoch + now
        migration = known.migration
        status = changed_status(
            migration,
            wall,
            phase=phase,
            moves=moves,
            message=message,
            policy=policy,
            others=others,
            owners=known.owners,
            conditions=conditions,
        )
        if status is None:
            return
        if phase is not None and phase != migration.status.phase:
            self.out += spent(migration, phase, wall)
        known.writing, known.wrote = True, status
        self.out.append(write(migration, status))

    def tell(self, known: Tracked, *, warning: bool, reason: str, message: str) -> None:
        """Write an event on a Migration."""
        meta = known.migration.metadata
        self.out.append(TellMigration(meta.namespace, meta.name, meta.uid, warning, reason, message))

    def learn(self, known: Tracked, pods: Sequence[PodRef]) -> None:
        """Have pods read that an earlier process placed, unless that is under way."""
        if known.state != LEARNING:
            known.state, known.learning = LEARNING, frozenset(pod.uid for pod in pods)
            self.out.append(LearnPods(tuple(pods)))
