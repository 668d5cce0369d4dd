"""Executes Migrations with held seats: evicts pods, and waits until replacements run in the seats."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from msgspec import structs

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Migration, Move, Phase
from topo_scheduler.api.text import counted, few_for, few_of
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.model.instructions import EvictPod
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import (
    ConditionUpdate,
    Eviction,
    Tracked,
    event_on,
    with_replacements,
    with_targets,
)
from topo_scheduler.recovery.model.seating import find_moving_pods, moves_of, same_place, seat_of, vacant
from topo_scheduler.recovery.planning.migration_validation import avoided_nodes, may_move
from topo_scheduler.recovery.planning.spares import how_it_ended, why_no_seats
from topo_scheduler.recovery.planning.voluntary_checks import beneficiary_of, beneficiary_over, reason_useless_now
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.state.pods.workloads import Member, Stage

TAKEN: Final = "reserved room was taken: "
"""Begin of the message that pods of higher priority are where replacements were to run."""


@dataclass(frozen=True, slots=True)
class Execution:
    """The phases Evicting and Placing."""

    context: MigrationContext

    # ------------------------------------------------------------ evicting

    def evict(self, tracked: Tracked, now: float) -> None:
        """Have the pods evicted, until all of them are gone."""
        migration = tracked.migration
        if self._yields(tracked, now):
            return
        if (not migration.cause.of_node or migration.spec.makes_room_for) and self._cut_short(tracked, now):
            return
        moves = self._unexpired(tracked, now)
        if moves is None:
            return
        present = [move for move in moves if self.context.still_present(move)]
        replacements = self._replacements(tracked) if len(present) < len(moves) else {}
        all_present = len(present) == len(moves)
        if tracked.beside is None and all_present and not any(self._left_unknown(move) for move in moves):
            tracked.beside = self._members(moves)
            if uniform := self._uniform(moves, tracked.beside):
                tracked.uniform = uniform
                self.context.keep(migration, [_matched(tracked, move) for move in moves], only=True)
        self._hold(tracked, moves, replacements)
        is_unclear = tracked.beside is None and not all_present and not migration.shrinks
        if is_unclear and self._reads_candidates(tracked, replacements) and not present:
            return  # an earlier process may have bound replacements, whose seats are taken
        if not present:
            text = counted(len(moves), "pod", "is gone", "are gone")
            evicted = ConditionUpdate(ConditionType.EVICTED, status=True, reason=MigrationReason.GONE, message=text)
            self.context.write(tracked, now, Phase.PLACING, None, evicted)
            return
        if foreign := next((move for move in present if not self.context.is_ours(move)), None):
            # Whatever the object says: anyone who may write a status can name any pod there.
            text = f"pod {foreign.pod} is not one that this scheduler placed"
            self.context.end(tracked, Phase.FAILED, MigrationReason.NOT_OURS, text, now)
            return
        blockers: list[tuple[MigrationReason, str]] = []
        for move in present:
            entry = self.context.view.entry(move.uid)
            occupant = entry.occupant if entry is not None else None
            going, force = occupant is not None and occupant.terminating, self._may_force(move, now)
            eviction = tracked.evictions.setdefault(move.uid, Eviction())
            if eviction.reason:
                blockers.append((eviction.reason, f"pod {move.pod} can't be evicted: {eviction.message}"))
            elif going:
                blockers.append(self._awaits(move, force=force))
            # An eviction that is in progress is repeated at once if it may be forced since.
            due = now >= eviction.until or (force and not eviction.forced and not eviction.reason)
            if not eviction.in_flight and due and (force or not going):
                eviction.in_flight, eviction.forced = True, force
                eviction.beneficiary = beneficiary_of(self.context, migration, move.uid, now)
                pod = PodRef(migration.metadata.namespace, move.pod, move.uid)
                self.context.out.append(EvictPod(migration.key, pod, force, migration.metadata.uid))
        if blockers:
            # Blockers that need action, of the kubelet or a person, come before those that only take time.
            blockers.sort(key=lambda blocker: blocker[0] == MigrationReason.TERMINATING)
            self.context.write(tracked, now, None, None, ConditionUpdate(ConditionType.EVICTED, False, *blockers[0]))

    def _yields(self, tracked: Tracked, now: float) -> bool:
        """End a Migration that has evicted no pod yet if another one that evicts moves one of its pods."""
        moves = tracked.migration.status.moves
        is_begun = any(eviction.in_flight or eviction.until > now for eviction in tracked.evictions.values())
        moved = self.context.first_mover(tracked, (move.uid for move in moves))
        if moved is None or is_begun or not all(map(self.context.still_present, moves)):
            return False
        self.context.end(tracked, Phase.CANCELLED, *moved, now)
        return True

    def _cut_short(self, tracked: Tracked, now: float) -> bool:
        """End a move that is useless or lost a seat; pods that are not being evicted stay, or are left to healing."""
        migration, view = tracked.migration, self.context.view
        over = bool(beneficiary_over(self.context, migration))
        reason = reason_useless_now(self.context, tracked, now)
        if not reason:
            return False
        going: list[Move] = []
        for move in migration.status.moves:
            entry, eviction = view.entry(move.uid), tracked.evictions.get(move.uid, Eviction())
            if eviction.in_flight:
                return True  # its answer decides
            accepted = eviction.until > now and not eviction.reason
            terminating = entry is not None and entry.occupant is not None and entry.occupant.terminating
            # The runner forces no eviction for a beneficiary that is over; healing does, on dead nodes.
            stuck = over and self.context.detection.dead_for_debounce(move.from_, now)
            if entry is None or ((accepted or terminating) and not stuck):
                going.append(move)
        if not going:
            self.context.end(tracked, Phase.CANCELLED, *reason, now)
        elif len(going) < len(migration.status.moves):
            stays = len(migration.status.moves) - len(going)
            text = f"{reason[1]}: {counted(stays, 'pod', 'stays where it is', 'stay where they are')}"
            self.context.keep(migration, going, only=True)
            self.context.write(
                tracked,
                now,
                None,
                going,
                ConditionUpdate(ConditionType.EVICTED, status=False, reason=reason[0], message=text),
            )
        else:
            return False
        return True

    def _awaits(self, move: Move, *, force: bool) -> tuple[MigrationReason, str]:
        if not self.context.is_dead(move.from_) or force or self.context.spec.force_delete:
            return MigrationReason.TERMINATING, f"pod {move.pod} is terminating"
        return (
            MigrationReason.KUBELET_DEAD,
            f"pod {move.pod} terminates on node {move.from_}, whose kubelet does not answer. It waits for the kubelet,"
            " for the taint node.kubernetes.io/out-of-service on the node, for the node to be deleted, or for"
            " recovery.forceDelete",
        )

    def _may_force(self, move: Move, now: float) -> bool:
        health = self.context.detection.health(move.from_)
        if health is not None and health.out_of_service:
            return self.context.is_dead(move.from_)
        # The kubelet of a flapping node may still run the pod. So the node must be dead for a while, or marked as such.
        return self.context.spec.force_delete and self.context.dead_for_debounce(move.from_, now)

    def _unexpired(self, tracked: Tracked, now: float) -> list[Move] | None:
        """Return the moves with the seats that they still have; None if a change of these is written first."""
        migration, moves = tracked.migration, tracked.migration.status.moves
        if migration.shrinks:
            return moves
        row_of = self.context.view.nodes.row_of
        kept = with_targets(moves, {move.uid: move.to for move in moves if move.to in row_of})
        reason = MigrationReason.SEAT_LOST
        if self.context.since(tracked, Phase.RESERVING, now) > self.context.spec.reservation_timeout:
            kept, reason = with_targets(moves, {}), MigrationReason.EXPIRED
        if kept == moves:
            return moves
        self.context.release(migration.key)
        text = "the reservation has ended; replacements are placed like any other pod"
        self.context.write(
            tracked,
            now,
            None,
            kept,
            ConditionUpdate(ConditionType.RESERVED, status=False, reason=reason, message=text),
        )
        return None

    # ------------------------------------------------------------ placing

    def place(self, tracked: Tracked, now: float) -> None:
        """Keep the seats until replacements are bound."""
        migration = tracked.migration
        if migration.shrinks:
            policy, count = migration.status.policy, len(migration.status.moves)
            reason = MigrationReason.LENT if migration.returns_nodes else MigrationReason.SHRINKS
            placed = ConditionUpdate(ConditionType.PLACED, status=True, reason=reason, message=why_no_seats(policy))
            self.context.end(tracked, Phase.DONE, placed, how_it_ended(policy, count), now)
            return
        replacements = self._replacements(tracked)
        if len(replacements) == len(migration.status.moves):
            self._end_placed(tracked, replacements, now)
            return
        unfilled = [move for move in migration.status.moves if move.uid not in replacements]
        takers = self._takers(migration, unfilled)
        if self.context.since(tracked, Phase.PLACING, now) > self.context.spec.reservation_timeout:
            missing = [move.pod for move in unfilled]
            why = takers or "its controller made none, or none was bound to its place"
            text = f"no pod took the place of {', '.join(missing[:3])} in time: {why}"
            moves = with_replacements(migration.status.moves, replacements)
            self.context.end(tracked, Phase.FAILED, MigrationReason.NO_REPLACEMENT, text, now, moves)
            return
        self._hold(tracked, migration.status.moves, replacements)
        self._reads_candidates(tracked, replacements)
        self._report_takers(tracked, takers, now)

    def _takers(self, migration: Migration, moves: Sequence[Move]) -> str:
        """Return where pods of higher priority have the room of seats, and which; empty if all seats have room."""
        view, taken = self.context.view, []
        for move in moves:
            if move.to not in view.nodes.row_of or vacant(view, [move]):
                continue
            entries = [view.entry(uid) for uid in view.pods_on(move.to)]
            occupants = [entry.occupant for entry in entries if entry is not None and entry.occupant is not None]
            higher = [pod for pod in occupants if pod.priority > move.priority]
            taken += [(move.to, f"{pod.namespace}/{pod.name}") for pod in higher]
        if not taken:
            return ""
        nodes, pods = sorted({node for node, _ in taken}), sorted({pod for _, pod in taken})
        named = few_for(pods, view.reader(migration.metadata.namespace), "pod")
        return f"pods of higher priority have the room on {few_of(nodes)}: {named}"

    def _report_takers(self, tracked: Tracked, takers: str, now: float) -> None:
        """Write to the condition that reserved room was taken; and that it is reserved, once it is free again."""
        conditions = tracked.migration.status.conditions
        current = next((condition for condition in conditions if condition.type == ConditionType.RESERVED), None)
        reported = current is not None and current.message.startswith(TAKEN)
        if takers:
            text, reason = f"{TAKEN}{takers}. It waits until they leave", MigrationReason.SEAT_LOST
            reserved = ConditionUpdate(ConditionType.RESERVED, status=False, reason=reason, message=text)
        elif reported:
            text, reason = "the reserved room is free again", MigrationReason.NODES_RESERVED
            reserved = ConditionUpdate(ConditionType.RESERVED, status=True, reason=reason, message=text)
        else:
            return
        self.context.write(tracked, now, None, None, reserved)

    def _hold(self, tracked: Tracked, moves: Sequence[Move], replacements: Collection[str]) -> None:
        """Hold the seats of moves without a replacement, and release those of the others."""
        migration = tracked.migration
        has_seat = self.context.view.held.has_seat
        surplus = any(move.uid in replacements and has_seat(seat_of(migration, move).id) for move in moves)
        unfilled = [_matched(tracked, move) for move in moves if move.uid not in replacements]
        self.context.keep(migration, unfilled, only=surplus)

    def _reads_candidates(self, tracked: Tracked, replacements: Collection[str]) -> bool:
        """Have unread pods read that may be replacements; return whether there are any."""
        candidates = self._unread_candidates(tracked.migration, replacements)
        unread = [pod for pod in candidates if pod.uid not in tracked.learned]
        if unread:
            self.context.learn(tracked, unread)
        return bool(unread)

    def _end_placed(self, tracked: Tracked, replacements: Mapping[str, Member], now: float) -> None:
        """End a Migration whose replacements are all bound; those on nodes that it leaves or avoids move once more.

        They are bound there if no reservation was in force: recovery was off, or the reservation had ended, or a new
        leader could not read the Migration.
        """
        context, migration = self.context, tracked.migration
        moves = with_replacements(migration.status.moves, replacements)
        for move in moves:
            by = PodRef(migration.metadata.namespace, move.replacement_name, move.replacement)
            context.control.seat_taken(migration.key, move.uid, by, move.from_, move.to)
        misplaced = self._misplaced(migration, replacements)
        if not misplaced:
            text = counted(len(moves), "replacement", "is bound", "are bound")
            placed = ConditionUpdate(ConditionType.PLACED, status=True, reason=MigrationReason.BOUND, message=text)
            context.end(tracked, Phase.DONE, placed, counted(len(moves), "pod", "moved"), now, moves)
            return
        nodes = few_of(sorted({member.node for member in misplaced}))
        running = counted(len(misplaced), "replacement", "runs", "run")
        text = f"{running} on {nodes}, which this Migration leaves or avoids; no reservation was in force"
        moving_pods = find_moving_pods(context.view, (member.uid for member in misplaced))
        if _attempted_twice(migration) or len(moving_pods) < len(misplaced) or not all(map(may_move, moving_pods)):
            text = f"{text}. To move them, create another Migration that names them"
            context.end(tracked, Phase.FAILED, MigrationReason.MISPLACED, text, now, moves)
            return
        text = f"{text}, so the scheduler moves them once more"
        context.release(migration.key)
        event = event_on(migration, MigrationReason.MISPLACED, text, warning=True)
        planned = ConditionUpdate(
            ConditionType.RESERVED, False, MigrationReason.PLANNED, "nodes are reserved when it begins"
        )
        evicted, placed = (
            ConditionUpdate(type_, False, MigrationReason.MISPLACED, text)
            for type_ in (ConditionType.EVICTED, ConditionType.PLACED)
        )
        left, again = sorted(_left_nodes(migration)), moves_of(context.view, moving_pods)
        context.write(tracked, now, Phase.PLANNED, again, planned, evicted, placed, left_nodes=left, event=event)

    def _misplaced(self, migration: Migration, replacements: Mapping[str, Member]) -> list[Member]:
        """Return the replacements on nodes that a Migration leaves or avoids.

        A place that was planned counts, such as another MIG slot of the same node, and a node that has recovered.
        """
        avoided = avoided_nodes(self.context.view, migration.spec.avoid)
        left, detection = _left_nodes(migration), self.context.detection
        if migration.cause.of_node:
            left = set(filter(detection.has_problem, left))
        planned = {move.uid: move.to for move in migration.status.moves}
        return [
            member
            for uid, member in replacements.items()
            if member.node != planned[uid] and (member.node in left or member.node in avoided)
        ]

    def _unread_candidates(self, migration: Migration, replaced: Collection[str]) -> list[PodRef]:
        """Return pods that may be replacements, but are hardly known as an earlier process placed them."""
        view = self.context.view
        namespace = migration.metadata.namespace
        unfilled = [move for move in migration.status.moves if move.uid not in replaced]
        nodes = {move.to for move in unfilled if not move.gang and move.to}
        entries = [(uid, view.entry(uid)) for node in sorted(nodes) for uid in view.pods_on(node)]
        occupants = [entry.occupant for uid, entry in entries if entry is not None and view.member(uid) is None]
        strangers = [
            PodRef(occupant.namespace, occupant.name, occupant.uid)
            for occupant in occupants
            if occupant and occupant.namespace == namespace
        ]
        gangs = (view.workload(id_) for id_ in sorted({move.workload for move in unfilled if move.gang}))
        members = [member for gang in gangs if gang is not None for member in gang.at(Stage.BOUND)]
        strangers += [PodRef(member.namespace, member.name, member.uid) for member in members if not member.cls.amounts]
        return strangers

    def _members(self, moves: Sequence[Move]) -> frozenset[str]:
        """Return the uids of all members of the gangs of moves, and of all pods on the nodes to which pods move."""
        view = self.context.view
        gangs = (view.workload(move.workload) for move in moves if move.gang)
        beside = {uid for move in moves if move.to for uid in view.pods_on(move.to)}
        beside.update(uid for gang in gangs if gang is not None for uid in gang.members)
        leaving = [known[1].left_at for move in moves if (known := view.member(move.uid)) is not None]
        left = min(leaving, default=inf)
        known_pods = ((uid, view.member(uid)) for uid in beside)
        return frozenset(uid for uid, known in known_pods if known is None or known[1].created < left)

    def _uniform(self, moves: Sequence[Move], beside: Collection[str]) -> frozenset[str]:
        """Return the ids of the gangs of moves whose members before were all read, and of one series."""
        gangs = {move.workload: self.context.view.workload(move.workload) for move in moves if move.gang}
        series = {
            id_: {member.known_series for member in gang.members.values() if member.uid in beside}
            for id_, gang in gangs.items()
            if gang is not None
        }
        return frozenset(id_ for id_, known in series.items() if len(known) == 1 and None not in known)

    def _left_unknown(self, move: Move) -> bool:
        entry = self.context.view.entry(move.uid)
        terminating = entry is not None and entry.occupant is not None and entry.occupant.terminating
        return terminating and self.context.view.member(move.uid) is None

    def _replacements(self, tracked: Tracked) -> dict[str, Member]:
        """Return the bound member that replaced each pod, by the uid of the pod.

        It took the seat, or is of the same series and index, and was not there before the pods left. In a gang of one
        series it may be of another: the owner has made a new Job, or a new ReplicaSet for a rollout. After a failover
        it is unknown which seat a pod took: then one that is left over on the node of one seat fills another.
        """
        migration = tracked.migration
        context, taken = self.context, self.context.view.held.seats_taken
        own = {seat_of(migration, move).id for move in migration.status.moves}
        replacements: dict[str, Member] = {}
        used = {move.uid for move in migration.status.moves}
        used.update(uid for seat, uid in taken.items() if seat not in own)
        members = self._gang_members(migration.status.moves)
        # Both are times of the API server; the clock of the process that wrote the start of the phase may be wrong.
        begun = seconds_of(migration.metadata.creation_timestamp or "") or 0.0

        def fresh(member: Member) -> bool:
            return member.uid not in tracked.beside if tracked.beside is not None else member.created >= begun

        def fill(move: Move, candidates: Iterable[Member], took: str = "") -> None:
            for member in candidates:
                read = bool(member.cls.amounts) or member.uid in tracked.learned  # otherwise its index is unknown
                fits = member.uid == took or (read and same_place(_matched(tracked, move), member) and fresh(member))
                free = member.uid not in used and context.is_counted_for(member, migration.key)
                if fits and free and member.stage is Stage.BOUND:
                    replacements[move.uid] = member
                    used.add(member.uid)
                    return

        for move in migration.status.moves:
            took = taken.get(seat_of(migration, move).id, "")
            if (known_pod := context.view.member(took)) is not None:
                fill(move, [known_pod[1]], took)
        for move in migration.status.moves:
            if move.uid not in replacements and not context.still_present(move):
                on_node = self._of_controller(migration, move, move.to) if move.to and not move.gang else ()
                fill(move, members.get((move.workload, move.index), ()) if move.gang else on_node)
        nodes = sorted({move.to for move in migration.status.moves} - {""})
        for move in migration.status.moves:
            if move.uid not in replacements and not move.gang and not context.still_present(move):
                fill(move, (member for node in nodes for member in self._of_controller(migration, move, node)))
        return replacements

    def _gang_members(self, moves: Sequence[Move]) -> dict[tuple[str, int | None], list[Member]]:
        """Return the members of the gangs of moves, by id of the gang and index, in order of their names."""
        members: dict[tuple[str, int | None], list[Member]] = {}
        for id_ in sorted({move.workload for move in moves if move.gang}):
            gang = self.context.view.workload(id_)
            for member in sorted(gang.members.values(), key=lambda member: member.name) if gang is not None else ():
                members.setdefault((id_, member.index), []).append(member)
        return members

    def _of_controller(self, migration: Migration, move: Move, node: str) -> list[Member]:
        """Return the members on a node that the controller of a pod made."""
        view, wanted = self.context.view, (migration.metadata.namespace, move.controller)
        known_pods = [known_pod for uid in view.pods_on(node) if (known_pod := view.member(uid)) is not None]
        return [member for workload, member in known_pods if (workload.namespace, workload.controller) == wanted]


def _matched(tracked: Tracked, move: Move) -> Move:
    """Return a move as replacements are matched with it: in a gang of one series, one of any series takes the place."""
    return structs.replace(move, series=None) if move.gang and move.workload in tracked.uniform else move


def _left_nodes(migration: Migration) -> set[str]:
    """Return the nodes that the pods of a Migration leave; other members of a restarting gang may return to theirs."""
    if migration.status.left_nodes:
        return set(migration.status.left_nodes)
    moves = migration.status.moves
    return {move.from_ for move in migration.named(moves, lambda move: (move.pod, move.uid)) or moves}


def _attempted_twice(migration: Migration) -> bool:
    """Return whether a Migration makes its last attempt, or only the scheduler's own rules ask for the move.

    The condition counts too: an older CustomResourceDefinition drops the nodes.
    """
    conditions = migration.status.conditions
    again = bool(migration.status.left_nodes) or any(
        condition.reason == MigrationReason.MISPLACED for condition in conditions
    )
    return again or migration.cause.by_choice or bool(migration.spec.makes_room_for)
