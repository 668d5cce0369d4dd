"""Migrations as a machine without I/O: from an object without a status to pods that run elsewhere.

Each phase is entered by one write of the status, and what a phase does may be done again: whoever comes after a crash
goes on from the object alone. Seats are held from Reserving on, by what the object says; nothing is evicted before the
object says Evicting.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from topo_scheduler.api.migrations import Cause, Migration, Move, Phase
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.detection import Detection
from topo_scheduler.recovery.instructions import (
    EvictPod,
    Instruction,
    LearnPods,
    TellMigration,
    Warn,
    WriteOutcome,
)
from topo_scheduler.recovery.limits import Limits
from topo_scheduler.recovery.reading import Refused, Unlearned, avoided_nodes, read_pods
from topo_scheduler.recovery.seating import Leaver, find_seats, leaver, moves_of, seat_of
from topo_scheduler.recovery.tracked import (
    Condition,
    Eviction,
    Tracked,
    changed_status,
    moment,
    spent,
    with_targets,
    write,
)
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.workloads import Member, Stage

RETRY: Final = 10.0
"""Seconds after which an eviction that was refused is tried again, doubled each time."""
RETRY_MOST: Final = 300.0
NO_RIGHTS: Final = 300.0
"""Seconds after which it is tried again what RBAC does not allow."""
LOOK_AGAIN: Final = 1.0
"""Seconds between two searches for seats, at least."""


class Migrations:
    """All Migrations that are not over."""

    def __init__(self, engine: Engine, detection: Detection, spec: RecoverySpec, epoch: float) -> None:
        self.spec = spec
        self.limits = Limits()
        self._engine = engine
        self._detection = detection
        self._epoch = epoch
        self._tracked: dict[str, Tracked] = {}
        self._over: dict[str, tuple[str, str]] = {}
        """Uid and version of those that are over, so that no older view brings them back."""
        self._out: list[Instruction] = []

    def __len__(self) -> int:
        return len(self._tracked)

    # ------------------------------------------------------------ facts in

    def seen(self, migration: Migration, now: float) -> None:
        """Take over a Migration that appeared or changed."""
        key, uid = migration.key, migration.metadata.uid
        known, over = self._tracked.get(key), self._over.get(key)
        version = migration.metadata.resource_version
        if known is not None and known.migration.metadata.uid != uid:
            self.gone(migration.metadata.namespace, migration.metadata.name, "")
            known = None
        if known is not None and _older(version, known.migration.metadata.resource_version):
            return
        if over is not None and over[0] == uid and _older(version, over[1]):
            return
        self.limits.note(migration, self._epoch + now)
        phase = migration.phase
        if phase is not None and phase.over:
            if known is not None:
                del self._tracked[key]
            self._release(key)
            self._over[key] = (uid, version)
            return
        if known is None:
            self._tracked[key] = known = Tracked(migration)
        elif known.migration.phase is not phase:
            known.state = None
        known.migration = migration

    def gone(self, namespace: str, name: str, uid: str) -> None:
        """A Migration was deleted: what it held is given back, and nothing more is done for it."""
        key = f"{namespace}/{name}"
        known = self._tracked.get(key)
        if known is not None and uid and known.migration.metadata.uid != uid:
            return
        self._tracked.pop(key, None)
        self._over.pop(key, None)
        self.limits.forget(key)
        self._release(key)

    def written(self, key: str, outcome: WriteOutcome, message: str, migration: Migration | None, now: float) -> None:
        """Take over how a write ended, with the object as it is then."""
        known = self._tracked.get(key)
        if known is not None:
            known.writing = False
            if outcome is WriteOutcome.WRITTEN:
                known.failures = 0
            else:
                known.failures += 1
                pause = min(60.0, 2.0 ** min(known.failures, 6))
                known.not_before = now + (NO_RIGHTS if outcome is WriteOutcome.FORBIDDEN else pause)
            if outcome is WriteOutcome.FORBIDDEN:
                self._out.append(Warn(f"Migration {key} is not carried on: {message}"))
                self._tell(known, warning=True, reason="StatusNotWritten", message=message)
        if migration is not None:
            self.seen(migration, now)

    def learned(self, uids: Sequence[str]) -> None:
        """Pods were told to the engine, or are gone."""
        for known in self._tracked.values():
            known.learned.update(uids)
            known.state = None

    def evicted(self, key: str, uid: str, *, goes: bool, reason: str, message: str, now: float) -> None:
        """Take over how an eviction ended. ``reason`` why not: for machines."""
        known = self._tracked.get(key)
        if known is None:
            return
        eviction = known.evictions.setdefault(uid, Eviction())
        eviction.flying = False
        if goes:
            eviction.times, eviction.reason, eviction.message = 0, "", ""
            eviction.until = now + RETRY  # the watch has not told yet that it is going
            return
        eviction.times += 1
        pause = NO_RIGHTS if reason == "Forbidden" else min(RETRY_MOST, RETRY * 2 ** min(eviction.times - 1, 6))
        eviction.until, eviction.reason, eviction.message = now + pause, reason, message
        if eviction.times == 1:
            self._tell(known, warning=True, reason=reason, message=message)

    def moves_pod(self, uid: str) -> bool:
        """Return whether a Migration that is not over moves a pod."""
        return any(
            uid in {move.uid for move in one.migration.status.moves} | {pod.uid for pod in one.migration.spec.pods}
            for one in self._tracked.values()
        )

    # ------------------------------------------------------------ the step

    def step(self, now: float) -> list[Instruction]:
        """Do what is to be done now; return what is to be carried out."""
        for _, known in sorted(self._tracked.items(), key=lambda item: _order(item[1].migration)):
            if not known.writing and now >= known.not_before:
                self._advance(known, now)
        out, self._out = self._out, []
        return out

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next, if nothing happens before."""
        times: list[float] = []
        for known in self._tracked.values():
            times += [at for at in (known.not_before, *(one.until for one in known.evictions.values())) if at > now]
            begun = moment(known.migration.status.times.get(_clock_of(known.migration), ""))
            if begun is not None:
                times.append(max(now + LOOK_AGAIN, begun - self._epoch + self.spec.seats_expire))
        return min(times, default=None)

    def _advance(self, known: Tracked, now: float) -> None:
        match known.migration.phase:
            case None:
                self._plan(known, now)
            case Phase.PLANNED:
                self._begin(known, now)
            case Phase.RESERVING:
                self._reserve(known, now)
            case Phase.EVICTING:
                self._evict(known, now)
            case Phase.PLACING:
                self._place(known, now)

    # ------------------------------------------------------------ planning

    def _plan(self, known: Tracked, now: float) -> None:
        migration = known.migration
        try:
            leavers = read_pods(self._engine, migration, known.learned, self._others(known))
        except Unlearned as error:
            if not set(error.uids) <= known.learned and known.state != "learning":
                known.state = "learning"
                self._out.append(LearnPods(error.pods))
            return
        except Refused as error:
            self._end(known, error.phase, error.reason, str(error), now)
            return
        moves = moves_of(self._engine, leavers)
        targets = self._seats(known, leavers, now)
        found = Condition("Reserved", status=False, reason="Planned", message="seats are held once it begins")
        reserved = found if targets else self._no_room(leavers)
        self._write(known, now, Phase.PLANNED, with_targets(moves, targets), reserved, message=migration.spec.cause)

    def _begin(self, known: Tracked, now: float) -> None:
        migration = known.migration
        leavers = self._leavers(migration)
        if self._ends_before(known, leavers, now):
            return
        if self.spec.dry_run:
            self._hold_back(known, "DryRun", "recovery.dryRun is set: it is planned and reported only", now)
        elif self._detection.held and migration.cause.dead:
            self._hold_back(known, "HeldBack", self._detection.held, now)
        elif wait := self.limits.lacking(migration, self.spec.limits, self._epoch + now):
            self._hold_back(known, "Limited", wait, now)
        else:
            state = (self._engine.world.improvements, frozenset(self._detection.avoided(now)))
            if known.state == state:
                return
            targets = self._seats(known, leavers, now)
            if not targets:
                known.state, known.not_before = state, now + LOOK_AGAIN
                self._write(known, now, None, with_targets(migration.status.moves, {}), self._no_room(leavers))
                return
            moves = with_targets(moves_of(self._engine, leavers), targets)
            self._keep(migration, moves)
            held = Condition("Reserved", status=True, reason="SeatsHeld", message=f"{len(moves)} seats are held")
            self.limits.begin(migration, self._epoch + now)
            self._write(known, now, Phase.RESERVING, moves, held)

    def _reserve(self, known: Tracked, now: float) -> None:
        migration = known.migration
        if self._ends_before(known, self._leavers(migration), now):
            return
        moves = migration.status.moves
        avoided = self._detection.avoided(now)
        lost = [move.to for move in moves if move.to not in self._engine.world.nodes.row_of or move.to in avoided]
        if lost:
            self._release(migration.key)
            gone = Condition("Reserved", status=False, reason="SeatLost", message=f"node {lost[0]} can't be used now")
            self._write(known, now, Phase.PLANNED, with_targets(moves, {}), gone)
            return
        self._keep(migration, moves)
        self._write(known, now, Phase.EVICTING, None)

    def _ends_before(self, known: Tracked, leavers: Sequence[Leaver], now: float) -> bool:
        """End a Migration that has evicted nobody, and need not."""
        migration = known.migration
        if not leavers:
            self._end(known, Phase.CANCELLED, "NothingToMove", "the pods are gone already", now)
            return True
        nodes = {move.from_ for move in migration.status.moves}
        if migration.cause is not Cause.REQUESTED and all(self._detection.well(node) for node in nodes):
            self._end(known, Phase.CANCELLED, "Healed", "the nodes are well again", now)
            return True
        return False

    def _seats(self, known: Tracked, leavers: Sequence[Leaver], now: float) -> dict[str, str]:
        migration = known.migration
        avoided = self._detection.avoided(now) | {one.entry.node for one in leavers}
        avoided |= avoided_nodes(self._engine, migration.spec.avoid)
        return dict(find_seats(self._engine, leavers, avoided, migration.key, now))

    def _no_room(self, leavers: Sequence[Leaver]) -> Condition:
        text = f"no room for {len(leavers)} pods where the rules allow them; it is looked for again when room comes"
        return Condition("Reserved", status=False, reason="NoRoom", message=text)

    def _hold_back(self, known: Tracked, reason: str, message: str, now: float) -> None:
        self._write(known, now, None, None, Condition("Reserved", status=False, reason=reason, message=message))

    # ------------------------------------------------------------ evicting

    def _evict(self, known: Tracked, now: float) -> None:
        migration = known.migration
        moves = self._unexpired(known, now)
        if moves is None:
            return
        self._keep(migration, moves)
        there = [move for move in moves if self._is_there(move)]
        if not there:
            gone = Condition("Evicted", status=True, reason="Gone", message=f"{len(moves)} pods are gone")
            self._write(known, now, Phase.PLACING, None, gone)
            return
        waits: list[tuple[str, str]] = []
        for move in there:
            entry = self._engine.world.ledger.get(move.uid)
            occupant = entry.occupant if entry is not None else None
            going, force = occupant is not None and occupant.terminating, self._may_force(move)
            eviction = known.evictions.setdefault(move.uid, Eviction())
            if eviction.reason:
                waits.append((eviction.reason, f"pod {move.pod} can't be evicted: {eviction.message}"))
            elif going:
                waits.append(self._awaits(move, force=force))
            if not eviction.flying and now >= eviction.until and (force or not going):
                eviction.flying = True
                pod = PodRef(migration.metadata.namespace, move.pod, move.uid)
                self._out.append(EvictPod(migration.key, pod, force))
        if waits:
            # What the kubelet or a person must do comes before what only takes its time.
            waits.sort(key=lambda one: one[0] == "Terminating")
            self._write(known, now, None, None, Condition("Evicted", False, *waits[0]))

    def _awaits(self, move: Move, *, force: bool) -> tuple[str, str]:
        dead = self._dead(move.from_)
        if not dead or force:
            return "Terminating", f"pod {move.pod} is terminating"
        return (
            "KubeletDead",
            f"pod {move.pod} terminates on node {move.from_}, whose kubelet does not answer. It waits for the kubelet,"
            " for the taint node.kubernetes.io/out-of-service on the node, for the node to be deleted, or for"
            " recovery.forceDelete",
        )

    def _may_force(self, move: Move) -> bool:
        health = self._detection.health(move.from_)
        out = health is not None and health.out_of_service
        return self._dead(move.from_) and (out or self.spec.force_delete)

    def _dead(self, node: str) -> bool:
        if self._detection.health(node) is None:
            # Not told of yet, unless the other watch does not know it either.
            return node not in self._engine.world.nodes.row_of
        problem = self._detection.problem(node)
        return problem is not None and problem.cause.dead

    def _unexpired(self, known: Tracked, now: float) -> list[Move] | None:
        """Return the moves with the seats they still have; None where that is written first."""
        migration, moves = known.migration, known.migration.status.moves
        row_of = self._engine.world.nodes.row_of
        kept = with_targets(moves, {move.uid: move.to for move in moves if move.to in row_of})
        reason = "SeatLost"
        if self._since(migration, Phase.RESERVING, now) > self.spec.seats_expire:
            kept, reason = with_targets(moves, {}), "Expired"
        if kept == moves:
            return moves
        self._release(migration.key)
        text = "seats are held no longer; replacements are placed as any other pod is"
        self._write(known, now, None, kept, Condition("Reserved", status=False, reason=reason, message=text))
        return None

    # ------------------------------------------------------------ placing

    def _place(self, known: Tracked, now: float) -> None:
        migration, key = known.migration, known.migration.key
        found = self._replacements(migration)
        if len(found) == len(migration.status.moves):
            moves = [
                msgspec.structs.replace(move, replacement=found[move.uid].uid, replacement_name=found[move.uid].name)
                for move in migration.status.moves
            ]
            for move in moves:
                by = PodRef(migration.metadata.namespace, move.replacement_name, move.replacement)
                self._engine.seat_taken(key, move.uid, by, move.from_, found[move.uid].node)
            placed = Condition("Placed", status=True, reason="Bound", message=f"{len(moves)} replacements are bound")
            self._end(known, Phase.DONE, "", f"{len(moves)} pods moved", now, moves, placed)
            return
        if self._since(migration, Phase.PLACING, now) > self.spec.seats_expire:
            missing = [move.pod for move in migration.status.moves if move.uid not in found]
            text = f"no pod took the place of {', '.join(missing[:3])} in time; its controller made none that was bound"
            self._end(known, Phase.FAILED, "NoReplacement", text, now)
            return
        self._keep(migration, [move for move in migration.status.moves if move.uid not in found])

    def _replacements(self, migration: Migration) -> dict[str, Member]:
        """Return the bound member that took the place of each pod, by the uid of the pod."""
        old = {move.uid for move in migration.status.moves}
        taken = self._engine.preempting.replacements.taken
        found: dict[str, Member] = {}
        used: set[str] = set(old)
        begun = moment(migration.status.times.get(Phase.EVICTING, "")) or 0.0
        for move in migration.status.moves:
            seat = seat_of(migration.key, migration.metadata.namespace, move).id
            for member in self._candidates(migration, move, taken.get(seat, "")):
                fits = member.uid == taken.get(seat) or (move.index is not None and member.index == move.index)
                fits |= member.index in (None, move.index) and (member.node == move.to or member.created >= int(begun))
                if member.uid not in used and member.stage is Stage.BOUND and fits:
                    found[move.uid] = member
                    used.add(member.uid)
                    break
        return found

    def _candidates(self, migration: Migration, move: Move, taken: str) -> list[Member]:
        """Return the members that may have taken the place of a pod, the likeliest first."""
        workloads, ledger = self._engine.workloads, self._engine.world.ledger
        likely = [one[1] for one in [workloads.of_pod(taken)] if one is not None]
        if move.gang:
            gang = workloads.get(move.workload)
            members = sorted(gang.members.values(), key=lambda one: one.name) if gang is not None else []
            return [*likely, *members]
        for uid in sorted(ledger.on_node(move.to)) if move.to else ():
            one = workloads.of_pod(uid)
            same = one is not None and (one[0].namespace, one[0].controller) == (
                migration.metadata.namespace,
                move.controller,
            )
            if one is not None and same:
                likely.append(one[1])
        return likely

    # ------------------------------------------------------------ seats

    def _keep(self, migration: Migration, moves: Sequence[Move]) -> None:
        """Hold the seats of moves which nobody took yet."""
        replacements = self._engine.preempting.replacements
        seats = [seat_of(migration.key, migration.metadata.namespace, move) for move in moves if move.to]
        wanted = [seat for seat in seats if not self._sits(replacements.taken.get(seat.id, ""))]
        if any(not replacements.holds(seat.id) for seat in wanted):
            self._engine.seats_kept(migration.key, wanted)

    def _sits(self, uid: str) -> bool:
        found = self._engine.workloads.of_pod(uid)
        return found is not None and found[1].stage is not Stage.PENDING

    def _release(self, key: str) -> None:
        replacements = self._engine.preempting.replacements
        if replacements.knows(key):
            self._engine.seats_kept(key, [])

    def let_go(self) -> None:
        """Give back all seats."""
        for key in self._tracked:
            self._release(key)

    # ------------------------------------------------------------ inside

    def _leavers(self, migration: Migration) -> list[Leaver]:
        found = (leaver(self._engine, move.uid) for move in migration.status.moves)
        return [one for one in found if one is not None]

    def _is_there(self, move: Move) -> bool:
        return self._engine.world.ledger.get(move.uid) is not None

    def _others(self, known: Tracked) -> dict[str, str]:
        """Return which pods other Migrations move already, with the names of those."""
        return {
            move.uid: one.migration.key
            for one in self._tracked.values()
            if one is not known
            for move in one.migration.status.moves
        }

    def _since(self, migration: Migration, phase: Phase, now: float) -> float:
        begun = moment(migration.status.times.get(phase, ""))
        return 0.0 if begun is None else self._epoch + now - begun

    def _end(
        self,
        known: Tracked,
        phase: Phase,
        reason: str,
        message: str,
        now: float,
        moves: Sequence[Move] | None = None,
        condition: Condition | None = None,
    ) -> None:
        told = condition or Condition("Placed", status=False, reason=reason or phase.value, message=message)
        self._tell(known, warning=phase is Phase.FAILED, reason=f"Migration{phase.value}", message=message)
        self._release(known.migration.key)
        self._write(known, now, phase, moves, told, message=message)

    def _write(
        self,
        known: Tracked,
        now: float,
        phase: Phase | None,
        moves: Sequence[Move] | None,
        *conditions: Condition,
        message: str | None = None,
    ) -> None:
        wall = self._epoch + now
        migration = known.migration
        status = changed_status(
            migration, wall, phase=phase, moves=moves, message=message, conditions=[one for one in conditions if one]
        )
        if status is None:
            return
        if phase is not None and phase != migration.status.phase:
            self._out += spent(migration, phase, wall)
        known.writing = True
        self._out.append(write(migration, status))

    def _tell(self, known: Tracked, *, warning: bool, reason: str, message: str) -> None:
        meta = known.migration.metadata
        self._out.append(TellMigration(meta.namespace, meta.name, meta.uid, warning, reason, message))


def _order(migration: Migration) -> tuple[int, int, str, str]:
    """Those under way first, then those of highest priority, then the largest, then in order of their names."""
    moves = migration.status.moves
    running = migration.phase is not None and migration.phase.running
    priority = max((move.priority for move in moves), default=0)
    return 0 if running else 1, -priority, f"{10_000 - len(migration.spec.pods):05}", migration.key


def _clock_of(migration: Migration) -> str:
    phase = migration.phase
    return Phase.PLACING if phase is Phase.PLACING else Phase.RESERVING if phase is not None and phase.running else ""


def _older(version: str, known: str) -> bool:
    return version.isdecimal() and known.isdecimal() and int(version) < int(known)
