"""All assignments of segments of a tied gang to leaves; those with fewer and nearer leaves come first.

`sequential_assignment.Seating` tries each assignment and checks the constraints between members. This module only
leaves out assignments in which some class would not fit by itself.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Final

from topo_scheduler.scheduling.placing.model.packing import Vector
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.segment_shapes import Place, SegmentShapes, lost_members
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge

MAX_STEPS: Final = 10_000
"""The most steps of one search: sets of leaves, and assignments of segments to the leaves of a set."""

Places = list[list[int]]
"""The required leaf of each member of each group."""


@dataclass(frozen=True, slots=True)
class SegmentDomains:
    """Leaves that segments may use.

    ``ceilings`` int64[leaves] for each group: the most members that a leaf holds. ``leaves``: usable leaves in order of
    preference. ``free``: those of them where the gang runs already, which don't count as additional leaves.
    """

    ceilings: Sequence[Int64]
    leaves: Sequence[int]
    free: Sequence[int]


@dataclass(slots=True)
class Steps:
    """Number of steps that a search may still take."""

    left: int = MAX_STEPS

    def take(self) -> bool:
        """Take a step; return whether it was allowed."""
        charge(5)
        self.left -= 1
        return self.left >= 0


def assignments(query: PlacementQuery, domains: SegmentDomains, max_leaves: int, steps: Steps) -> Iterator[Places]:
    """Yield the required leaf of each member, with at most ``max_leaves`` that are not free, until steps run out.

    Lost members of a segment go to the leaf where the rest of it runs.
    """
    fixed, kinds = lost_members(query)
    room = _room(query, domains, fixed)
    if room is None:
        return
    if not kinds.vectors:
        yield _places(query, kinds, (), fixed)
        return
    further = [leaf for leaf in domains.leaves if leaf not in domains.free and any(room[leaf])]
    for size in range(min(max_leaves, len(further), sum(kinds.counts)) + 1):
        for chosen in narrowest_sets(further, size):
            if not steps.take():
                return
            leaves = [*domains.free, *chosen]
            if leaves and _enough(kinds, [room[leaf] for leaf in leaves]):
                for counts in _kind_assignments(kinds, [room[leaf] for leaf in leaves], len(domains.free), steps):
                    yield _places(query, kinds, sorted(zip(leaves, counts, strict=True)), fixed)


def _room(query: PlacementQuery, domains: SegmentDomains, fixed: dict[int, list[Place]]) -> dict[int, Vector] | None:
    """Return the members of each group that each leaf holds after the fixed members; None if these don't fit."""
    room = {leaf: [int(ceiling[leaf]) for ceiling in domains.ceilings] for leaf in {*domains.leaves, *domains.free}}
    for leaf, places in fixed.items():
        leaf_room = room.setdefault(leaf, [int(ceiling[leaf]) for ceiling in domains.ceilings])
        for group, _ in places:
            leaf_room[group] -= 1
        if min(leaf_room) < 0:
            return None
    return {leaf: tuple(leaf_room) for leaf, leaf_room in room.items()}


def narrowest_sets(leaves: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Yield sets of leaves, the narrowest first."""
    if size < 2:
        yield from combinations(leaves, size)
        return
    for width in range(size - 1, len(leaves)):
        for first in range(len(leaves) - width):
            for inner in combinations(leaves[first + 1 : first + width], size - 2):
                yield leaves[first], *inner, leaves[first + width]


def _segments_held(vector: Vector, room: Vector) -> int:
    return min(available // needed for available, needed in zip(room, vector, strict=True) if needed)


def _enough(kinds: SegmentShapes, rooms: Sequence[Vector]) -> bool:
    return all(
        sum(_segments_held(vector, room) for room in rooms) >= count
        for vector, count in zip(kinds.vectors, kinds.counts, strict=True)
    )


def _kind_assignments(kinds: SegmentShapes, rooms: Sequence[Vector], free: int, steps: Steps) -> Iterator[list[Vector]]:
    """Yield the segments of each kind for each leaf; each leaf that is not free gets at least one."""

    def deal(index: int, left: Vector) -> Iterator[list[Vector]]:
        if index == len(rooms):
            if not any(left):
                yield []
            return
        ranges = [
            range(min(count, _segments_held(vector, rooms[index])), -1, -1)
            for count, vector in zip(left, kinds.vectors, strict=True)
        ]
        for counts in product(*ranges):
            if not steps.take():
                return
            if index >= free and not any(counts):
                continue
            if any(available < needed for available, needed in zip(rooms[index], kinds.members(counts), strict=True)):
                continue
            remaining = tuple(count - placed for count, placed in zip(left, counts, strict=True))
            if _enough_for(remaining, rooms[index + 1 :]):
                yield from ([counts, *later] for later in deal(index + 1, remaining))

    def _enough_for(left: Vector, rooms: Sequence[Vector]) -> bool:
        return all(
            not count or sum(_segments_held(vector, room) for room in rooms) >= count
            for vector, count in zip(kinds.vectors, left, strict=True)
        )

    return deal(0, kinds.counts)


def _places(
    query: PlacementQuery, kinds: SegmentShapes, dealt: Sequence[tuple[int, Vector]], fixed: dict[int, list[Place]]
) -> Places:
    places = [[-1] * count for _, count in query.groups]
    for leaf, fixed_places in fixed.items():
        for group, position in fixed_places:
            places[group][position] = leaf
    queues = [iter(of_kind) for of_kind in kinds.segments]
    for leaf, counts in dealt:
        for queue, count in zip(queues, counts, strict=True):
            for _ in range(count):
                for group, position in next(queue):
                    places[group][position] = leaf
    return places
