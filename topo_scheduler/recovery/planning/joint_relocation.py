"""Chooses pods to relocate so that several pending Migrations get seats, if not enough nodes are free.

The search takes the plan that leaves the fewest pods without seats, pods of the highest priority first. Among equal
plans it takes the cheapest, by the costs of moves and restarts in `relocation`.

- Up to `EXACT_MIGRATIONS` Migrations, at most `EXACT_WORKLOADS` movable workloads: each Migration gets seats near its
  gang, or restarts its gang elsewhere, or stays pending. For each combination the search tries the sets of pods to
  relocate in the order of `relocation`, until one makes room. `joint_assignment.place_all` finds the seats.
- More Migrations, as few movable workloads: the search first plans them one after the other, as `relocation` does for
  one. Then it plans each that has no seats or costs something again, together with some of the others. The rest keep
  what they have. It stops at `MAX_GROUP_QUERIES`.
- More movable workloads: each Migration searches for room by itself.
"""

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby, product
from math import inf
from typing import Final

from topo_scheduler.recovery.model.seating import groups_and_query, trial_without
from topo_scheduler.recovery.planning.joint_assignment import EXACT_MIGRATIONS, PlanSteps, Seats, place_all
from topo_scheduler.recovery.planning.relocation import (
    EXACT_WORKLOADS,
    Key,
    cost_of,
    every_set,
    key_of,
    look_for_room,
    moving_pods_of,
    restart_cost,
    units_of,
)
from topo_scheduler.recovery.planning.seat_claims import (
    NOTHING,
    Copies,
    RelocationRequest,
    SeatGrant,
    Shares,
    arrivals_and_departures,
    fits_capacity,
    joint_cost,
    pods_without_seats,
)
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.moving.plan import makes_room, seat_again
from topo_scheduler.scheduling.moving.replacement_query import GoneError
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidates

MAX_GROUP_QUERIES: Final = 2000
"""Queries to the planner after which no further group of Migrations is planned together."""
MAX_QUERIES: Final = 5000
"""Queries to the planner for Migrations that are planned together."""

MaybePlanSteps = Generator[None, None, dict[str, SeatGrant] | None]
"""Yields after each slice of the work."""
Beside = Sequence[tuple[RelocationRequest, SeatGrant]]
"""The grants of other Migrations."""
Options = Sequence[RelocationRequest | None]
"""The request that gets seats for each Migration, for the pods that must move or the whole gang; None if pending."""


@dataclass(frozen=True, slots=True)
class EligiblePods:
    """Which other pods can move. ``taken`` are uids of pods that move for other reasons; ``wall`` in epoch seconds."""

    taken: frozenset[str]
    wall: float


@dataclass(frozen=True, slots=True)
class _Movable:
    """Sets of candidates that can leave, the best first, each with its sort key. The first set is empty."""

    candidates: Candidates
    sets: tuple[tuple[Key, tuple[int, ...]], ...]


def room_for_all(
    copies: Copies, claims: Sequence[RelocationRequest], free: dict[str, SeatGrant], eligible: EligiblePods
) -> PlanSteps:
    """Return the grant of each Migration if other pods may move; ``free`` if each must search by itself.

    Args:
        copies: plans on copies of the state.
        claims: requests of the Migrations, in the order that decides between equal plans.
        free: the grants if no other pod moves.
        eligible: the pods that may move.
    """
    try:
        exact = _movable(copies, claims, eligible, ()) is not None
        yield
        if not exact:
            return free
        if len(claims) <= EXACT_MIGRATIONS:
            return (yield from _together(copies, claims, free, eligible, ()))
        shares = yield from _in_groups(copies, claims, free, eligible)
        return free if shares is None else shares
    except (PluginError, GoneError):
        return free


