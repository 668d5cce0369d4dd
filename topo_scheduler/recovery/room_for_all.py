"""Chooses pods to relocate so that several pending Migrations get seats, if not enough nodes are free.

The search takes the plan that leaves the fewest pods without seats, pods of the highest priority first. Among equal
plans it takes the cheapest, by the costs of moves and restarts in `room`.

- Up to `seats_for_all.EXACT` Migrations, at most `room.EXACT` movable workloads: each Migration gets seats near its
  gang, or restarts its gang elsewhere, or stays pending. For each combination the search tries the sets of pods to
  relocate in the order of `room`, until one makes room. `seats_for_all.place_all` finds the seats.
- More Migrations, as few movable workloads: the search first plans them one after the other, as `room` does for one.
  Then it plans each that has no seats or costs something again, together with some of the others. The rest keep what
  they have. It stops at `MOST_IN_GROUPS`.
- More movable workloads: if a Migration without seats could use the free seats of another, the search computes the cost
  of swapping them. It does so for at most `MOST_TURNS` pairs and `MOST_PARTS` slices of work. Without such a pair, each
  Migration searches for room by itself.
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
"""Pairs of Migrations for which the search tries to swap seats, if there are too many to plan all together."""
MOST_RIVALS: Final = 3
"""Migrations whose seats one Migration may take in that search."""
MOST_PARTS: Final = 400
"""Slices of work after which that search stops: usually less than a second."""
MOST_IN_GROUPS: Final = 2000
"""Queries to the planner after which no further group of Migrations is planned together."""
MOST_ASKED: Final = 5000
"""Queries to the planner for Migrations that are planned together."""

MaybeParts = Generator[None, None, dict[str, SeatGrant] | None]
"""Yields after each slice of the work."""
Beside = Sequence[tuple[RelocationRequest, SeatGrant]]
"""The grants of other Migrations."""
Ways = Sequence[RelocationRequest | None]
"""The request that gets seats for each Migration, for the pods that must move or the whole gang; None if pending."""


@dataclass(frozen=True, slots=True)
class Others:
    """Which other pods can move. ``taken`` are uids of pods that move for other reasons; ``wall`` in epoch seconds."""

    taken: frozenset[str]
    wall: float


@dataclass(frozen=True, slots=True)
class _Movable:
    """Sets of candidates that can leave, the best first, each with its sort key. The first set is empty."""

    candidates: Candidates
    sets: tuple[tuple[Key, tuple[int, ...]], ...]


def room_for_all(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    """Return the grant of each Migration if other pods may move; None if each must search by itself.

    Args:
        copies: plans on copies of the state.
        claims: requests of the Migrations, in the order that decides between equal plans.
        free: the grants if no other pod moves.
        others: the pods that may move.
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
    """Return the pods that can move for any of these claims; None if there are none, or too many to try all sets."""
    engine = copies.engine
    movers = [claim for claim in claims if claim.moves_others]
    if not movers or not engine.preempting.budgets.known:
        return None
    candidates = engine.moving.movable(max(movers, key=lambda claim: claim.priority).leavers[0].workload)
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
    keyed = [
        (key_of(leavers_of(engine, candidates, chosen), others.wall), chosen) for chosen in every_set(candidates, units)
    ]
    return _Movable(candidates, ((key_of((), others.wall), ()), *sorted(keyed)))


def _own(claims: Iterable[RelocationRequest]) -> set[str]:
    """Return the uids of the pods of the workloads of these claims."""
    return {uid for claim in claims for uid in claim.leavers[0].workload.members}


# ---------------------------------------------------------------- planning together


