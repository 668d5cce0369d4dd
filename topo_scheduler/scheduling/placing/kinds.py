"""Kinds of segments: those that have as many members of each class are alike, and it does not matter which goes where.

What a leaf holds is then counted in segments of each kind instead of members of each class, and everything that is
known of counts (`packing`) holds for them as well. Members of no segment are segments of one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.packing import Frontier, Vector, VectorBudget, maximal
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import charge, charge_rows

MANY: Final = 12
"""Kinds from which on there are too many for a complete search."""
MOST_COUNTS: Final = 1 << 16
"""Ways to count segments by kind from which on there are too many for it."""

Place = tuple[int, int]
"""Group, and position in it, of one member."""


@dataclass(frozen=True, slots=True)
class SegmentShapes:
    """Segments to be placed, by kind, the most demanding kind first.

    ``vectors`` members of each group in a segment of each kind; ``segments`` of each kind, in order of rank, as the
    members of each.
    """

    vectors: tuple[Vector, ...]
    segments: tuple[tuple[tuple[Place, ...], ...], ...]

    @property
    def counts(self) -> Vector:
        """Segments of each kind."""
        return tuple(len(some) for some in self.segments)

    @property
    def countable(self) -> bool:
        """Whether they are few enough for a complete search."""
        return len(self.vectors) <= MANY and prod(count + 1 for count in self.counts) <= MOST_COUNTS

    def members(self, counts: Sequence[int]) -> Vector:
        """Return how many members of each group so many segments of each kind have together."""
        columns = zip(*self.vectors, strict=True)
        return tuple(sum(n * each for n, each in zip(counts, column, strict=True)) for column in columns)


class SegmentBounds:
    """What leaves hold at most of segments, of which there must be some, as far as members of each class alone tell."""

    def __init__(self, kinds: SegmentShapes) -> None:
        self._vectors = np.array(kinds.vectors, np.int64)
        self._groups = np.flatnonzero(self._vectors.any(axis=0))
        some = self._vectors[:, self._groups]
        having = some > 0
        self._least = np.where(having, some, np.iinfo(np.int64).max).min(axis=0)
        counts = np.array(kinds.counts, np.int64)
        self.wanted: Int64 = np.concatenate((counts, counts @ having))[:, None].astype(np.int64)
        """int64[lines, 1]: segments of each kind; then, for each group of which any has members, those that have."""

    def of(self, fits: Int64) -> Int64:
        """Return how many leaves hold at most of what is wanted (int64[lines, leaves]).

        ``fits`` int64[classes, leaves]: members of each class alone.
        """
        charge_rows(fits.size, len(self._vectors))
        kinds = [(fits[vector > 0] // vector[vector > 0, None]).min(axis=0) for vector in self._vectors]
        return np.stack([*kinds, *(fits[self._groups] // self._least[:, None])])


def kinds_of(ask: PlacementQuery, parts: Iterable[int] | None = None) -> SegmentShapes:
    """Return the kinds of an ask's segments; of some of them only, where given."""
    wanted = None if parts is None else set(parts)
    members: dict[tuple[int, int, int], list[Place]] = {}
    for group, part in enumerate(ask.segments.parts):
        for position, number in enumerate(part):
            if wanted is None or number in wanted:
                # Members of no segment each stand for themselves, after all others.
                key = (0, number, 0) if number >= 0 else (1, group, position)
                members.setdefault(key, []).append((group, position))
    by_vector: dict[Vector, list[tuple[Place, ...]]] = {}
    for key in sorted(members):
        places = members[key]
        charge(1 + len(places) * len(ask.groups) // 16)
        vector = tuple(sum(group == at for at, _ in places) for group in range(len(ask.groups)))
        by_vector.setdefault(vector, []).append(tuple(places))
    order = sorted(by_vector, reverse=True)
    return SegmentShapes(tuple(order), tuple(tuple(by_vector[vector]) for vector in order))


def in_kinds(frontier: Frontier, kinds: SegmentShapes, budget: VectorBudget) -> Frontier:
    """Return in segments of each kind what a place holds in members of each class.

    Raises:
        TooMuch: the work allowed is used up.
    """
    counts, last = kinds.counts, len(kinds.vectors) - 1
    found: set[Vector] = set()

    def fill(kind: int, left: Vector, chosen: Vector) -> None:
        vector = kinds.vectors[kind]
        most = min([counts[kind], *(have // want for have, want in zip(left, vector, strict=True) if want)])
        budget.spend(1)
        if kind == last:
            found.add((*chosen, most))
            return
        for count in range(most, -1, -1):
            rest = tuple(have - count * want for have, want in zip(left, vector, strict=True))
            fill(kind + 1, rest, (*chosen, count))

    for one in frontier:
        fill(0, one, ())
    return maximal(found, budget)


class Dealing:
    """Hands segments to places in order, so that those that follow each other are near each other."""

    def __init__(self, ask: PlacementQuery) -> None:
        self.rows: list[list[int]] = [[-1] * count for _, count in ask.groups]
        """Row of each member of each group."""

    def deal(self, places: Iterable[Place], there: Sequence[Sequence[int]]) -> None:
        """Seat members on rows of one place; ``there`` for each group the rows, one a member."""
        rows = [iter(some) for some in there]
        for group, position in sorted(places):
            self.rows[group][position] = next(rows[group])

    def deal_kinds(self, kinds: SegmentShapes, dealt: Iterable[tuple[Vector, Sequence[Sequence[int]]]]) -> None:
        """Seat segments: for each place in order of the fabric so many of each kind, and the rows of each group."""
        queues = [iter(some) for some in kinds.segments]
        for counts, there in dealt:
            segments = (next(queue) for queue, count in zip(queues, counts, strict=True) for _ in range(count))
            self.deal([place for segment in segments for place in segment], there)