def _movable(
    copies: Copies, claims: Sequence[RelocationRequest], eligible: EligiblePods, beside: Beside
) -> _Movable | None:
    """Return the pods that can move for any of these claims; None if there are none, or too many to try all sets."""
    view = copies.view
    movers = [claim for claim in claims if claim.may_relocate]
    if not movers or not view.planning.budgets_known:
        return None
    candidates = view.planning.movable(max(movers, key=lambda claim: claim.priority).moving_pods[0].workload)
    # Pods that leave a node which one Migration avoids may make room for another: any user can write what to avoid.
    avoided = frozenset.intersection(*(claim.avoided for claim in movers))
    own = _own((*claims, *(claim for claim, _ in beside))) | {uid for _, share in beside for uid in share.targets}
    names = view.nodes.names
    barred = {
        number
        for number, pod in enumerate(candidates.pods)
        if names[pod.row] in avoided or pod.occupant.uid in eligible.taken or pod.occupant.uid in own
    }
    units = [unit for unit in units_of(candidates) if barred.isdisjoint(unit)]
    if len(units) > EXACT_WORKLOADS:
        return None
    keyed = [
        (key_of(moving_pods_of(view, candidates, chosen), eligible.wall), chosen)
        for chosen in every_set(candidates, units)
    ]
    return _Movable(candidates, ((key_of((), eligible.wall), ()), *sorted(keyed)))


def _own(claims: Iterable[RelocationRequest]) -> set[str]:
    """Return the uids of the pods of the workloads of these claims."""
    return {uid for claim in claims for uid in claim.moving_pods[0].workload.members}


# ---------------------------------------------------------------- planning together


def _in_groups(
    copies: Copies, claims: Sequence[RelocationRequest], free: Shares, eligible: EligiblePods
) -> MaybePlanSteps:
    """Return the grants found by planning one group after another, while the other Migrations keep their grants."""
    end = copies.queries + MAX_GROUP_QUERIES
    first = yield from one_by_one(copies, claims, free, eligible, end)
    if first is None:
        return None
    shares = first

    def lacks(claim: RelocationRequest) -> bool:
        return not shares[claim.key].seats or shares[claim.key].cost > 0.0

    for claim in claims:
        partners = sorted((other for other in claims if other is not claim), key=lambda other: not lacks(other))
        for start in range(0, len(partners), EXACT_MIGRATIONS - 1):
            if not lacks(claim) or copies.queries > end:
                break
            batch = (claim, *partners[start : start + EXACT_MIGRATIONS - 1])
            group = [other for other in claims if other in batch]
            beside = [(other, shares[other.key]) for other in claims if other not in group]
            candidate = {**shares, **(yield from _together(copies, group, shares, eligible, beside))}
            if fits_capacity(copies.view, [(other, candidate[other.key]) for other in claims]):
                shares = candidate
    return shares


def _together(
    copies: Copies, claims: Sequence[RelocationRequest], fallback: Shares, eligible: EligiblePods, beside: Beside
) -> PlanSteps:
    """Return the best grants beside those of other Migrations. ``fallback`` has the grants that apply otherwise."""
    movable = _movable(copies, claims, eligible, beside)
    shares = {claim.key: fallback[claim.key] for claim in claims}
    if movable is None:
        return shares
    end = copies.queries + MAX_QUERIES
    options = [[claim, *([claim.whole] if claim.other_members else []), None] for claim in claims]
    combinations: list[Options] = sorted(
        product(*options),
        key=lambda combination: (_pods_without_seats(claims, combination), _restarts(claims, combination)),
    )
    best = joint_cost(copies.view, claims, shares)
    for lack, group in groupby(combinations, key=lambda combination: _pods_without_seats(claims, combination)):
        if lack > best[0] or copies.queries > end:
            break
        for combination in group:
            if (lack, _restarts(claims, combination)) < best[:2]:
                candidate = yield from _cheapest(copies, claims, combination, movable, eligible.wall, beside, end)
                if candidate is not None and (worth := joint_cost(copies.view, claims, candidate)) < best:
                    best, shares = worth, candidate
    return shares


def _pods_without_seats(claims: Sequence[RelocationRequest], options: Options) -> tuple[int, ...]:
    return pods_without_seats(claims, [option.key for option in options if option is not None])


