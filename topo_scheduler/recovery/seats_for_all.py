"""Free seats for several Migrations that wait at once: who goes where, so that as few as can be go without.

First each takes the best seats left, in the order given. Where all have seats as near as if they were alone that is it,
as it mostly is. Otherwise:

- up to `EXACT` Migrations are planned together: for each set of them that might have seats, the best first, other seats
  are tried for those who took what another could use. Other seats are found as the planner finds the first ones, with
  some of their nodes shut, as in Lawler's procedure for the k best solutions (Management Science 18, 1972);
- of more, each that goes without, or far, is planned so with the first few whose seats it could have, the others
  staying with what they have.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import combinations
from typing import Final

from topo_scheduler.recovery.claims import (
    NOTHING,
    Copies,
    RelocationRequest,
    SeatGrant,
    Shares,
    distance,
    lacking,
    worth_of,
)
from topo_scheduler.scheduling.preemption.victims import Candidate

EXACT: Final = 4
"""Migrations that are planned together."""
MOST_ASKED: Final = 100
"""Times the planner is asked for seats for one set of Migrations, of one copy of the state."""

Parts = Generator[None, None, dict[str, SeatGrant]]
"""Yields after each part of the work."""
Seats = Mapping[str, Mapping[str, str]]
"""A node for each pod, by the key of the Migration and uid."""
Accepts = Callable[[Seats], Generator[None, None, bool]]


def free_seats(copies: Copies, claims: Sequence[RelocationRequest]) -> Parts:
    """Return what each gets without others' moving. ``claims`` in the order in which they would take seats."""
    shares = yield from in_order(copies, claims)
    short = yield from _short(copies, claims, shares)
    if not short:
        return shares
    if len(claims) <= EXACT:
        return (yield from _best(copies, claims, ()))
    for one in short:
        rivals = yield from rivals_of(copies, claims, shares, one)
        group = [claim for claim in claims if claim is one or claim in rivals[: EXACT - 1]]
        beside = [(claim, shares[claim.key]) for claim in claims if claim not in group]
        found = {**shares, **(yield from _best(copies, group, beside))}
        if worth_of(copies.engine, claims, found) < worth_of(copies.engine, claims, shares):
            shares = found
    return shares


def in_order(copies: Copies, claims: Sequence[RelocationRequest]) -> Parts:
    """Return what each gets if it takes the best that those before have left."""
    shares: dict[str, SeatGrant] = {}
    for at, claim in enumerate(claims):
        seats = copies.seats(claim, [(other, shares[other.key]) for other in claims[:at]])
        shares[claim.key] = SeatGrant(seats) if seats else NOTHING
        yield
    return shares


def rivals_of(
    copies: Copies, claims: Sequence[RelocationRequest], shares: Shares, one: RelocationRequest
) -> Generator[None, None, list[RelocationRequest]]:
    """Return the Migrations without whose seats one would have seats, or nearer ones; yields after each part."""
    own, found = shares[one.key].seats, []
    for rival in claims:
        if rival is one or not shares[rival.key].seats:
            continue
        beside = [(claim, shares[claim.key]) for claim in claims if claim is not rival and claim is not one]
        seats = copies.seats(one, beside)
        yield
        if seats and (not own or distance(copies.engine, one, seats) < distance(copies.engine, one, own)):
            found.append(rival)
    return found


def _short(
    copies: Copies, claims: Sequence[RelocationRequest], shares: Shares
) -> Generator[None, None, list[RelocationRequest]]:
    """Return those who would have seats if they were alone, or nearer ones."""
    found = []
    for claim in claims:
        own = shares[claim.key].seats
        far = distance(copies.engine, claim, own)
        if own and not far:
            continue
        alone = copies.seats(claim, ())
        yield
        if alone and (not own or distance(copies.engine, claim, alone) < far):
            found.append(claim)
    return found


def _best(
    copies: Copies, claims: Sequence[RelocationRequest], beside: Sequence[tuple[RelocationRequest, SeatGrant]]
) -> Parts:
    for some in _subsets(claims):
        found = yield from place_all(copies, some, beside)
        if found is not None:
            return {claim.key: SeatGrant(found[claim.key]) if claim.key in found else NOTHING for claim in claims}
    return {claim.key: NOTHING for claim in claims}


def _subsets(claims: Sequence[RelocationRequest]) -> list[tuple[RelocationRequest, ...]]:
    """Return sets, those that leave the fewest pods without seats first, and then the first of them."""
    every = [some for size in range(len(claims), -1, -1) for some in combinations(claims, size)]
    return sorted(every, key=lambda some: lacking(claims, {claim.key for claim in some}))


def _always(_: Seats) -> Generator[None, None, bool]:
    yield from ()
    return True


def place_all(
    copies: Copies,
    claims: Sequence[RelocationRequest],
    beside: Sequence[tuple[RelocationRequest, SeatGrant]],
    gone: Sequence[Candidate] = (),
    accepts: Accepts | None = None,
) -> Generator[None, None, Seats | None]:
    """Return seats for all, as near as can be; None where none are found.

    Args:
        copies: on which it is tried.
        claims: who is to have seats.
        beside: others, who have theirs.
        gone: pods that have left.
        accepts: what else must hold of the seats.
    """
    engine, end = copies.engine, copies.asked + MOST_ASKED
    least = []
    for claim in claims:
        alone = copies.seats(claim, beside, gone)
        yield
        if not alone:
            return None
        least.append(distance(engine, claim, alone))
    best: list[tuple[int, Seats]] = []

    def hopeless(at: int, far: int) -> bool:
        return copies.asked > end or (bool(best) and far + sum(least[at:]) >= best[0][0])

    def go(at: int, chosen: dict[str, Mapping[str, str]], far: int) -> Generator[None, None, None]:
        if at == len(claims):
            if (yield from (accepts or _always)(chosen)):
                best[:] = [(far, dict(chosen))]
            return
        claim = claims[at]
        there = [*beside, *((other, SeatGrant(chosen[other.key])) for other in claims[:at])]
        looked: set[tuple[str, ...]] = set()
        shut = [frozenset[str]()]
        known = set(shut)
        for nodes in shut:  # it grows
            if hopeless(at, far):
                return
            seats = copies.seats(claim, there, gone, nodes)
            yield
            if not seats:
                continue
            used = tuple(sorted(seats.values()))
            if used not in looked:
                looked.add(used)
                yield from go(at + 1, {**chosen, claim.key: seats}, far + distance(engine, claim, seats))
            if at == len(claims) - 1 and accepts is None:
                return  # the planner's own choice is the nearest
            more = [nodes | {node} for node in sorted(set(used))]
            shut += [one for one in more if one not in known]
            known.update(more)

    yield from go(0, {}, 0)
    return best[0][1] if best else None
