"""Plans Migrations, from a new object to held seats; no pod is evicted in these phases."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Cause, Migration, Phase, SeatDevice
from topo_scheduler.api.text import counted
from topo_scheduler.recovery.model.migration_context import LEARNING, MigrationContext
from topo_scheduler.recovery.model.migration_state import ConditionUpdate, Tracked, with_targets
from topo_scheduler.recovery.model.seating import (
    MovingPod,
    devices_of_seats,
    find_seats,
    moves_of,
    pod_names,
    vacant,
)
from topo_scheduler.recovery.planning.joint_planning import JointPlanning, PlanningTurn
from topo_scheduler.recovery.planning.migration_validation import (
    PodsNotRead,
    Refused,
    avoided_nodes,
    may_move,
    policy_of,
    read_pods,
    reference_of,
    rest_of_gang,
)
from topo_scheduler.recovery.planning.relocation import helpers_of, restart_cost, unread_neighbours
from topo_scheduler.recovery.planning.relocation_search import RelocationSearch
from topo_scheduler.recovery.planning.seat_claims import RelocationRequest, SeatGrant
from topo_scheduler.recovery.planning.slot_seats import leaves_slot, planned_places, with_planned_devices
from topo_scheduler.recovery.planning.spares import (
    may_return_nodes,
    may_use_spares,
    plan_return_of_nodes,
    reclaim_lent,
    trial_preparation,
    why_no_seats,
)
from topo_scheduler.recovery.planning.voluntary_checks import (
    ALONE_SECONDS,
    all_have_seats,
    beneficiary_name,
    beneficiary_over,
    kept_free,
    not_awaited,
    reason_useless,
    superseded_text,
)
from topo_scheduler.scheduling.time_slicing import NEXT_STEP_SECONDS

HELP_SECONDS: Final = 30.0
"""Seconds within which the Migrations that make room must have appeared."""
SEARCH_INTERVAL_SECONDS: Final = 1.0
"""Seconds between two searches for seats, at least."""
STAYED_SECONDS: Final = 600.0
"""Seconds for which no room is planned by moving pods that did not leave in time."""


@dataclass(frozen=True, slots=True)
class _SearchResult:
    """The result of a search for room: seats by uid, if any, with the text of the condition.

    ``state`` is the state that was searched. ``retry_at`` is when to search again if there are no seats, in seconds.
    ``whole`` is whether the whole gang moves now.
    """

    state: object
    retry_at: float
    seats: dict[str, str] = field(default_factory=dict)
    text: str = ""
    whole: bool = False


def _free_seats(turn: PlanningTurn, moving_pods: Sequence[MovingPod]) -> dict[str, str]:
    """Return the granted seats; empty if the grant relocates other pods or restarts the whole gang."""
    share = turn.share
    free = share is not None and not share.relocated and share.seats.keys() == {pod.member.uid for pod in moving_pods}
    return dict(share.seats) if share is not None and free else {}


def _stands_still(helper: Tracked) -> bool:
    """Return whether a Migration that makes room has no places for its pods, or their eviction is refused."""
    return not helper.migration.running or any(eviction.reason for eviction in helper.evictions.values())


def _while_reading(migration: Migration, moving_pods: Sequence[MovingPod]) -> list[ConditionUpdate]:
    """Return the condition of a Migration without seats while other pods are read; none if it says why that fails."""
    if any(condition.reason == MigrationReason.POD_NOT_READ for condition in migration.status.conditions):
        return []
    count = counted(len(moving_pods), "pod")
    text = f"no node is free for {count} by the rules; the scheduler first reads other pods nearby, which might move"
    return [ConditionUpdate(ConditionType.RESERVED, status=False, reason=MigrationReason.SEARCHING, message=text)]


class Planning:
    """The phases up to Reserving."""

    def __init__(self, context: MigrationContext, clock: Callable[[], float]) -> None:
        self.context = context
        self._searching = RelocationSearch(context, clock)
        self._together = JointPlanning(context, clock, self._claim)

    def plan(self, tracked: Tracked, now: float) -> None:
        """Plan a new Migration."""
        migration = tracked.migration
        if self._circular(migration):
            text = f"{beneficiary_name(self.context, migration)}, for which it is to make room, makes room itself"
            self.context.end(tracked, Phase.FAILED, MigrationReason.CIRCULAR, text, now)
            return
        if migration.returns_nodes:
            plan_return_of_nodes(self.context, tracked, now)
            return
        try:
            moving_pods = read_pods(
                self.context.view, migration, tracked.learned, self.context.moved_elsewhere(tracked)
            )
        except PodsNotRead as error:
            self.context.learn(tracked, error.pods)
            return
        except Refused as error:
            self.context.end(tracked, error.phase, error.reason, str(error), now)
            return
        if moved := self.context.first_mover(tracked, (pod.member.uid for pod in moving_pods)):
            self.context.end(tracked, Phase.CANCELLED, *moved, now)  # with the rest of the gang, which it does not name
            return
        moves = moves_of(self.context.view, moving_pods)
        policy = policy_of(moving_pods, migration)
        targets = self._seats(tracked, moving_pods, now) if policy != OnFailure.SHRINK else {}
        reserved = ConditionUpdate(
            ConditionType.RESERVED,
            status=False,
            reason=MigrationReason.PLANNED,
            message="nodes are reserved when it begins",
        )
        if not targets and policy != OnFailure.SHRINK:
            reserved = self._no_seats(migration, moving_pods, searching=self._may_relocate(migration, now))
        moves, cause = with_targets(moves, targets), migration.spec.cause
        others = self.context.intended.get(migration.key)
        self.context.write(tracked, now, Phase.PLANNED, moves, reserved, message=cause, policy=policy, others=others)

    def begin(self, tracked: Tracked, now: float) -> None:
        """Hold seats for a planned Migration, if limits allow it and there is room."""
        migration = tracked.migration
        if self._end_if_unneeded(tracked, now):
            return
        moving_pods = self.context.moving_pods(migration)
        understood = {pod.member.uid for pod in moving_pods if pod.member.cls.amounts}
        unread = [
            move for move in migration.status.moves if self.context.still_present(move) and move.uid not in understood
        ]
        unread = [] if migration.shrinks else unread
        if foreign := next((move for move in unread if move.uid in tracked.learned), None):
            text = f"pod {foreign.pod} is not one that this scheduler placed"
            self.context.end(tracked, Phase.FAILED, MigrationReason.NOT_OURS, text, now)
        elif unread:
            view, namespace = self.context.view, migration.metadata.namespace
            self.context.learn(tracked, [reference_of(view, namespace, move.pod, move.uid) for move in unread])
        elif blocking := self.context.waiting_condition(migration, moving_pods, now):
            self.context.release(migration.key)
            self.context.write(tracked, now, None, None, blocking)
        elif migration.returns_nodes and not may_return_nodes(self.context, tracked, now):
            return
        elif migration.shrinks:
            reason = MigrationReason.LENT if migration.returns_nodes else MigrationReason.SHRINKS
            reserved = ConditionUpdate(ConditionType.RESERVED, False, reason, why_no_seats(migration.status.policy))
            self.context.write(tracked, now, Phase.RESERVING, None, reserved)
        else:
            self._hold(tracked, moving_pods, now)

    def _hold(self, tracked: Tracked, moving_pods: Sequence[MovingPod], now: float) -> None:
        """Hold seats for the pods that leave, if there are any; end the Migration if it is useless."""
        migration = tracked.migration
        heals = may_use_spares(self.context, migration, now)
        avoided, relocates = frozenset(self.context.detection.avoided(now)), self._may_relocate(migration, now)
        state: object = (self.context.view.improvements, avoided, heals, relocates)
        inputs = self._search_inputs(tracked, state, now) if relocates else None
        if tracked.state == state and not (relocates and tracked.repetition.due(inputs, now)):
            return
        tracked.repetition.begin(inputs)
        turn = self._together.turn(tracked, moving_pods, state, now)
        if turn is not None and turn.share is None:
            tracked.not_before = now + NEXT_STEP_SECONDS
            return
        targets = self._seats(tracked, moving_pods, now) if turn is None else _free_seats(turn, moving_pods)
        if targets and self._devices(migration, moving_pods, targets, now) is None:
            targets = {}  # seats of another Migration hold them
        text = f"room for {counted(len(moving_pods), 'pod')} is reserved"
        if reason := reason_useless(self.context, migration, moving_pods, targets):
            self.context.end(tracked, Phase.CANCELLED, MigrationReason.NO_USE, reason, now)
            return
        if targets:
            self._searching.drop(tracked)
        lent = reclaim_lent(
            self.context, tracked, moving_pods, self._avoided(migration, moving_pods, now), targets, now
        )
        targets, text = lent or (targets, text)
        result = _SearchResult(state, now + SEARCH_INTERVAL_SECONDS)
        if not targets and self.context.helpers(migration, now):
            tracked.not_before = result.retry_at  # nothing was searched: once they end, it is
            return
        if not targets:
            if not self.context.view.planning.ready:
                tracked.not_before = result.retry_at
                return
            room = self._planned_room(tracked, moving_pods, state, turn, now)
            if room is None:
                tracked.not_before = now + NEXT_STEP_SECONDS
                return
            result, targets, text = room, room.seats, room.text
        if result.whole:
            tracked.state = None
            return
        if not targets:
            self.context.release(migration.key)
            if tracked.state == LEARNING:
                conditions = _while_reading(migration, moving_pods)
            elif dead := self._left_to_healing(migration, now):
                self.context.end(tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, superseded_text(dead), now)
                return
            else:
                tracked.state, tracked.not_before = result.state, result.retry_at
                tracked.repetition.fail(now)
                conditions = [self._no_seats(migration, moving_pods)]
            self.context.write(tracked, now, None, with_targets(migration.status.moves, {}), *conditions)
            return
        moves = with_targets(moves_of(self.context.view, moving_pods), targets)
        if leaves_slot(self.context, migration):
            moves = with_planned_devices(self.context, migration, moves)
        # None as long as other pods have not left the nodes: then the seats hold no devices.
        elif devices := self._devices(migration, moving_pods, targets, now):
            moves = [msgspec.structs.replace(move, devices=devices.get(move.uid, [])) for move in moves]
        self.context.keep(migration, moves)
        held = ConditionUpdate(ConditionType.RESERVED, status=True, reason=MigrationReason.NODES_RESERVED, message=text)
        self.context.begin(migration, len(moves), now)
        self.context.write(tracked, now, Phase.RESERVING, moves, held)

    def _make_room(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], state: object, now: float
    ) -> _SearchResult | None:
        """Return seats that other pods must leave first, or move the whole gang, whichever is cheaper (see `room`).

        None while the search goes on.
        """
        migration, no_room = tracked.migration, _SearchResult(state, now + SEARCH_INTERVAL_SECONDS)
        if not self._may_relocate(migration, now):
            return no_room
        if unread := [
            pod for pod in unread_neighbours(self.context.view, moving_pods) if pod.uid not in tracked.learned
        ]:
            self.context.learn(tracked, unread)
            return no_room
        avoided = self._avoided(migration, moving_pods, now)
        searched = self._searching.step(tracked, moving_pods, frozenset(avoided), state, now)
        if searched is None:
            return None
        room = searched.room
        remaining = self._may_restart(migration, moving_pods)
        if remaining and (room is None or restart_cost(remaining) < room.cost):
            whole = [*moving_pods, *remaining]
            if targets := self._seats(tracked, whole, now):
                return self._restart(tracked, whole, targets, state, now)
        if room is None:
            return _SearchResult(searched.state, searched.retry_at)
        return self._make_room_by(tracked, moving_pods, room, state, now)

    def _planned_room(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], state: object, turn: PlanningTurn | None, now: float
    ) -> _SearchResult | None:
        """Return the result of the joint plan, if there is one; otherwise of the search for this Migration alone."""
        if turn is None or turn.share is None or not turn.final:
            return self._make_room(tracked, moving_pods, state, now)
        share = turn.share
        if share.whole:
            return self._restart(
                tracked, [*moving_pods, *rest_of_gang(self.context.view, moving_pods)], share.seats, state, now
            )
        if not share.seats:
            return _SearchResult(state, turn.retry_at)
        return self._make_room_by(tracked, moving_pods, share, state, now)

    def _restart(
        self, tracked: Tracked, whole: Sequence[MovingPod], targets: Mapping[str, str], state: object, now: float
    ) -> _SearchResult:
        """Make the whole gang move."""
        moves = with_targets(moves_of(self.context.view, whole), targets)
        text = "there is no room near: all of the gang moves"
        reserved = ConditionUpdate(ConditionType.RESERVED, status=False, reason=MigrationReason.PLANNED, message=text)
        self.context.write(tracked, now, None, moves, reserved, policy=OnFailure.RESTART_GANG)
        return _SearchResult(state, now + SEARCH_INTERVAL_SECONDS, whole=True)

    def _make_room_by(
        self, tracked: Tracked, moving_pods: Sequence[MovingPod], room: SeatGrant, state: object, now: float
    ) -> _SearchResult:
        """Create Migrations for the pods that must leave the seats."""
        self.context.out += helpers_of(self.context, tracked.migration, room.relocated)
        leaving = pod_names(self.context.view, room.relocated, tracked.migration.metadata.namespace)
        text = f"room for {counted(len(moving_pods), 'pod')} is reserved, which {leaving} leave first"
        return _SearchResult(state, now + SEARCH_INTERVAL_SECONDS, dict(room.seats), text)

    def _circular(self, migration: Migration) -> bool:
        """Return whether a Migration would make room for one that makes room itself."""
        beneficiary = self.context.tracked.get(migration.spec.makes_room_for)
        return beneficiary is not None and bool(beneficiary.migration.spec.makes_room_for)

    def reserve(self, tracked: Tracked, now: float) -> None:
        """Begin evictions, once all seats are valid."""
        migration = tracked.migration
        if self._end_if_unneeded(tracked, now):
            return
        moves = migration.status.moves
        lost = None if migration.shrinks else self.context.lost_target(moves, now)
        if lost is not None:
            self.context.release(migration.key)
            seat_lost = ConditionUpdate(
                ConditionType.RESERVED,
                status=False,
                reason=MigrationReason.SEAT_LOST,
                message=f"node {lost} can't be used now",
            )
            self.context.write(tracked, now, Phase.PLANNED, with_targets(moves, {}), seat_lost)
            return
        self.context.keep(migration, moves)
        if not all_have_seats(self.context, migration):
            if self.context.since(tracked, Phase.RESERVING, now) > ALONE_SECONDS:
                self.context.end(
                    tracked,
                    Phase.CANCELLED,
                    MigrationReason.NO_USE,
                    "no node is reserved for other pods that must move as well",
                    now,
                )
            return
        if migration.shrinks or vacant(self.context.view, moves):
            self.context.write(tracked, now, Phase.EVICTING, None)
            return
        waited = self.context.since(tracked, Phase.RESERVING, now)
        if waited > self.context.spec.reservation_timeout or (
            waited > HELP_SECONDS and (not self.context.helpers(migration, now) or self._has_other_room(tracked, now))
        ):
            tracked.stayed = {uid: until for uid, until in tracked.stayed.items() if until > now}
            for helper in self.context.helpers_at_seats(migration):
                tracked.stayed |= dict.fromkeys(self.context.named_uids(helper.migration), now + STAYED_SECONDS)
            self.context.release(migration.key)
            seat_lost = ConditionUpdate(
                ConditionType.RESERVED,
                status=False,
                reason=MigrationReason.SEAT_LOST,
                message="other pods did not leave the reserved nodes",
            )
            self.context.write(tracked, now, Phase.PLANNED, with_targets(moves, {}), seat_lost)

    def _has_other_room(self, tracked: Tracked, now: float) -> bool:
        """Return whether there is other room for a Migration, if pods that are to leave its places can't leave them.

        Disruption budgets may keep them there, or there is no room for them elsewhere.
        """
        context, migration = self.context, tracked.migration
        inputs = self._search_inputs(
            tracked, (context.view.improvements, frozenset(context.detection.avoided(now))), now
        )
        due = tracked.repetition.due(inputs, now)
        if not due or not any(map(_stands_still, context.helpers_at_seats(migration))):
            return False
        moving_pods = context.moving_pods(migration)
        if len(moving_pods) < len(migration.status.moves) or not all(pod.member.cls.amounts for pod in moving_pods):
            return False
        tracked.repetition.begin(inputs)
        has_room = self._searched_other_room(tracked, moving_pods, now)
        if has_room is None:
            tracked.repetition.pause(now + NEXT_STEP_SECONDS)
        else:
            tracked.repetition.fail(now)
        return bool(has_room)

    def _searched_other_room(self, tracked: Tracked, moving_pods: Sequence[MovingPod], now: float) -> bool | None:
        """Return whether a search has found other room; None while it goes on."""
        migration = tracked.migration
        if self._seats(tracked, moving_pods, now):
            return True
        remaining = self._may_restart(migration, moving_pods)
        if remaining and self._seats(tracked, [*moving_pods, *remaining], now):
            return True
        if not self._may_relocate(migration, now) or not self.context.view.planning.ready:
            return False
        avoided = frozenset(self._avoided(migration, moving_pods, now))
        searched = self._searching.step(tracked, moving_pods, avoided, None, now)
        return None if searched is None else searched.room is not None

    def _search_inputs(self, tracked: Tracked, state: object, now: float) -> object:
        """Return all on which a search for pods to relocate depends, apart from times. ``state``: that of free room."""
        staying = frozenset(uid for uid in tracked.stayed if tracked.stays(uid, now))
        context = self.context
        return state, context.view.planning.budget_changes, context.index.moves_ended, staying

    def _end_if_unneeded(self, tracked: Tracked, now: float) -> bool:
        """End a Migration that has evicted no pod and is not needed."""
        unneeded = self._reason_unneeded(tracked, now)
        if unneeded is not None:
            self.context.end(tracked, Phase.CANCELLED, *unneeded, now)
        return unneeded is not None

    def _reason_unneeded(self, tracked: Tracked, now: float) -> tuple[MigrationReason, str] | None:
        """Return reason and text of why a Migration that has evicted no pod is not needed; None if it is."""
        migration, detection = tracked.migration, self.context.detection
        if not self._present(migration):
            return MigrationReason.NOTHING_TO_MOVE, "the pods are gone already"
        if over := beneficiary_over(self.context, migration):
            return MigrationReason.NOT_NEEDED, over
        if not migration.cause.by_choice and (reason := not_awaited(self.context, migration, now)) is not None:
            return reason
        nodes = {move.from_ for move in migration.status.moves}
        failed = next(filter(detection.has_problem, sorted(nodes)), "")
        if migration.cause.by_choice and failed:
            return MigrationReason.NOT_NEEDED, f"node {failed} has failed: moving its pods comes first"
        dead = self._left_to_healing(migration, now)
        # Its pods must not wait for room for the others. Nor may two Migrations move the same pods.
        if dead and (not self.context.warranted(migration) or self.context.are_healed(migration)):
            return MigrationReason.NOT_NEEDED, superseded_text(dead)
        if migration.cause.of_node and all(map(detection.is_healthy, nodes)):
            return MigrationReason.HEALED, "the nodes are healthy again"
        return self.context.first_mover(tracked, self._present(migration))

    def _present(self, migration: Migration) -> list[str]:
        """Return the uids of the pods of a Migration that still hold resources."""
        return [move.uid for move in migration.status.moves if self.context.still_present(move)]

    def _left_to_healing(self, migration: Migration, now: float) -> str:
        """Return a node of the pods of a requested Migration that is dead or gone; empty if none is, or none heals.

        Healing may do more for its pods than a request may: restart the whole gang, or let it shrink.
        """
        if migration.cause is not Cause.REQUESTED or self.context.detection.held:
            return ""
        nodes = sorted({move.from_ for move in migration.status.moves} - {""})
        return next((node for node in nodes if self.context.dead_for_debounce(node, now)), "")

    def _may_relocate(self, migration: Migration, now: float) -> bool:
        """Return whether other pods may be relocated for the pods of a Migration."""
        allowed = migration.cause.moves_others and self.context.warranted(migration)
        allowed = allowed or may_use_spares(self.context, migration, now)
        return allowed and not migration.spec.makes_room_for

    def _may_restart(self, migration: Migration, moving_pods: Sequence[MovingPod]) -> list[MovingPod]:
        """Return the other members of a gang, if the whole gang may restart elsewhere."""
        if not migration.cause.of_node:
            return []
        remaining = rest_of_gang(self.context.view, moving_pods)
        tracked = self.context.tracked[migration.key]
        is_moved = self.context.first_mover(tracked, (pod.member.uid for pod in remaining)) is not None
        return remaining if not is_moved and all(map(may_move, remaining)) else []

    def _claim(self, migration: Migration, moving_pods: Sequence[MovingPod], now: float) -> RelocationRequest:
        """Return the request of a Migration."""
        return RelocationRequest(
            migration.key,
            tuple(moving_pods),
            frozenset(self._avoided(migration, moving_pods, now)),
            trial_preparation(self.context, migration, now),
            tuple(self._may_restart(migration, moving_pods)),
            self._may_relocate(migration, now),
        )

    def _seats(self, tracked: Tracked, moving_pods: Sequence[MovingPod], now: float) -> dict[str, str]:
        migration = tracked.migration
        if leaves_slot(self.context, migration):
            return planned_places(self.context, migration, moving_pods, now)
        avoided, prepare = self._avoided(migration, moving_pods, now), trial_preparation(self.context, migration, now)
        return dict(find_seats(self.context.view, moving_pods, avoided, migration.key, now, prepare))

    def _devices(
        self, migration: Migration, moving_pods: Sequence[MovingPod], targets: Mapping[str, str], now: float
    ) -> Mapping[str, list[SeatDevice]] | None:
        """Return the devices of seats, by uid of the pod; None if not all are free. For MIG slots they are planned."""
        if leaves_slot(self.context, migration):
            return {}
        return devices_of_seats(self.context.view, moving_pods, targets, migration.key, now)

    def _avoided(self, migration: Migration, moving_pods: Sequence[MovingPod], now: float) -> set[str]:
        """Return the nodes that are no target."""
        named = migration.named(moving_pods, lambda pod: (pod.member.name, pod.member.uid))
        avoided = self.context.detection.avoided(now) | {pod.entry.node for pod in named}
        avoided.update(migration.status.left_nodes)
        return avoided | avoided_nodes(self.context.view, migration.spec.avoid) | kept_free(self.context, migration)

    def _no_seats(
        self, migration: Migration, moving_pods: Sequence[MovingPod], *, searching: bool = False
    ) -> ConditionUpdate:
        count = counted(len(moving_pods), "pod")
        reason, text = (
            MigrationReason.NO_ROOM,
            f"no room for {count} by the rules; the scheduler retries when room is freed",
        )
        remaining = rest_of_gang(self.context.view, moving_pods) if migration.cause is Cause.REQUESTED else []
        if searching:
            reason, text = (
                MigrationReason.SEARCHING,
                f"no node is free for {count} by the rules; searching for other pods to relocate",
            )
        elif remaining:
            whole = counted(len(remaining) + len(moving_pods), "pod")
            text += f". The rules keep the gang together; a Migration that names all its {whole} moves it as a whole"
        return ConditionUpdate(ConditionType.RESERVED, status=False, reason=reason, message=text)
