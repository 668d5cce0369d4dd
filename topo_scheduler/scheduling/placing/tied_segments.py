"""Which segment of a tied gang goes to which leaf: every way, those in fewer and nearer leaves first.

What ties the members to each other is left to the seating, which tries each way; here only ways are left out in which
some class alone would not fit.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.kinds import Place, SegmentShapes, kinds_of
from topo_scheduler.scheduling.placing.packing import Vector
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import charge

STEPS: Final = 10_000
"""Sets of leaves, and ways to deal segments to one of them, that are looked at at most in one search."""

Places = list[list[int]]
"""The leaf in which each member of each group must be."""


@dataclass(frozen=True, slots=True)
class SegmentDomains:
    """Where segments may go.

    ``ceilings`` int64[leaves] for each group, members that a leaf holds at most. ``leaves`` those that may be used, in
    order of preference; ``free`` those of them that cost nothing, as the gang runs there.
    """

    ceilings: Sequence[Int64]
    leaves: Sequence[int]
    free: Sequence[int]


@dataclass(slots=True)
class Steps:
    """Steps that may still be taken."""

    left: int = STEPS

    def take(self) -> bool:
        """Take one, if any is left."""
        charge(5)
        self.left -= 1
        return self.left >= 0


def ways(ask: PlacementQuery, ground: SegmentDomains, most: int, steps: Steps) -> Iterator[Places]:
    """Yield where each member must be, in so many leaves at most that are not free, as long as there are steps left.

    Members of a segment of which some run go where those are.
    """
    homes = dict(ask.segments.homes)
    fixed: dict[int, list[Place]] = {}
    for group, part in enumerate(ask.segments.parts):
        for position, number in enumerate(part):
            if number in homes:
                fixed.setdefault(homes[number], []).append((group, position))
    kinds = kinds_of(ask, {number for part in ask.segments.parts for number in part} - set(homes))
    room = _room(ask, ground, fixed)
    if room is None:
        return
    if not kinds.vectors:
        yield _places(ask, kinds, (), fixed)
        return
    others = [leaf for leaf in ground.leaves if leaf not in ground.free and any(room[leaf])]
    for size in range(min(most, len(others), sum(kinds.counts)) + 1):
        for chosen in narrowest_sets(others, size):
            if not steps.take():
                return
            leaves = [*ground.free, *chosen]
            if leaves and _enough(kinds, [room[leaf] for leaf in leaves]):
                for counts in _ways(kinds, [room[leaf] for leaf in leaves], len(ground.free), steps):
                    yield _places(ask, kinds, sorted(zip(leaves, counts, strict=True)), fixed)


def _room(ask: PlacementQuery, ground: SegmentDomains, fixed: dict[int, list[Place]]) -> dict[int, Vector] | None:
    """Return how many of each group each leaf holds beside those that must be there; None where these don't fit."""
    room = {leaf: [int(ceiling[leaf]) for ceiling in ground.ceilings] for leaf in {*ground.leaves, *ground.free}}
    for leaf, places in fixed.items():
        left = room.setdefault(leaf, [int(ceiling[leaf]) for ceiling in ground.ceilings])
        for group, _ in places:
            left[group] -= 1
        if min(left) < 0:
            return None
    return {leaf: tuple(left) for leaf, left in room.items()}


def narrowest_sets(leaves: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of leaves, the narrowest first."""
    if size < 2:
        yield from combinations(leaves, size)
        return
    for width in range(size - 1, len(leaves)):
        for first in range(len(leaves) - width):
            for inner in combinations(leaves[first + 1 : first + width], size - 2):
                yield leaves[first], *inner, leaves[first + width]


def _most(vector: Vector, room: Vector) -> int:
    return min(have // want for have, want in zip(room, vector, strict=True) if want)


def _enough(kinds: SegmentShapes, rooms: Sequence[Vector]) -> bool:
    return all(
        sum(_most(vector, room) for room in rooms) >= count
        for vector, count in zip(kinds.vectors, kinds.counts, strict=True)
    )


def _ways(kinds: SegmentShapes, rooms: Sequence[Vector], free: int, steps: Steps) -> Iterator[list[Vector]]:
    """Yield how many segments of each kind go to each leaf: at least one to each that is not free."""

    def deal(at: int, left: Vector) -> Iterator[list[Vector]]:
        if at == len(rooms):
            if not any(left):
                yield []
            return
        ranges = [
            range(min(count, _most(vector, rooms[at])), -1, -1)
            for count, vector in zip(left, kinds.vectors, strict=True)
        ]
        for counts in product(*ranges):
            if not steps.take():
                return
            if at >= free and not any(counts):
                continue
            if any(have < want for have, want in zip(rooms[at], kinds.members(counts), strict=True)):
                continue
            rest = tuple(have - less for have, less in zip(left, counts, strict=True))
            if _enough_for(rest, rooms[at + 1 :]):
                yield from ([counts, *more] for more in deal(at + 1, rest))

    def _enough_for(left: Vector, rooms: Sequence[Vector]) -> bool:
        return all(
            not count or sum(_most(vector, room) for room in rooms) >= count
            for vector, count in zip(kinds.vectors, left, strict=True)
        )

    return deal(0, kinds.counts)


def _places(
    ask: PlacementQuery, kinds: SegmentShapes, dealt: Sequence[tuple[int, Vector]], fixed: dict[int, list[Place]]
) -> Places:
    places = [[-1] * count for _, count in ask.groups]
    for leaf, some in fixed.items():
        for group, position in some:
            places[group][position] = leaf
    queues = [iter(some) for some in kinds.segments]
    for leaf, counts in dealt:
        for queue, count in zip(queues, counts, strict=True):
            for _ in range(count):
                for group, position in next(queue):
                    places[group][position] = leaf
    return places
