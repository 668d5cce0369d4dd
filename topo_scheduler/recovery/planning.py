"""From a Migration that is new to seats that are held: nobody is evicted meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.annotations import OnFailure
from topo_scheduler.api.migrations import Cause, Migration, Phase
from topo_scheduler.recovery.choosing import ALONE, all_have_seats, kept_free, useless
from topo_scheduler.recovery.claims import RelocationRequest
from topo_scheduler.recovery.ground import LEARNING, MigrationContext
from topo_scheduler.recovery.reading import (
    Refused,
    Unlearned,
    avoided_nodes,
    may_move,
    policy_of,
    read_pods,
    rest_of_gang,
)
from topo_scheduler.recovery.room import helpers_of, neighbours_unread, restart_cost
from topo_scheduler.recovery.searching import NEXT, Searching
from topo_scheduler.recovery.seating import MovingPod, find_seats, moves_of, vacant, who
from topo_scheduler.recovery.spares import (
    may_give_way,
    may_use_spares,
    opening,
    plan_giving_way,
    take_back,
    why_no_seats,
)
from topo_scheduler.recovery.together import PlanningTurn, Together
from topo_scheduler.recovery.tracked import Condition, Tracked, with_targets
from topo_scheduler.scheduling.instructions import PodRef

HELP_SECONDS: Final = 30.0
"""Seconds in which those who make room must have appeared."""
LOOK_AGAIN: Final = 1.0
"""Seconds between two searches for seats, at least."""
NOTHING_TO_MOVE: Final = "NothingToMove"
"""The reason of a Migration that ends as its pods are gone."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """What came of looking for room: seats by uid, if any, with what is to be said of them.

    ``state`` that was looked at, ``again`` when to look again where nothing was found, in seconds; ``whole``: all of
    the gang moves now.
    """

    state: object
    again: float
    seats: dict[str, str] = field(default_factory=dict)
    text: str = ""
    whole: bool = False


def _free_of(turn: PlanningTurn, leavers: Sequence[MovingPod]) -> dict[str, str]:
    """Return the seats that one gets without others' moving, nor members of its gang that need not."""
    share = turn.share
    free = share is not None and not share.others and share.seats.keys() == {one.member.uid for one in leavers}
    return dict(share.seats) if share is not None and free else {}


