"""Kinds of segments: two segments with the same number of members of each class are of one kind, so interchangeable.

The planner can then count the room of a leaf in segments of each kind instead of members of each class. The functions
of `packing` work on these counts as well. A member in no segment counts as a segment of one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.packing import Frontier, Vector, VectorBudget, maximal
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge, charge_rows

MAX_KINDS: Final = 12
"""The most kinds for a complete search."""
MAX_COUNTS: Final = 1 << 16
"""The most combinations of counts by kind for a complete search."""

Place = tuple[int, int]
"""Group of a member, and its position in the group."""


@dataclass(frozen=True, slots=True)
class SegmentShapes:
    """Segments to place, by kind, the most demanding kind first.

    ``vectors``: for each kind, members of each group in one segment. ``segments``: for each kind, its segments in order
    of rank; each is a tuple of its members.
    """

    vectors: tuple[Vector, ...]
    segments: tuple[tuple[tuple[Place, ...], ...], ...]

    @property
    def counts(self) -> Vector:
        """Number of segments of each kind."""
        return tuple(len(of_kind) for of_kind in self.segments)

    @property
    def countable(self) -> bool:
        """Whether there are few enough for a complete search."""
        return len(self.vectors) <= MAX_KINDS and prod(count + 1 for count in self.counts) <= MAX_COUNTS

    def members(self, counts: Sequence[int]) -> Vector:
        """Return the members of each group in ``counts`` segments of each kind together."""
        columns = zip(*self.vectors, strict=True)
        return tuple(
            sum(count * per_segment for count, per_segment in zip(counts, column, strict=True)) for column in columns
        )


class SegmentBounds:
    """Upper bounds on the segments that leaves hold, from the room for members of each class alone."""

    def __init__(self, kinds: SegmentShapes) -> None:
        self._vectors = np.array(kinds.vectors, np.int64)
        self._groups = np.flatnonzero(self._vectors.any(axis=0))
        vectors = self._vectors[:, self._groups]
        has_members = vectors > 0
        self._least = np.where(has_members, vectors, np.iinfo(np.int64).max).min(axis=0)
        counts = np.array(kinds.counts, np.int64)
        self.required: Int64 = np.concatenate((counts, counts @ has_members))[:, None].astype(np.int64)
        """int64[lines, 1]: segments of each kind; then, for each group in any segment, the segments with it."""

    def of(self, fits: Int64) -> Int64:
        """Return the most that each leaf can hold of each line of ``required`` (int64[lines, leaves]).

        ``fits`` int64[classes, leaves]: members of each class alone.
        """
        charge_rows(fits.size, len(self._vectors))
        kinds = [(fits[vector > 0] // vector[vector > 0, None]).min(axis=0) for vector in self._vectors]
        return np.stack([*kinds, *(fits[self._groups] // self._least[:, None])])


def kinds_of(query: PlacementQuery, parts: Iterable[int] | None = None) -> SegmentShapes:
    """Return the kinds of the segments of a query; with ``parts``, of segments with these numbers only."""
    numbers = None if parts is None else set(parts)
    members: dict[tuple[int, int, int], list[Place]] = {}
    for group, segment_numbers in enumerate(query.segments.parts):
        for position, number in enumerate(segment_numbers):
            if numbers is None or number in numbers:
                # A member in no segment is a segment of its own, after all others.
                key = (0, number, 0) if number >= 0 else (1, group, position)
                members.setdefault(key, []).append((group, position))
    by_vector: dict[Vector, list[tuple[Place, ...]]] = {}
    for key in sorted(members):
        places = members[key]
        charge(1 + len(places) * len(query.groups) // 16)
        vector = tuple(sum(group == other for other, _ in places) for group in range(len(query.groups)))
        by_vector.setdefault(vector, []).append(tuple(places))
    order = sorted(by_vector, reverse=True)
    return SegmentShapes(tuple(order), tuple(tuple(by_vector[vector]) for vector in order))


def lost_members(query: PlacementQuery) -> tuple[dict[int, list[Place]], SegmentShapes]:
    """Return the members of segments that run in part, by the domain where they must go, and the other segments."""
    homes = dict(query.segments.homes)
    fixed: dict[int, list[Place]] = {}
    for group, part in enumerate(query.segments.parts):
        for position, number in enumerate(part):
            if number in homes:
                fixed.setdefault(homes[number], []).append((group, position))
    return fixed, kinds_of(query, {number for part in query.segments.parts for number in part} - set(homes))


def in_kinds(frontier: Frontier, kinds: SegmentShapes, budget: VectorBudget) -> Frontier:
    """Convert a frontier from members of each class to segments of each kind.

    Raises:
        SearchExhausted: the work allowed is used up.
    """
    counts, last = kinds.counts, len(kinds.vectors) - 1
    vectors: set[Vector] = set()

    def fill(kind: int, left: Vector, chosen: Vector) -> None:
        vector = kinds.vectors[kind]
        limit = min([counts[kind], *(room // needed for room, needed in zip(left, vector, strict=True) if needed)])
        budget.spend(1)
        if kind == last:
            vectors.add((*chosen, limit))
            return
        for count in range(limit, -1, -1):
            remaining = tuple(room - count * needed for room, needed in zip(left, vector, strict=True))
            fill(kind + 1, remaining, (*chosen, count))

    for members in frontier:
        fill(0, members, ())
    return maximal(vectors, budget)


class Dealing:
    """Assigns segments to rows in order of the fabric, so that consecutive segments are near each other."""

    def __init__(self, query: PlacementQuery) -> None:
        self.rows: list[list[int]] = [[-1] * count for _, count in query.groups]
        """Row of each member of each group."""

    def deal(self, places: Iterable[Place], rows_by_group: Sequence[Sequence[int]]) -> None:
        """Assign members to rows; ``rows_by_group``: for each group one row per member."""
        queues = [iter(group_rows) for group_rows in rows_by_group]
        for group, position in sorted(places):
            self.rows[group][position] = next(queues[group])

    def deal_kinds(self, kinds: SegmentShapes, dealt: Iterable[tuple[Vector, Sequence[Sequence[int]]]]) -> None:
        """Assign segments: ``dealt`` has the count of each kind and the rows of each group, in order of the fabric."""
        queues = [iter(of_kind) for of_kind in kinds.segments]
        for counts, rows_by_group in dealt:
            segments = (next(queue) for queue, count in zip(queues, counts, strict=True) for _ in range(count))
            self.deal([place for segment in segments for place in segment], rows_by_group)
