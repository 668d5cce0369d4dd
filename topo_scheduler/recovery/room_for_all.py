"""Who else should move so that several Migrations that wait at once have seats, where not enough are free.

Of all plans one is taken that leaves the fewest pods without seats, those of the highest priority counting first; then
one that costs least, by what `room` says that moves and restarts cost.

- Up to `seats_for_all.EXACT` Migrations, with at most `room.EXACT` workloads that might move: each of the Migrations
  has seats near, or its gang starts again elsewhere, or it waits. For all combinations of these the sets of others are
  tried in the order of `room`, until one makes room. Seats are found by `seats_for_all.place_all`.
- More Migrations, with no more workloads that might move, are planned one after the other first, as `room` does for
  one, beside what the others get. Then each that has no seats, or costs anything, is planned together with others, some
  at a time, while the rest keeps what it has; until `MOST_IN_GROUPS` is reached.
- With more workloads that might move, where one without seats could have the free seats of another, it is tried what it
  costs if that one does without instead: so often at most as `MOST_TURNS` says, and for as long as `MOST_PARTS` says.
  Otherwise each looks for room by itself.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from math import inf
from typing import Final

from topo_scheduler.recovery.claims import (
    NOTHING,
    Copies,
    RelocationRequest,
    SeatGrant,
    Shares,
    can_be,
    lacking,
    placed,
    worth_of,
)
from topo_scheduler.recovery.room import EXACT as EXACT_MOVES
from topo_scheduler.recovery.room import (
    Key,
    Relocation,
    cost_of,
    every_set,
    key_of,
    leavers_of,
    look_for_room,
    restart_cost,
    units_of,
)
from topo_scheduler.recovery.seating import asked_again, trial_without
from topo_scheduler.recovery.seats_for_all import EXACT, Parts, Seats, place_all, rivals_of
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.machine import GoneError
from topo_scheduler.scheduling.moving.plan import makes_room, seat_again
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidates

MOST_TURNS: Final = 8
"""Times it is tried who should go without a free seat, where there are too many for all to be planned together."""
MOST_RIVALS: Final = 3
"""Migrations that are tried in place of one."""
MOST_PARTS: Final = 400
"""Parts of the work after which no more is tried then: less than a second of them, mostly."""
MOST_IN_GROUPS: Final = 2000
"""Times the planner is asked for seats for all that are planned in groups, until no further group is."""
MOST_ASKED: Final = 5000
"""Times the planner is asked for seats for those that are planned together."""

MaybeParts = Generator[None, None, dict[str, SeatGrant] | None]
"""Yields after each part of the work."""
Beside = Sequence[tuple[RelocationRequest, SeatGrant]]
"""What other Migrations get."""
Ways = Sequence[RelocationRequest | None]
"""Who is to have seats, as it is or whole, of each Migration; None for one that waits."""


@dataclass(frozen=True, slots=True)
class Others:
    """Who else might move. ``taken`` uids of pods that move for other reasons; ``wall`` seconds since the epoch."""

    taken: frozenset[str]
    wall: float


@dataclass(frozen=True, slots=True)
class _Movable:
    """Sets of candidates that can leave, the best first, with what they are ordered by; the first is empty."""

    candidates: Candidates
    sets: tuple[tuple[Key, tuple[int, ...]], ...]


def room_for_all(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    """Return what each gets if others may move; None where that is for each to find out by itself.

    Args:
        copies: on which it is tried.
        claims: what they ask for, in the order in which they come to it where nothing else decides.
        free: what each gets if nobody else moves.
        others: who may.
    """
    try:
        few = _movable(copies, claims, others, ()) is not None
        yield
        if few and len(claims) <= EXACT:
            return (yield from _together(copies, claims, free, others, ()))
        if few:
            return (yield from _in_groups(copies, claims, free, others))
        return (yield from _in_turn(copies, claims, free, others))
    except (PluginError, GoneError):
        return None


def _movable(copies: Copies, claims: Sequence[RelocationRequest], others: Others, beside: Beside) -> _Movable | None:
    """Return who might move for any of these; None where nobody may, or too many to try all sets."""
    engine = copies.engine
    asks = [claim for claim in claims if claim.moves_others]
    if not asks or not engine.preempting.budgets.known:
        return None
    candidates = engine.moving.movable(max(asks, key=lambda claim: claim.priority).leavers[0].workload)
    avoided = frozenset[str]().union(*(claim.avoided for claim in claims))
    own = _own((*claims, *(claim for claim, _ in beside))) | {uid for _, share in beside for uid in share.to}
    names = engine.world.nodes.names
    barred = {
        number
        for number, pod in enumerate(candidates.pods)
        if names[pod.row] in avoided or pod.occupant.uid in others.taken or pod.occupant.uid in own
    }
    units = [unit for unit in units_of(candidates) if barred.isdisjoint(unit)]
    if len(units) > EXACT_MOVES:
        return None
    keyed = [(key_of(leavers_of(engine, candidates, some), others.wall), some) for some in every_set(candidates, units)]
    return _Movable(candidates, ((key_of((), others.wall), ()), *sorted(keyed)))


def _own(claims: Iterable[RelocationRequest]) -> set[str]:
    """Return the pods of the workloads that ask."""
    return {uid for claim in claims for uid in claim.leavers[0].workload.members}


# ---------------------------------------------------------------- all together


def _in_groups(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    """Return what each gets if more and more of them are planned together, the others staying with what they have."""
    end = copies.asked + MOST_IN_GROUPS
    first = yield from one_by_one(copies, claims, free, others, end)
    if first is None:
        return None
    shares = first

    def lacks(claim: RelocationRequest) -> bool:
        return not shares[claim.key].seats or shares[claim.key].cost > 0.0

    for claim in claims:
        partners = sorted((one for one in claims if one is not claim), key=lambda one: not lacks(one))
        for at in range(0, len(partners), EXACT - 1):
            if not lacks(claim) or copies.asked > end:
                break
            some = (claim, *partners[at : at + EXACT - 1])
            group = [one for one in claims if one in some]
            beside = [(one, shares[one.key]) for one in claims if one not in group]
            found = {**shares, **(yield from _together(copies, group, shares, others, beside))}
            if can_be(copies.engine, [(one, found[one.key]) for one in claims]):
                shares = found
    return shares


def _together(
    copies: Copies, claims: Sequence[RelocationRequest], known: Shares, others: Others, beside: Beside
) -> Parts:
    """Return what each gets, at best, ``beside`` what others do. ``known`` what it would get otherwise."""
    movable = _movable(copies, claims, others, beside)
    shares = {claim.key: known[claim.key] for claim in claims}
    if movable is None:
        return shares
    end = copies.asked + MOST_ASKED
    ways = [[claim, *([claim.whole] if claim.rest else []), None] for claim in claims]
    every: list[Ways] = sorted(product(*ways), key=lambda some: (_lacking(claims, some), _restarts(claims, some)))
    best = worth_of(copies.engine, claims, shares)
    for lack, group in groupby(every, key=lambda some: _lacking(claims, some)):
        if lack > best[0] or copies.asked > end:
            break
        for some in group:
            if (lack, _restarts(claims, some)) < best[:2]:
                found = yield from _cheapest(copies, claims, some, movable, others.wall, beside, end)
                if found is not None and (worth := worth_of(copies.engine, claims, found)) < best:
                    best, shares = worth, found
    return shares


def _lacking(claims: Sequence[RelocationRequest], ways: Ways) -> tuple[int, ...]:
    return lacking(claims, [way.key for way in ways if way is not None])


def _restarts(claims: Sequence[RelocationRequest], ways: Ways) -> float:
    return sum(restart_cost(claim.rest) for claim, way in zip(claims, ways, strict=True) if _is_whole(claim, way))


def _is_whole(claim: RelocationRequest, way: RelocationRequest | None) -> bool:
    return way is not None and len(way.leavers) > len(claim.leavers)


def _cheapest(
    copies: Copies,
    claims: Sequence[RelocationRequest],
    ways: Ways,
    movable: _Movable,
    wall: float,
    beside: Beside,
    end: int,
) -> Generator[None, None, dict[str, SeatGrant] | None]:
    """Return what each gets by the first set of others that makes room; None where none does."""
    near = [way for claim, way in zip(claims, ways, strict=True) if way is not None and not _is_whole(claim, way)]
    helped = [claim for claim in near if claim.moves_others]
    wanted = [way for way in ways if way is not None]
    highest = max((claim.priority for claim in helped), default=None)
    rooms = []
    for claim in near:
        _, ask = asked_again(copies.engine, claim.leavers)
        trial = trial_without(copies.engine, claim.leavers, claim.avoided, claim.key, copies.now, neighbours=False)
        copies.beside(claim, beside)(trial)
        rooms.append(makes_room(trial, ask, copies.engine.world.layout, movable.candidates))
        yield
    for key, chosen in movable.sets:
        if chosen and (highest is None or key[0] > highest):
            break
        if copies.asked > end:
            break
        if chosen and not all(room(chosen) for room in rooms):
            continue
        gone = [movable.candidates.pods[number] for number in chosen]
        leaving = _Leaving(copies, wanted, helped, beside, movable.candidates, chosen)
        found = yield from place_all(copies, wanted, beside, gone, leaving.fits if chosen else None)
        if found is not None:
            return _shares(copies, claims, ways, found, leaving, wall)
    return None


class _Leaving:
    """A set of others that leave, with where they go and for whose sake: for the seats for which it was asked last.

    ``wanted`` whoever is to have seats, ``helped`` for whom others may leave, ``beside`` what others get.
    """

    def __init__(
        self,
        copies: Copies,
        wanted: Sequence[RelocationRequest],
        helped: Sequence[RelocationRequest],
        beside: Beside,
        candidates: Candidates,
        chosen: Sequence[int],
    ) -> None:
        self._copies, self._wanted, self._helped, self._beside = copies, wanted, helped, beside
        self.candidates, self._chosen = candidates, chosen
        self.for_whom: dict[int, str] = {}
        """Key of a Migration, by the number of the candidate."""
        self.to: dict[int, str] = {}
        """Node, by the number of the candidate."""

    def fits(self, seats: Seats) -> Generator[None, None, bool]:
        """Whether all of them have places elsewhere beside these seats; yields after each part of the work."""
        for_whom = self._attributed(seats)
        if for_whom is None:
            return False
        engine, pods = self._copies.engine, [self.candidates.pods[number] for number in self._chosen]
        # What is promised to those of low priority counts here, too.
        asks = min(self._helped, key=lambda claim: claim.priority)
        avoided = frozenset[str]().union(*(claim.avoided for claim in self._wanted))
        trial = trial_without(engine, asks.leavers, avoided, asks.key, self._copies.now, neighbours=True)
        seated = [(claim, SeatGrant(seats[claim.key])) for claim in self._wanted]
        came, left = placed(engine, [*self._beside, *seated])
        trial.remove([*left, *pods])
        trial.restore(came)
        rows = yield from seat_again(trial, self.candidates, self._chosen, engine.moving.again)
        # One that could stay where it is need not move: a smaller set does as well.
        if rows is None or any(row == pod.row for pod, row in zip(pods, rows, strict=True)):
            return False
        names = engine.world.nodes.names
        self.for_whom, self.to = for_whom, {n: names[row] for n, row in zip(self._chosen, rows, strict=True)}
        return True

    def _attributed(self, seats: Seats) -> dict[int, str] | None:
        """Return for whose sake each leaves: for one whose seats are there, if there is one; None where nobody may ask.

        A gang leaves for one.
        """
        names, found = self._copies.engine.world.nodes.names, dict[int, str]()
        by_gang: dict[int, list[int]] = {}
        for number in self._chosen:
            gang = self.candidates.pods[number].gang
            by_gang.setdefault(gang if gang != NO_GANG else -2 - number, []).append(number)
        for numbers in by_gang.values():
            pods = [self.candidates.pods[number] for number in numbers]
            priority, nodes = max(pod.occupant.priority for pod in pods), {names[pod.row] for pod in pods}
            may = [claim for claim in self._helped if claim.priority >= priority]
            if not may:
                return None
            there = [claim for claim in may if not nodes.isdisjoint(seats[claim.key].values())]
            claim = max(there or may, key=lambda claim: claim.priority)
            found |= dict.fromkeys(numbers, claim.key)
        return found


def _shares(
    copies: Copies, claims: Sequence[RelocationRequest], ways: Ways, seats: Seats, leaving: _Leaving, wall: float
) -> dict[str, SeatGrant]:
    shares = dict.fromkeys((claim.key for claim in claims), NOTHING)
    for claim, way in zip(claims, ways, strict=True):
        if way is None:
            continue
        if _is_whole(claim, way):
            shares[claim.key] = SeatGrant(seats[claim.key], cost=restart_cost(claim.rest), whole=True)
            continue
        numbers = [number for number, key in leaving.for_whom.items() if key == claim.key]
        others = leavers_of(copies.engine, leaving.candidates, numbers)
        to = {leaving.candidates.pods[number].occupant.uid: leaving.to[number] for number in numbers}
        shares[claim.key] = SeatGrant(seats[claim.key], others, to, sum(cost_of(one, wall) for one in others))
    return shares


# ---------------------------------------------------------------- one after the other


def _in_turn(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    rivals: list[tuple[RelocationRequest, RelocationRequest]] = []
    for claim in claims:
        if not free[claim.key].seats:
            found = yield from rivals_of(copies, claims, free, claim)
            rivals += [(claim, rival) for rival in found[:MOST_RIVALS]]
    if not rivals:
        return None
    end = copies.asked + MOST_PARTS
    best = yield from one_by_one(copies, claims, free, others, end)
    if best is None:
        return None
    done: set[str] = set()
    for claim, rival in rivals[:MOST_TURNS]:
        if not done.isdisjoint((claim.key, rival.key)):
            continue
        rest = [(one, free[one.key]) for one in claims if one is not claim and one is not rival]
        seats = copies.seats(claim, rest)
        swapped = {**free, claim.key: SeatGrant(seats)}
        swapped[rival.key] = SeatGrant(copies.seats(rival, [*rest, (claim, swapped[claim.key])]))
        yield
        shares = yield from one_by_one(copies, claims, swapped, others, end)
        if shares is None:
            break
        if worth_of(copies.engine, claims, shares) < worth_of(copies.engine, claims, best):
            best, free = shares, swapped
            done |= {claim.key, rival.key}
    return best


def one_by_one(
    copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others, end: float = inf
) -> MaybeParts:
    """Return what each gets if those without seats look for room one after the other, beside what all others get.

    None where so much would have to be tried that ``copies.asked`` comes to ``end``.
    """
    shares = dict(free)
    for claim in claims:
        if shares[claim.key].seats:
            continue
        beside = [(one, shares[one.key]) for one in claims if one is not claim and shares[one.key].seats]
        room = None
        if claim.moves_others:
            room = yield from _room(copies, claim, beside, others, end)
            if copies.asked >= end:
                return None
        if claim.rest and (room is None or restart_cost(claim.rest) < room.cost):
            seats = copies.seats(claim.whole, beside)
            yield
            if seats:
                shares[claim.key] = SeatGrant(seats, cost=restart_cost(claim.rest), whole=True)
                continue
        if room is not None:
            shares[claim.key] = SeatGrant(room.seats, room.others, room.to, room.cost)
    return shares


def _room(
    copies: Copies,
    claim: RelocationRequest,
    beside: Sequence[tuple[RelocationRequest, SeatGrant]],
    others: Others,
    end: float,
) -> Generator[None, None, Relocation | None]:
    moving = {one.member.uid for _, share in beside for one in share.others}
    failed = _own([one for one, _ in beside])
    came, left = placed(copies.engine, beside)

    def prepare(trial: Trial) -> None:
        trial.remove(left)
        trial.restore(came)

    taken = others.taken | moving | failed
    leavers, avoided = claim.leavers, claim.avoided
    for found in look_for_room(copies.engine, leavers, avoided, taken, claim.key, copies.now, others.wall, prepare):
        copies.asked += 1
        yield
        if found is not None or copies.asked >= end:
            return found
    return None
