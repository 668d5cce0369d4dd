"""Shared context of planning and execution of Migrations: the state, the seats, and status writes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Migration, Move, OtherPod, Phase
from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.detection.absent_nodes import AbsentNodes
from topo_scheduler.recovery.detection.failure_detection import Detection
from topo_scheduler.recovery.model.competition import first_mover
from topo_scheduler.recovery.model.instructions import (
    CreateMigration,
    EmitMigrationEvent,
    LearnPods,
    RecoveryInstruction,
)
from topo_scheduler.recovery.model.limits import RecoveryMigrationLimits
from topo_scheduler.recovery.model.migration_index import MigrationIndex
from topo_scheduler.recovery.model.migration_state import (
    Beneficiary,
    ConditionUpdate,
    Tracked,
    changed_status,
    durations,
    event_on,
    write,
)
from topo_scheduler.recovery.model.move_rate_limit import Moved
from topo_scheduler.recovery.model.retention import Finished
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pods, seat_of
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerControl, SchedulerView
from topo_scheduler.state.pods.workloads import Member, Stage

MOST_GONE_REPLACEMENTS: Final = 4_096
"""Replacements of Migrations that are over that are recorded before those that are gone are forgotten."""
KEPT_HELPERS: Final = 64
"""Keys of Migrations that make room that are kept at least, whether or not the Migrations exist."""
BELIEVED_AFTER_SECONDS: Final = 60.0
"""Seconds after which a timestamp of another process is trusted: before that, one of the two clocks may be wrong."""
LEARNING: Final = "learning"
"""State of a Migration for which pods are being read."""


@dataclass(slots=True)
class MigrationContext:
    """All Migrations that are not over, by namespace and name, and what is needed to process them."""

    view: SchedulerView
    control: SchedulerControl
    absent_nodes: AbsentNodes
    spec: RecoverySpec
    epoch: float
    """Offset of the times that are passed to seconds since the epoch."""
    limits: RecoveryMigrationLimits = field(default_factory=RecoveryMigrationLimits)
    moved: Moved = field(default_factory=Moved)
    finished: Finished = field(default_factory=Finished)
    tracked: dict[str, Tracked] = field(default_factory=dict)
    """Only `track` and `untrack` change it."""
    index: MigrationIndex = field(default_factory=MigrationIndex)
    intended: dict[str, tuple[OtherPod, ...]] = field(default_factory=dict)
    """Other pods that must move, too, by key of Migrations that are being created for a voluntary move."""
    counted: dict[str, str] = field(default_factory=dict)
    """Keys of Migrations that are over, by the uids of the replacements that they counted."""
    asked: dict[str, None] = field(default_factory=dict)
    """Keys of Migrations that this process has created to make room for others."""
    coming: Sequence[CreateMigration] = ()
    """Migrations of failures whose creation is in flight."""
    out: list[RecoveryInstruction] = field(default_factory=list)
    """Instructions for the runner."""
    _counted_before: int = 0
    """Replacements that were kept when those that are gone were last forgotten."""
    _changed: dict[str, Migration | None] = field(default_factory=dict)
    """Latest versions of the Migrations that changed since the last `take_changed`; None for those that are gone."""

    # ------------------------------------------------------------ nodes

    @property
    def detection(self) -> Detection:
        """The nodes that recovery watches, and their problems."""
        return self.absent_nodes.detection

    def is_dead(self, node: str) -> bool:
        """Return whether a node is dead, or known to be gone."""
        problem = self.detection.problem(node)
        return problem.cause.dead if problem is not None else self.absent_nodes.is_gone(node)

    def dead_for_debounce(self, node: str, now: float) -> bool:
        """Return whether a node is gone, has been dead for the debounce, or was reported with its domain."""
        return self.detection.dead_for_debounce(node, now) or self.absent_nodes.is_gone(node)

    # ------------------------------------------------------------ the Migrations

    def track(self, tracked: Tracked) -> None:
        """Add a Migration, or find it by its latest version from now on."""
        key = tracked.migration.key
        self.tracked[key] = tracked
        self.index.put(tracked)
        self._changed[key] = tracked.migration

    def untrack(self, key: str) -> None:
        """Remove a Migration that is over, or gone."""
        tracked = self.tracked.pop(key, None)
        if tracked is not None:
            self.index.remove(tracked)
            self._changed[key] = None

    def take_changed(self) -> dict[str, Migration | None]:
        """Return the Migrations that changed since the last call; None for those that are not tracked any more."""
        changed, self._changed = self._changed, {}
        return changed

    def count_replacements(self, migration: Migration, moves: Sequence[Move]) -> None:
        """Record the replacements of a Migration that ends, or is over: they count for no other one."""
        for move in moves:
            if move.replacement and self.may_name(migration, move.replacement):
                self.counted[move.replacement] = migration.key
                if len(self.counted) > self._counted_before + MOST_GONE_REPLACEMENTS:
                    self.counted = {uid: key for uid, key in self.counted.items() if self.view.entry(uid) is not None}
                    self._counted_before = len(self.counted)

    def is_counted_for(self, member: Member, key: str) -> bool:
        """Return whether a pod counts as a replacement for no other Migration that is over."""
        return self.counted.get(member.uid, key) == key

    # ------------------------------------------------------------ seats

    def keep(self, migration: Migration, moves: Sequence[Move], *, only: bool = False) -> None:
        """Hold the seats of moves that no pod has taken yet; ``only`` releases all other seats of the Migration."""
        taken = self.view.held.seats_taken
        seats = [seat_of(migration, move) for move in moves if move.to]
        seats = [seat for seat in seats if not self._sits(taken.get(seat.id, ""))]
        if any(only or not self.view.held.has_seat(seat.id) for seat in seats):
            self.control.seats_kept(migration.key, seats)

    def _sits(self, uid: str) -> bool:
        known_pod = self.view.member(uid)
        return known_pod is not None and known_pod[1].stage is not Stage.PENDING

    def release(self, key: str) -> None:
        """Release the seats of a Migration."""
        if self.view.held.has_seats_of(key):
            self.control.seats_kept(key, [])

    # ------------------------------------------------------------ helpers

    def moving_pods(self, migration: Migration) -> list[MovingPod]:
        """Return the pods of a Migration that still exist and are known to this process."""
        return find_moving_pods(self.view, (move.uid for move in migration.status.moves))

    def warranted(self, migration: Migration) -> bool:
        """Return whether each node that the pods of a Migration leave has failed, is gone, or is cordoned.

        Tenants can create Migrations with any reason, but they can't cause any of these facts. Without them a Migration
        moves no pod but its own, and uses no spare node.
        """
        moves = migration.status.moves
        named = migration.named(moves, lambda move: (move.pod, move.uid))
        nodes = {move.from_ for move in named or moves}
        if not nodes:
            entries = (self.view.entry(pod.uid) for pod in migration.spec.pods)
            nodes = {entry.node for entry in entries if entry is not None}
        return bool(nodes) and all(self._given_up(node) for node in nodes)

    def begin(self, migration: Migration, pods: int, now: float) -> None:
        """Record that a Migration that moves ``pods`` pods begins now."""
        self.limits.begin(migration, self.epoch + now, warranted=self.warranted(migration))
        self.moved.begin(migration, pods, self.epoch + now)

    def _given_up(self, node: str) -> bool:
        nodes = self.view.nodes
        row = nodes.row_of.get(node)
        is_cordoned = row is not None and bool(nodes.unschedulable[row])
        return is_cordoned or self.detection.has_problem(node) or self.absent_nodes.is_gone(node)

    def still_present(self, move: Move) -> bool:
        """Return whether a pod still holds its resources."""
        return self.view.entry(move.uid) is not None

    def is_ours(self, move: Move) -> bool:
        """Return whether the pod of a move is one of this scheduler. One without an occupant is assumed by it."""
        entry = self.view.entry(move.uid)
        occupant = entry.occupant if entry is not None else None
        return occupant is None or occupant.scheduler == self.view.scheduler_name

    def _count_warranted(self, wall: float) -> None:
        """Count Migrations whose nodes were found failed or cordoned only after the Migration was read last.

        A new leader reads Migrations before it knows which nodes have failed.
        """
        for key in self.limits.others_running():
            tracked = self.tracked.get(key)
            if tracked is not None and self.warranted(tracked.migration):
                self.limits.note(tracked.migration, wall, warranted=True)

    def moved_elsewhere(self, tracked: Tracked) -> Mapping[str, str]:
        """Return the pods that other Migrations move, by uid, with the names of these Migrations.

        If nodes failed, voluntary Migrations that have evicted no pod yet don't count: they end. Nor do requests for
        pods on dead nodes that have no places.
        """
        return _MovedElsewhere(self, tracked)

    def are_healed(self, migration: Migration) -> bool:
        """Return whether a Migration for dead nodes moves any of the pods of another."""
        movers = (other for move in migration.status.moves for other in self.index.movers(move.uid))
        return any(other.migration.key != migration.key and other.migration.cause.dead for other in movers)

    def first_mover(self, tracked: Tracked, uids: Iterable[str]) -> tuple[MigrationReason, str] | None:
        """Return reason and text of why a Migration does not move these pods, as another one comes first; or None."""
        if (mover := first_mover(self.index, tracked, uids)) is None:
            return None
        uid, other = mover
        entry = self.view.entry(uid)
        occupant = entry.occupant if entry is not None else None
        name = f"pod {occupant.name}" if occupant is not None else "a pod"
        return MigrationReason.ALREADY_MOVED, f"{name} is moved by Migration {other.migration.key} already"

    def own_moves(self, migration: Migration) -> list[Move]:
        """Return the moves of a Migration without those of pods of other namespaces: a client may have written them."""
        return [move for move in migration.status.moves if self.may_name(migration, move.uid)]

    def named_uids(self, migration: Migration) -> set[str]:
        """Return the uids of the pods that spec and moves of a Migration name, without those of other namespaces.

        Any user can name any uid, and may keep the Migration from being refused for that for a while.
        """
        uids = {move.uid for move in migration.status.moves} | {pod.uid for pod in migration.spec.pods}
        return {uid for uid in uids if self.may_name(migration, uid)}

    def may_name(self, migration: Migration, uid: str) -> bool:
        """Return whether a pod may be one of the namespace of a Migration."""
        return self.view.namespace_of(uid) in ("", migration.metadata.namespace)

    def moved_for(self, key: str) -> dict[str, tuple[Migration, Move]]:
        """Return the moves of Migrations that make room for another, by the uid of the pod."""
        return {
            move.uid: (helper.migration, move)
            for helper in self.index.helpers(key)
            for move in helper.migration.status.moves
        }

    def helpers(self, migration: Migration, now: float) -> bool:
        """Return whether any Migration makes room for this one, where it has its places.

        It makes room no longer than places are held for its own pods.
        """
        longest = self.spec.reservation_timeout
        return any(self.since(helper, Phase.PLANNED, now) <= longest for helper in self.helpers_at_seats(migration))

    def helpers_at_seats(self, migration: Migration) -> Iterator[Tracked]:
        """Yield the Migrations that make room for this one where it has its places.

        Any user can name another Migration in ``makesRoomFor``, also before this process begins. So pods of each of
        them must run on the nodes of these places.
        """
        others = self.index.helpers(migration.key)
        nodes = self._nodes_of_seats(migration) if others else set[str]()
        for other in others if nodes else ():
            entries = map(self.view.entry, self.named_uids(other.migration))
            if self.is_helper(other) and any(entry is not None and entry.node in nodes for entry in entries):
                yield other

    def _nodes_of_seats(self, migration: Migration) -> set[str]:
        """Return the nodes that are held for the pods of a Migration until other pods have left them."""
        moves: Sequence[Move] = ()
        if migration.phase is Phase.RESERVING:
            moves = migration.status.moves
        elif self.view.held.has_seats_of(migration.key) and (tracked := self.tracked.get(migration.key)) is not None:
            # They are held, but the write that was to record them has failed.
            moves = tracked.wrote.moves if tracked.wrote is not None else ()
        return {move.to for move in moves} - {""}

    def comes_first(self, tracked: Tracked) -> bool:
        """Return whether a Migration heals, or was created to make room for another: it waits for no requests."""
        migration = tracked.migration
        return self.is_helper(tracked) or (migration.cause.of_node and self.warranted(migration))

    def is_helper(self, tracked: Tracked) -> bool:
        """Return whether the scheduler created a Migration to make room for another.

        Any user can name another Migration in ``makesRoomFor``. So it must be one that this process has created, or
        that it found as it began.
        """
        return bool(tracked.migration.spec.makes_room_for) and (
            tracked.found_at_start or tracked.migration.key in self.asked
        )

    def ask_for_room(self, create: CreateMigration) -> None:
        """Record that a Migration is created to make room for another."""
        self.asked[create.key] = None
        if len(self.asked) > KEPT_HELPERS + 2 * len(self.tracked):
            self.asked = {key: None for key in self.asked if key in self.tracked or key == create.key}

    def waiting_condition(
        self, migration: Migration, moving_pods: Sequence[MovingPod], now: float
    ) -> ConditionUpdate | None:
        """Return the condition that keeps a Migration from beginning now, or None. ``moving_pods`` are its pods."""
        cause, spec, wall = migration.cause, self.spec, self.epoch + now
        by_choice = cause.by_choice and not migration.spec.makes_room_for
        text = "" if self._is_awaited(migration) else self._beyond_limits(migration, moving_pods, wall)
        reason = MigrationReason.LIMITED
        if spec.dry_run:
            reason, text = MigrationReason.DRY_RUN, "recovery.dryRun is set: it is planned and reported only"
        elif self.detection.held and (cause.dead or cause.by_choice):
            reason, text = MigrationReason.MOST_NODES_NOT_READY, self.detection.held
        elif by_choice and not text:
            text = self.moved.lacking(
                len(moving_pods), migration.metadata.namespace, spec.limits, wall, own=migration.key
            )
            text = text or self.moved.resting(moving_pods, spec.limits, wall)
        return ConditionUpdate(ConditionType.RESERVED, status=False, reason=reason, message=text) if text else None

    def _is_awaited(self, migration: Migration) -> bool:
        """Return whether another Migration holds seats and waits for this one to make room there.

        Any user can name another Migration in ``makesRoomFor``. One whose seats are free waits for none.
        """
        awaiting = self.tracked.get(migration.spec.makes_room_for)
        if awaiting is None or awaiting.migration.phase is not Phase.RESERVING:
            return False
        seats = {move.to for move in awaiting.migration.status.moves}
        return any(move.from_ in seats for move in migration.status.moves)

    def _beyond_limits(self, migration: Migration, moving_pods: Sequence[MovingPod], wall: float) -> str:
        """Return why limits keep a Migration from beginning now, or an empty string."""
        warranted = self.warranted(migration)
        if warranted:
            self._count_warranted(wall)
        if text := self.limits.lacking(migration, self.spec.limits, wall, warranted=warranted):
            return text
        namespace = migration.metadata.namespace
        pods = [(pod.member.uid, pod.entry.amounts) for pod in moving_pods]
        if warranted or migration.shrinks or self.view.held.has_room_for_seats(migration.key, namespace, pods):
            return ""
        return "the nodes that this namespace has reserved would hold more than its pods: it waits for replacements"

    def evicted_for(self, beneficiary: Beneficiary | None, now: float) -> None:
        """Record that a pod was evicted, for a pending workload or none."""
        if beneficiary is not None:
            pods, workload = beneficiary.pods, beneficiary.workload
            self.control.moved_for(pods, workload, beneficiary.namespace, beneficiary.until, now)

    def lost_target(self, moves: Sequence[Move], now: float) -> str | None:
        """Return the first target that is gone or no longer allowed; None if all targets are valid."""
        row_of, avoided = self.view.nodes.row_of, self.detection.avoided(now)
        return next((move.to for move in moves if move.to not in row_of or move.to in avoided), None)

    def since(self, tracked: Tracked, phase: Phase, now: float) -> float:
        """Return for how many seconds a Migration has been in a phase, or beyond it.

        The timestamp on the object may come from another clock. So it counts only once this process has seen the phase
        for `BELIEVED_AFTER_SECONDS`, and it never makes the time shorter than that.
        """
        text, seen = tracked.stamps.get(phase, ("", now))
        own, begun = now - seen, seconds_of(text)
        return own if begun is None or own < BELIEVED_AFTER_SECONDS else max(own, self.epoch + now - begun)

    def over_at(self, tracked: Tracked, phase: Phase, seconds: float) -> float | None:
        """Return when a Migration will have been in a phase for ``seconds``; None if it has not begun the phase."""
        if phase not in tracked.stamps:
            return None
        text, seen = tracked.stamps[phase]
        begun = seconds_of(text)
        written = seen if begun is None else begun - self.epoch
        return min(seen + seconds, max(seen + BELIEVED_AFTER_SECONDS, written + seconds))

    def end(
        self,
        tracked: Tracked,
        phase: Phase,
        outcome: MigrationReason | ConditionUpdate,
        message: str,
        now: float,
        moves: Sequence[Move] | None = None,
    ) -> None:
        """End a Migration. ``outcome`` is its last condition, or the reason why its pods are not placed."""
        if isinstance(outcome, MigrationReason):
            outcome = ConditionUpdate(ConditionType.PLACED, status=False, reason=outcome, message=message)
        reason = MigrationReason(f"Migration{phase.value}")
        event = event_on(tracked.migration, reason, message, warning=phase is Phase.FAILED)
        self.count_replacements(tracked.migration, moves or ())
        self.release(tracked.migration.key)
        tracked.ending = True
        self.write(tracked, now, phase, moves, outcome, message=message, event=event)

    def refuse(self, migration: Migration, now: float, reason: MigrationReason, message: str) -> None:
        """Fail a Migration that is not tracked."""
        condition = ConditionUpdate(ConditionType.RESERVED, status=False, reason=reason, message=message)
        status = changed_status(
            migration,
            self.epoch + now,
            scheduler=self.view.scheduler_name,
            phase=Phase.FAILED,
            moves=(),
            message=message,
            conditions=[condition],
        )
        self.out.append(event_on(migration, MigrationReason.MIGRATION_FAILED, message, warning=True))
        if status is not None:
            self.out.append(write(migration, status))

    def write(
        self,
        tracked: Tracked,
        now: float,
        phase: Phase | None,
        moves: Sequence[Move] | None,
        *conditions: ConditionUpdate,
        message: str | None = None,
        policy: str | None = None,
        others: Sequence[OtherPod] | None = None,
        left_nodes: Sequence[str] | None = None,
        event: EmitMigrationEvent | None = None,
    ) -> None:
        """Write the changes of a status, if there are any; emit an ``event`` once that is done."""
        wall = self.epoch + now
        migration = tracked.migration
        status = changed_status(
            migration,
            wall,
            scheduler=self.view.scheduler_name,
            phase=phase,
            moves=moves,
            message=message,
            policy=policy,
            others=others,
            owners=tracked.owners,
            left_nodes=left_nodes,
            conditions=conditions,
        )
        if status is None:
            return
        entered = phase is not None and phase != migration.status.phase
        tracked.unreported = [
            *([event] if event else ()),
            *(durations(migration, phase, wall) if phase and entered else ()),
        ]
        tracked.writing, tracked.wrote = True, status
        if self.tracked.get(migration.key) is tracked:
            self.index.put(tracked)
        self.out.append(write(migration, status))

    def report_written(self, tracked: Tracked, migration: Migration) -> None:
        """Emit the event of a phase and record durations, once the Migration is seen in that phase: only once."""
        wrote, phase = tracked.wrote, migration.status.phase
        if wrote is not None and wrote.phase == phase and wrote.times.get(phase) == migration.status.times.get(phase):
            self.out += tracked.unreported
            tracked.unreported = ()

    def emit_event(self, tracked: Tracked, *, warning: bool, reason: MigrationReason | Reason, message: str) -> None:
        """Emit an event on a Migration."""
        self.out.append(event_on(tracked.migration, reason, message, warning=warning))

    def learn(self, tracked: Tracked, pods: Sequence[PodRef]) -> None:
        """Have the runner read pods that an earlier process placed, unless that is in progress."""
        if tracked.state != LEARNING:
            tracked.state = LEARNING
            # A Migration that waits for long may read many pods, which go.
            tracked.learned = {uid for uid in tracked.learned if self.view.entry(uid) is not None}
            self.index.reads(tracked, (pod.uid for pod in pods))
            self.out.append(LearnPods(tuple(pods), tracked.migration.key))


@dataclass(frozen=True, slots=True)
class _MovedElsewhere(Mapping[str, str]):
    """The pods that other Migrations move, found on demand."""

    context: MigrationContext
    tracked: Tracked

    def __getitem__(self, uid: str) -> str:
        cause = self.tracked.migration.cause
        for other in self.context.index.movers(uid):
            is_left = cause.dead and other.migration.waits and self._is_on_dead_node(uid)
            yields = is_left or (cause.of_node and other.migration.yields)
            if other is not self.tracked and not yields and self.context.may_name(other.migration, uid):
                return other.migration.key
        raise KeyError(uid)

    def _is_on_dead_node(self, uid: str) -> bool:
        entry = self.context.view.entry(uid)
        return entry is not None and self.context.is_dead(entry.node)

    def __iter__(self) -> Iterator[str]:
        return (uid for uid in self.context.index.moved() if uid in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)
