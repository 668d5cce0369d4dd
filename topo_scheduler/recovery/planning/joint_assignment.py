"""Assigns free seats to several Migrations at once, so that as few as possible go without.

First each takes the best free seats, in the given order. If all have seats as near as if they were alone, as is usual,
the result is final. Otherwise:

- Up to `EXACT_MIGRATIONS` Migrations are planned together. For each set that might have seats, the best first, the
  search tries other seats for those that took seats which another could use. The planner finds other seats with some of
  their nodes shut, as in Lawler's procedure for the k best solutions (Management Science 18, 1972).
- Of more, each that goes without seats, or has far ones, is planned with the first few whose seats it could use. The
  others keep their seats.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import combinations
from typing import Final

from topo_scheduler.recovery.planning.seat_claims import (
    NOTHING,
    Copies,
    RelocationRequest,
    SeatGrant,
    Shares,
    distance,
    joint_cost,
    pods_without_seats,
)
from topo_scheduler.scheduling.preemption.victims import Candidate

EXACT_MIGRATIONS: Final = 4
"""Migrations that are planned together."""
MAX_QUERIES: Final = 100
"""Queries to the planner for one set of Migrations, on one copy of the state."""

PlanSteps = Generator[None, None, dict[str, SeatGrant]]
"""Yields after each slice of the work."""
Seats = Mapping[str, Mapping[str, str]]
"""A node for each pod, by the key of the Migration and uid."""
Accepts = Callable[[Seats], Generator[None, None, bool]]


def free_seats(copies: Copies, claims: Sequence[RelocationRequest]) -> PlanSteps:
    """Return the grants if no other pods move. ``claims`` are in the order in which they take seats."""
    shares = yield from in_order(copies, claims)
    short = yield from _short(copies, claims, shares)
    if not short:
        return shares
    if len(claims) <= EXACT_MIGRATIONS:
        return (yield from _best(copies, claims, ()))
    for claim in short:
        rivals = yield from rivals_of(copies, claims, shares, claim)
        group = [member for member in claims if member is claim or member in rivals[: EXACT_MIGRATIONS - 1]]
        beside = [(member, shares[member.key]) for member in claims if member not in group]
        candidate = {**shares, **(yield from _best(copies, group, beside))}
        if joint_cost(copies.view, claims, candidate) < joint_cost(copies.view, claims, shares):
            shares = candidate
    return shares


def in_order(copies: Copies, claims: Sequence[RelocationRequest]) -> PlanSteps:
    """Return the grants if each claim takes the best seats that the earlier ones left."""
    shares: dict[str, SeatGrant] = {}
    for index, claim in enumerate(claims):
        seats = copies.seats(claim, [(other, shares[other.key]) for other in claims[:index]])
        shares[claim.key] = SeatGrant(seats) if seats else NOTHING
        yield
    return shares


def rivals_of(
    copies: Copies, claims: Sequence[RelocationRequest], shares: Shares, claim: RelocationRequest
) -> Generator[None, None, list[RelocationRequest]]:
    """Return the claims without whose seats a claim would have seats, or nearer ones; yields after each slice."""
    own, rivals = shares[claim.key].seats, []
    for rival in claims:
        if rival is claim or not shares[rival.key].seats:
            continue
        beside = [(other, shares[other.key]) for other in claims if other is not rival and other is not claim]
        seats = copies.seats(claim, beside)
        yield
        if seats and (not own or distance(copies.view, claim, seats) < distance(copies.view, claim, own)):
            rivals.append(rival)
    return rivals


def _short(
    copies: Copies, claims: Sequence[RelocationRequest], shares: Shares
) -> Generator[None, None, list[RelocationRequest]]:
    """Return the claims that would have seats, or nearer ones, if they were alone."""
    short = []
    for claim in claims:
        own = shares[claim.key].seats
        far = distance(copies.view, claim, own)
        if own and not far:
            continue
        alone = copies.seats(claim, ())
        yield
        if alone and (not own or distance(copies.view, claim, alone) < far):
            short.append(claim)
    return short


def _best(
    copies: Copies, claims: Sequence[RelocationRequest], beside: Sequence[tuple[RelocationRequest, SeatGrant]]
) -> PlanSteps:
    for subset in _subsets(claims):
        seats = yield from place_all(copies, subset, beside)
        if seats is not None:
            return {claim.key: SeatGrant(seats[claim.key]) if claim.key in seats else NOTHING for claim in claims}
    return {claim.key: NOTHING for claim in claims}


def _subsets(claims: Sequence[RelocationRequest]) -> list[tuple[RelocationRequest, ...]]:
    """Return all subsets: those that leave the fewest pods without seats first, then those of the first claims."""
    subsets = [subset for size in range(len(claims), -1, -1) for subset in combinations(claims, size)]
    return sorted(subsets, key=lambda subset: pods_without_seats(claims, {claim.key for claim in subset}))


def place_all(
    copies: Copies,
    claims: Sequence[RelocationRequest],
    beside: Sequence[tuple[RelocationRequest, SeatGrant]],
    departed: Sequence[Candidate] = (),
    accepts: Accepts | None = None,
) -> Generator[None, None, Seats | None]:
    """Return seats for all claims, as near as possible; None if there are none.

    Args:
        copies: plans on copies of the state.
        claims: requests that get seats.
        beside: other claims, with their grants.
        departed: pods that have left.
        accepts: returns whether the seats meet a further condition.
    """
    view, end = copies.view, copies.queries + MAX_QUERIES
    nearest = []
    for claim in claims:
        alone = copies.seats(claim, beside, departed)
        yield
        if not alone:
            return None
        nearest.append(distance(view, claim, alone))
    best: list[tuple[int, Seats]] = []

    def hopeless(index: int, far: int) -> bool:
        return copies.queries > end or (bool(best) and far + sum(nearest[index:]) >= best[0][0])

    def search(index: int, chosen: dict[str, Mapping[str, str]], far: int) -> Generator[None, None, None]:
        if index == len(claims):
            if accepts is None or (yield from accepts(chosen)):
                best[:] = [(far, dict(chosen))]
            return
        claim = claims[index]
        taken = [*beside, *((other, SeatGrant(chosen[other.key])) for other in claims[:index])]
        tried: set[tuple[str, ...]] = set()
        to_try = [frozenset[str]()]
        shut_sets = set(to_try)
        for nodes in to_try:  # the loop below appends to it
            if hopeless(index, far):
                return
            seats = copies.seats(claim, taken, departed, nodes)
            yield
            if not seats:
                continue
            used = tuple(sorted(seats.values()))
            if used not in tried:
                tried.add(used)
                yield from search(index + 1, {**chosen, claim.key: seats}, far + distance(view, claim, seats))
            if index == len(claims) - 1 and accepts is None:
                return  # the planner's own choice is the nearest
            more = [nodes | {node} for node in sorted(set(used))]
            to_try += [larger for larger in more if larger not in shut_sets]
            shut_sets.update(more)

    yield from search(0, {}, 0)
    return best[0][1] if best else None