def _restarts(claims: Sequence[RelocationRequest], options: Options) -> float:
    return sum(
        restart_cost(claim.other_members)
        for claim, option in zip(claims, options, strict=True)
        if _is_whole(claim, option)
    )


def _is_whole(claim: RelocationRequest, option: RelocationRequest | None) -> bool:
    return option is not None and len(option.moving_pods) > len(claim.moving_pods)


def _cheapest(
    copies: Copies,
    claims: Sequence[RelocationRequest],
    options: Options,
    movable: _Movable,
    wall: float,
    beside: Beside,
    end: int,
) -> Generator[None, None, dict[str, SeatGrant] | None]:
    """Return the grants with the first set of relocated pods that makes room; None if no set does."""
    near = [
        option
        for claim, option in zip(claims, options, strict=True)
        if option is not None and not _is_whole(claim, option)
    ]
    helped = [claim for claim in near if claim.may_relocate]
    served = [option for option in options if option is not None]
    highest = max((claim.priority for claim in helped), default=None)
    rooms = []
    for claim in near:
        _, query = groups_and_query(copies.view, claim.moving_pods)
        trial = trial_without(copies.view, claim.moving_pods, claim.avoided, claim.key, copies.now, neighbours=False)
        copies.beside(claim, beside)(trial)
        rooms.append(makes_room(trial, query, copies.view.layout, movable.candidates))
        yield
    for key, chosen in movable.sets:
        if chosen and (highest is None or key[0] > highest):
            break
        if copies.queries > end:
            break
        if chosen and not all(room(chosen) for room in rooms):
            continue
        departed = [movable.candidates.pods[number] for number in chosen]
        leaving = _LeavingPods(copies, served, helped, beside, movable.candidates, chosen)
        seats = yield from place_all(copies, served, beside, departed, leaving.fits if chosen else None)
        if seats is not None:
            return _shares(copies, claims, options, seats, leaving, wall)
    return None


@dataclass(slots=True)
class _LeavingPods:
    """A set of relocated pods, with their target nodes and the Migrations they move for, for the last tested seats.

    ``served`` are the claims that get seats, ``helped`` those for which pods may be relocated, ``beside`` other grants.
    """

    copies: Copies
    served: Sequence[RelocationRequest]
    helped: Sequence[RelocationRequest]
    beside: Beside
    candidates: Candidates
    chosen: Sequence[int]
    beneficiary_of: dict[int, str] = field(default_factory=dict)
    """Key of the Migration for which a candidate moves, by the number of the candidate."""
    targets: dict[int, str] = field(default_factory=dict)
    """Target node, by the number of the candidate."""

    def fits(self, seats: Seats) -> Generator[None, None, bool]:
        """Return whether all relocated pods fit elsewhere beside these seats; yields after each slice of the work."""
        beneficiary_of = self._attributed(seats)
        if beneficiary_of is None:
            return False
        view, pods = self.copies.view, [self.candidates.pods[number] for number in self.chosen]
        # Of the claims, the one of lowest priority counts the most nominations and seats of other workloads.
        lowest = min(self.helped, key=lambda claim: claim.priority)
        avoided = frozenset[str]().union(*(claim.avoided for claim in self.served))
        trial = trial_without(view, lowest.moving_pods, avoided, lowest.key, self.copies.now, neighbours=True)
        seated = [(claim, SeatGrant(seats[claim.key])) for claim in self.served]
        arriving, leaving = arrivals_and_departures(view, [*self.beside, *seated])
        trial.remove([*leaving, *pods])
        trial.restore(arriving)
        rows = yield from seat_again(trial, self.candidates, self.chosen, view.planning.query_again)
        # If a pod could stay on its node, a smaller set makes room, too.
        if rows is None or any(row == pod.row for pod, row in zip(pods, rows, strict=True)):
            return False
        names = view.nodes.names
        self.beneficiary_of = beneficiary_of
        self.targets = {number: names[row] for number, row in zip(self.chosen, rows, strict=True)}
        return True

    def _attributed(self, seats: Seats) -> dict[int, str] | None:
        """Return the key of the Migration for which each candidate moves; None if no Migration may move one of them.

        A candidate moves for a Migration with seats on its node, if there is one. A gang moves for one Migration.
        """
        names, key_of_number = self.copies.view.nodes.names, dict[int, str]()
        by_gang: dict[int, list[int]] = {}
        for number in self.chosen:
            gang = self.candidates.pods[number].gang
            by_gang.setdefault(gang if gang != NO_GANG else -2 - number, []).append(number)
        for numbers in by_gang.values():
            pods = [self.candidates.pods[number] for number in numbers]
            priority, nodes = max(pod.occupant.priority for pod in pods), {names[pod.row] for pod in pods}
            allowed = [claim for claim in self.helped if claim.priority >= priority]
            if not allowed:
                return None
            occupied = [claim for claim in allowed if not nodes.isdisjoint(seats[claim.key].values())]
            claim = max(occupied or allowed, key=lambda claim: claim.priority)
            key_of_number |= dict.fromkeys(numbers, claim.key)
        return key_of_number