class Planning:
    """The first phases."""

    def __init__(self, ground: MigrationContext, clock: Callable[[], float]) -> None:
        self._ground = ground
        self._searching = Searching(ground, clock)
        self._together = Together(ground, clock, self._claim)

    def plan(self, known: Tracked, now: float) -> None:
        """Plan a Migration that is new."""
        migration = known.migration
        if self._circular(migration):
            text = f"{migration.spec.makes_room_for}, for which it is to make room, makes room itself"
            self._ground.end(known, Phase.FAILED, "Circular", text, now)
            return
        if migration.gives_way:
            plan_giving_way(self._ground, known, now)
            return
        try:
            leavers = read_pods(self._ground.engine, migration, known.learned, self._ground.others(known))
        except Unlearned as error:
            self._ground.learn(known, error.pods)
            return
        except Refused as error:
            self._ground.end(known, error.phase, error.reason, str(error), now)
            return
        moves = moves_of(self._ground.engine, leavers)
        policy = policy_of(leavers, migration)
        targets = self._seats(known, leavers, now) if policy != OnFailure.SHRINK else {}
        found = Condition("Reserved", status=False, reason="Planned", message="seats are held once it begins")
        if not targets and policy != OnFailure.SHRINK:
            found = self._searches(leavers) if self._moves_others(migration, now) else self._no_room(leavers)
        moves, cause = with_targets(moves, targets), migration.spec.cause
        others = self._ground.intended.get(migration.key)
        self._ground.write(known, now, Phase.PLANNED, moves, found, message=cause, policy=policy, others=others)

    def begin(self, known: Tracked, now: float) -> None:
        """Hold seats for a planned one, if its turn has come and there is room."""
        migration = known.migration
        if self._ends_before(known, now):
            return
        leavers = self._ground.leavers(migration)
        understood = {one.member.uid for one in leavers if one.member.cls.amounts}
        unread = [move for move in migration.status.moves if self._ground.is_there(move) and move.uid not in understood]
        unread = [] if migration.shrinks else unread
        if strange := next((move for move in unread if move.uid in known.learned), None):
            text = f"pod {strange.pod} is not one that this scheduler placed"
            self._ground.end(known, Phase.FAILED, "NotOurs", text, now)
        elif unread:
            self._ground.learn(known, [PodRef(migration.metadata.namespace, move.pod, move.uid) for move in unread])
        elif waits := self._ground.holds_back(migration, leavers, now):
            self._ground.write(known, now, None, None, waits)
        elif migration.gives_way and not may_give_way(self._ground, known, now):
            return
        elif migration.shrinks:
            reason = "Lent" if migration.gives_way else "Shrinks"
            told = Condition("Reserved", False, reason, why_no_seats(migration.status.policy))
            self._ground.write(known, now, Phase.RESERVING, None, told)
        else:
            self._hold(known, leavers, now)

    def _hold(self, known: Tracked, leavers: Sequence[MovingPod], now: float) -> None:
        """Hold seats for the pods that leave, if there are any; what has no use ends."""
        migration = known.migration
        heals = may_use_spares(self._ground, migration, now)
        state: object = (self._ground.engine.world.improvements, frozenset(self._ground.detection.avoided(now)), heals)
        if known.state == state:
            return
        turn = self._together.turn(known, leavers, state, now)
        if turn is not None and turn.share is None:
            known.not_before = now + NEXT
            return
        targets = self._seats(known, leavers, now) if turn is None else _free_of(turn, leavers)
        text = f"{len(leavers)} seats are held"
        if why := useless(self._ground, migration, leavers, targets):
            self._ground.end(known, Phase.CANCELLED, "NoUse", why, now)
            return
        if targets:
            self._searching.drop(known)
        lent = take_back(self._ground, known, leavers, self._avoided(migration, leavers, now), targets, now)
        targets, text = lent or (targets, text)
        looked = _Looked(state, now + LOOK_AGAIN)
        if not targets and not self._ground.helpers(migration):
            if not self._ground.engine.preempting.ready:
                known.not_before = looked.again
                return
            made = self._planned_room(known, leavers, state, turn, now)
            if made is None:
                known.not_before = now + NEXT
                return
            looked, targets, text = made, made.seats, made.text
        if looked.whole:
            known.state = None
            return
        if not targets:
            if known.state != LEARNING:
                known.state, known.not_before = looked.state, looked.again
            self._ground.write(known, now, None, with_targets(migration.status.moves, {}), self._no_room(leavers))
            return
        moves = with_targets(moves_of(self._ground.engine, leavers), targets)
        self._ground.keep(migration, moves)
        held = Condition("Reserved", status=True, reason="SeatsHeld", message=text)
        self._ground.limits.begin(migration, self._ground.epoch + now)
        self._ground.moved.begin(migration, len(moves), self._ground.epoch + now)
        self._ground.write(known, now, Phase.RESERVING, moves, held)

    def _make_room(self, known: Tracked, leavers: Sequence[MovingPod], state: object, now: float) -> _Looked | None:
        """Return seats that others must leave first, or have the whole gang move; None while it is searched.

        Whatever is cheaper: see `room`.
        """
        migration, nothing = known.migration, _Looked(state, now + LOOK_AGAIN)
        if not self._moves_others(migration, now):
            return nothing
        if strangers := [
            pod for pod in neighbours_unread(self._ground.engine, leavers) if pod.uid not in known.learned
        ]:
            self._ground.learn(known, strangers)
            return nothing
        avoided = self._avoided(migration, leavers, now)
        searched = self._searching.step(known, leavers, frozenset(avoided), state, now)
        if searched is None:
            return None
        room = searched.room
        rest = self._may_restart(migration, leavers)
        if rest and (room is None or restart_cost(rest) < room.cost):
            whole = [*leavers, *rest]
            if targets := self._seats(known, whole, now):
                return self._restart(known, whole, targets, state, now)
        if room is None:
            return _Looked(searched.state, searched.again)
        return self._ask_others(known, leavers, room.seats, room.others, state, now)

    def _planned_room(
        self, known: Tracked, leavers: Sequence[MovingPod], state: object, turn: PlanningTurn | None, now: float
    ) -> _Looked | None:
        """Return what was planned for several at once, if it was; else what is found for this one alone."""
        if turn is None or turn.share is None or not turn.final:
            return self._make_room(known, leavers, state, now)
        share = turn.share
        if share.whole:
            return self._restart(
                known, [*leavers, *rest_of_gang(self._ground.engine, leavers)], share.seats, state, now
            )
        if not share.seats:
            return _Looked(state, turn.again)
        return self._ask_others(known, leavers, share.seats, share.others, state, now)

    def _restart(
        self, known: Tracked, whole: Sequence[MovingPod], targets: Mapping[str, str], state: object, now: float
    ) -> _Looked:
        """Have all of a gang move."""
        moves = with_targets(moves_of(self._ground.engine, whole), targets)
        text = "there is no room near: all of the gang moves"
        found = Condition("Reserved", status=False, reason="Planned", message=text)
        self._ground.write(known, now, None, moves, found, policy=OnFailure.RESTART_GANG)
        return _Looked(state, now + LOOK_AGAIN, whole=True)

    def _ask_others(
        self,
        known: Tracked,
        leavers: Sequence[MovingPod],
        seats: Mapping[str, str],
        others: Sequence[MovingPod],
        state: object,
        now: float,
    ) -> _Looked:
        """Have others leave seats."""
        self._ground.out += helpers_of(
            known.migration, others, self._ground.finished.fresh_name, self._ground.engine.world.reader
        )
        text = f"{len(leavers)} seats are held, which {who(others)} leave first"
        return _Looked(state, now + LOOK_AGAIN, dict(seats), text)

    def _circular(self, migration: Migration) -> bool:
        """Whether one is to make room for itself, or for one that makes room."""
        waits_for = self._ground.tracked.get(migration.spec.makes_room_for)
        return waits_for is not None and bool(waits_for.migration.spec.makes_room_for)

    def reserve(self, known: Tracked, now: float) -> None:
        """Let evictions begin, once the seats are good."""
        migration = known.migration
        if self._ends_before(known, now):
            return
        moves = migration.status.moves
        lost = None if migration.shrinks else self._ground.lost_target(moves, now)
        if lost is not None:
            self._ground.release(migration.key)
            gone = Condition("Reserved", status=False, reason="SeatLost", message=f"node {lost} can't be used now")
            self._ground.write(known, now, Phase.PLANNED, with_targets(moves, {}), gone)
            return
        self._ground.keep(migration, moves)
        if not all_have_seats(self._ground, migration):
            if self._ground.since(known, Phase.RESERVING, now) > ALONE:
                self._ground.end(known, Phase.CANCELLED, "NoUse", "others have no seats that must move as well", now)
            return
        if migration.shrinks or vacant(self._ground.engine, moves):
            self._ground.write(known, now, Phase.EVICTING, None)
            return
        waited = self._ground.since(known, Phase.RESERVING, now)
        if waited > self._ground.spec.seats_expire or (waited > HELP_SECONDS and not self._ground.helpers(migration)):
            self._ground.release(migration.key)
            taken = Condition("Reserved", status=False, reason="SeatLost", message="others did not leave the seats")
            self._ground.write(known, now, Phase.PLANNED, with_targets(moves, {}), taken)

    def _ends_before(self, known: Tracked, now: float) -> bool:
        """End a Migration that has evicted nobody, and need not."""
        migration = known.migration
        if not any(self._ground.is_there(move) for move in migration.status.moves):
            self._ground.end(known, Phase.CANCELLED, NOTHING_TO_MOVE, "the pods are gone already", now)
            return True
        if migration.spec.makes_room_for and migration.spec.makes_room_for not in self._ground.tracked:
            text = f"{migration.spec.makes_room_for}, for which it makes room, is over"
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", text, now)
            return True
        nodes = {move.from_ for move in migration.status.moves}
        if migration.cause.by_choice and (ill := next(filter(self._ground.detection.ill, sorted(nodes)), "")):
            self._ground.end(known, Phase.CANCELLED, "NotNeeded", f"node {ill} has failed: that comes first", now)
            return True
        if migration.cause is Cause.REQUESTED and not self._ground.warranted(migration):
            dead = next((node for node in sorted(nodes) if self._ground.detection.died(node, now)), "")
            if dead:  # otherwise its pods would wait for room for those that are well
                text = f"node {dead} has failed: its pods are moved first; ask again for the others"
                known.superseded = True
                self._ground.end(known, Phase.CANCELLED, "NotNeeded", text, now)
                return True
        if migration.cause.of_node and all(self._ground.detection.well(node) for node in nodes):
            self._ground.end(known, Phase.CANCELLED, "Healed", "the nodes are well again", now)
            return True
        return False

    def _moves_others(self, migration: Migration, now: float) -> bool:
        """Whether others may be moved for the pods of a Migration."""
        enough = migration.cause.moves_others and self._ground.warranted(migration)
        enough = enough or may_use_spares(self._ground, migration, now)
        return enough and not migration.spec.makes_room_for

    def _may_restart(self, migration: Migration, leavers: Sequence[MovingPod]) -> list[MovingPod]:
        """Return the rest of a gang, if all of it may start again elsewhere."""
        rest = rest_of_gang(self._ground.engine, leavers)
        return rest if migration.cause.of_node and all(may_move(one) for one in rest) else []

    def _claim(self, migration: Migration, leavers: Sequence[MovingPod], now: float) -> RelocationRequest:
        """Return what a Migration asks for."""
        return RelocationRequest(
            migration.key,
            tuple(leavers),
            frozenset(self._avoided(migration, leavers, now)),
            opening(self._ground, migration, now),
            tuple(self._may_restart(migration, leavers)),
            self._moves_others(migration, now),
        )

    def _seats(self, known: Tracked, leavers: Sequence[MovingPod], now: float) -> dict[str, str]:
        migration = known.migration
        avoided, prepare = self._avoided(migration, leavers, now), opening(self._ground, migration, now)
        return dict(find_seats(self._ground.engine, leavers, avoided, migration.key, now, prepare))

    def _avoided(self, migration: Migration, leavers: Sequence[MovingPod], now: float) -> set[str]:
        """Return the nodes that are no target."""
        named = (one for one in leavers if migration.names(one.member.name, one.member.uid))
        avoided = self._ground.detection.avoided(now) | {one.entry.node for one in named}
        return avoided | avoided_nodes(self._ground.engine, migration.spec.avoid) | kept_free(self._ground, migration)

    def _searches(self, leavers: Sequence[MovingPod]) -> Condition:
        text = f"nothing is free for {len(leavers)} pods where the rules allow them; who else might move is searched"
        return Condition("Reserved", status=False, reason="Searching", message=text)

    def _no_room(self, leavers: Sequence[MovingPod]) -> Condition:
        text = f"no room for {len(leavers)} pods where the rules allow them; it is looked for again when room comes"
        return Condition("Reserved", status=False, reason="NoRoom", message=text)