def _in_groups(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    """Return the grants found by planning one group after another, while the other Migrations keep their grants."""
    end = copies.asked + MOST_IN_GROUPS
    first = yield from one_by_one(copies, claims, free, others, end)
    if first is None:
        return None
    shares = first

    def lacks(claim: RelocationRequest) -> bool:
        return not shares[claim.key].seats or shares[claim.key].cost > 0.0

    for claim in claims:
        partners = sorted((other for other in claims if other is not claim), key=lambda other: not lacks(other))
        for start in range(0, len(partners), EXACT - 1):
            if not lacks(claim) or copies.asked > end:
                break
            batch = (claim, *partners[start : start + EXACT - 1])
            group = [other for other in claims if other in batch]
            beside = [(other, shares[other.key]) for other in claims if other not in group]
            candidate = {**shares, **(yield from _together(copies, group, shares, others, beside))}
            if can_be(copies.engine, [(other, candidate[other.key]) for other in claims]):
                shares = candidate
    return shares


def _together(
    copies: Copies, claims: Sequence[RelocationRequest], known: Shares, others: Others, beside: Beside
) -> Parts:
    """Return the best grants beside those of other Migrations. ``known`` has the grants that apply otherwise."""
    movable = _movable(copies, claims, others, beside)
    shares = {claim.key: known[claim.key] for claim in claims}
    if movable is None:
        return shares
    end = copies.asked + MOST_ASKED
    ways = [[claim, *([claim.whole] if claim.rest else []), None] for claim in claims]
    combinations: list[Ways] = sorted(
        product(*ways), key=lambda combination: (_lacking(claims, combination), _restarts(claims, combination))
    )
    best = worth_of(copies.engine, claims, shares)
    for lack, group in groupby(combinations, key=lambda combination: _lacking(claims, combination)):
        if lack > best[0] or copies.asked > end:
            break
        for combination in group:
            if (lack, _restarts(claims, combination)) < best[:2]:
                candidate = yield from _cheapest(copies, claims, combination, movable, others.wall, beside, end)
                if candidate is not None and (worth := worth_of(copies.engine, claims, candidate)) < best:
                    best, shares = worth, candidate
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
    """Return the grants with the first set of relocated pods that makes room; None if no set does."""
    near = [way for claim, way in zip(claims, ways, strict=True) if way is not None and not _is_whole(claim, way)]
    helped = [claim for claim in near if claim.moves_others]
    served = [way for way in ways if way is not None]
    highest = max((claim.priority for claim in helped), default=None)
    rooms = []
    for claim in near:
        _, query = asked_again(copies.engine, claim.leavers)
        trial = trial_without(copies.engine, claim.leavers, claim.avoided, claim.key, copies.now, neighbours=False)
        copies.beside(claim, beside)(trial)
        rooms.append(makes_room(trial, query, copies.engine.world.layout, movable.candidates))
        yield
    for key, chosen in movable.sets:
        if chosen and (highest is None or key[0] > highest):
            break
        if copies.asked > end:
            break
        if chosen and not all(room(chosen) for room in rooms):
            continue
        gone = [movable.candidates.pods[number] for number in chosen]
        leaving = _Leaving(copies, served, helped, beside, movable.candidates, chosen)
        seats = yield from place_all(copies, served, beside, gone, leaving.fits if chosen else None)
        if seats is not None:
            return _shares(copies, claims, ways, seats, leaving, wall)
    return None


class _Leaving:
    """A set of relocated pods, with their target nodes and the Migrations they move for, for the last tested seats.

    ``served`` are the claims that get seats, ``helped`` those for which pods may be relocated, ``beside`` other grants.
    """

    def __init__(
        self,
        copies: Copies,
        served: Sequence[RelocationRequest],
        helped: Sequence[RelocationRequest],
        beside: Beside,
        candidates: Candidates,
        chosen: Sequence[int],
    ) -> None:
        self._copies, self._served, self._helped, self._beside = copies, served, helped, beside
        self.candidates, self._chosen = candidates, chosen
        self.for_whom: dict[int, str] = {}
        """Key of the Migration for which a candidate moves, by the number of the candidate."""
        self.to: dict[int, str] = {}
        """Target node, by the number of the candidate."""

    def fits(self, seats: Seats) -> Generator[None, None, bool]:
        """Return whether all relocated pods fit elsewhere beside these seats; yields after each slice of the work."""
        for_whom = self._attributed(seats)
        if for_whom is None:
            return False
        engine, pods = self._copies.engine, [self.candidates.pods[number] for number in self._chosen]
        # Of the claims, the one of lowest priority counts the most nominations and seats of other workloads.
        lowest = min(self._helped, key=lambda claim: claim.priority)
        avoided = frozenset[str]().union(*(claim.avoided for claim in self._served))
        trial = trial_without(engine, lowest.leavers, avoided, lowest.key, self._copies.now, neighbours=True)
        seated = [(claim, SeatGrant(seats[claim.key])) for claim in self._served]
        arriving, leaving = placed(engine, [*self._beside, *seated])
        trial.remove([*leaving, *pods])
        trial.restore(arriving)
        rows = yield from seat_again(trial, self.candidates, self._chosen, engine.moving.again)
        # If a pod could stay on its node, a smaller set makes room, too.
        if rows is None or any(row == pod.row for pod, row in zip(pods, rows, strict=True)):
            return False
        names = engine.world.nodes.names
        self.for_whom, self.to = for_whom, {number: names[row] for number, row in zip(self._chosen, rows, strict=True)}
        return True

    def _attributed(self, seats: Seats) -> dict[int, str] | None:
        """Return the key of the Migration for which each candidate moves; None if no Migration may move one of them.

        A candidate moves for a Migration with seats on its node, if there is one. A gang moves for one Migration.
        """
        names, key_of_number = self._copies.engine.world.nodes.names, dict[int, str]()
        by_gang: dict[int, list[int]] = {}
        for number in self._chosen:
            gang = self.candidates.pods[number].gang
            by_gang.setdefault(gang if gang != NO_GANG else -2 - number, []).append(number)
        for numbers in by_gang.values():
            pods = [self.candidates.pods[number] for number in numbers]
            priority, nodes = max(pod.occupant.priority for pod in pods), {names[pod.row] for pod in pods}
            allowed = [claim for claim in self._helped if claim.priority >= priority]
            if not allowed:
                return None
            occupied = [claim for claim in allowed if not nodes.isdisjoint(seats[claim.key].values())]
            claim = max(occupied or allowed, key=lambda claim: claim.priority)
            key_of_number |= dict.fromkeys(numbers, claim.key)
        return key_of_number


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
        shares[claim.key] = SeatGrant(seats[claim.key], others, to, sum(cost_of(pod, wall) for pod in others))
    return shares


# ---------------------------------------------------------------- planning one after the other


def _in_turn(copies: Copies, claims: Sequence[RelocationRequest], free: Shares, others: Others) -> MaybeParts:
    rivals: list[tuple[RelocationRequest, RelocationRequest]] = []
    for claim in claims:
        if not free[claim.key].seats:
            candidates = yield from rivals_of(copies, claims, free, claim)
            rivals += [(claim, rival) for rival in candidates[:MOST_RIVALS]]
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
        unchanged = [(other, free[other.key]) for other in claims if other is not claim and other is not rival]
        seats = copies.seats(claim, unchanged)
        swapped = {**free, claim.key: SeatGrant(seats)}
        swapped[rival.key] = SeatGrant(copies.seats(rival, [*unchanged, (claim, swapped[claim.key])]))
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
    """Return the grants if claims without seats search for room one after the other, beside all other grants.

    None if the search needs so many queries that ``copies.asked`` reaches ``end``.
    """
    shares = dict(free)
    for claim in claims:
        if shares[claim.key].seats:
            continue
        beside = [(other, shares[other.key]) for other in claims if other is not claim and shares[other.key].seats]
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
    moving = {pod.member.uid for _, share in beside for pod in share.others}
    own = _own([other for other, _ in beside])
    arriving, leaving = placed(copies.engine, beside)

    def prepare(trial: Trial) -> None:
        trial.remove(leaving)
        trial.restore(arriving)

    taken = others.taken | moving | own
    leavers, avoided = claim.leavers, claim.avoided
    for room in look_for_room(copies.engine, leavers, avoided, taken, claim.key, copies.now, others.wall, prepare):
        copies.asked += 1
        yield
        if room is not None or copies.asked >= end:
            return room
    return None