def _shares(
    copies: Copies,
    claims: Sequence[RelocationRequest],
    options: Options,
    seats: Seats,
    leaving: _LeavingPods,
    wall: float,
) -> dict[str, SeatGrant]:
    shares = dict.fromkeys((claim.key for claim in claims), NOTHING)
    for claim, option in zip(claims, options, strict=True):
        if option is None:
            continue
        if _is_whole(claim, option):
            shares[claim.key] = SeatGrant(seats[claim.key], cost=restart_cost(claim.other_members), whole=True)
            continue
        numbers = [number for number, key in leaving.beneficiary_of.items() if key == claim.key]
        relocated = moving_pods_of(copies.view, leaving.candidates, numbers)
        targets = {leaving.candidates.pods[number].occupant.uid: leaving.targets[number] for number in numbers}
        shares[claim.key] = SeatGrant(
            seats[claim.key], relocated, targets, sum(cost_of(pod, wall) for pod in relocated)
        )
    return shares


# ---------------------------------------------------------------- planning one after the other


def one_by_one(
    copies: Copies, claims: Sequence[RelocationRequest], free: Shares, eligible: EligiblePods, end: float = inf
) -> MaybePlanSteps:
    """Return the grants if claims without seats search for room one after the other, beside all other grants.

    None if the search needs so many queries that ``copies.queries`` reaches ``end``.
    """
    shares = dict(free)
    for claim in claims:
        if shares[claim.key].seats:
            continue
        beside = [(other, shares[other.key]) for other in claims if other is not claim and shares[other.key].seats]
        room = None
        if claim.may_relocate:
            room = yield from _room(copies, claim, beside, eligible, end)
            if copies.queries >= end:
                return None
        if claim.other_members and (room is None or restart_cost(claim.other_members) < room.cost):
            seats = copies.seats(claim.whole, beside)
            yield
            if seats:
                shares[claim.key] = SeatGrant(seats, cost=restart_cost(claim.other_members), whole=True)
                continue
        if room is not None:
            shares[claim.key] = room
    return shares


def _room(
    copies: Copies,
    claim: RelocationRequest,
    beside: Sequence[tuple[RelocationRequest, SeatGrant]],
    eligible: EligiblePods,
    end: float,
) -> Generator[None, None, SeatGrant | None]:
    moving = {pod.member.uid for _, share in beside for pod in share.relocated}
    own = _own([other for other, _ in beside])
    arriving, leaving = arrivals_and_departures(copies.view, beside)

    def prepare(trial: Trial) -> None:
        trial.remove(leaving)
        trial.restore(arriving)

    taken = eligible.taken | moving | own
    moving_pods, avoided = claim.moving_pods, claim.avoided
    for room in look_for_room(copies.view, moving_pods, avoided, taken, claim.key, copies.now, eligible.wall, prepare):
        copies.queries += 1
        yield
        if room is not None or copies.queries >= end:
            return room
    return None
