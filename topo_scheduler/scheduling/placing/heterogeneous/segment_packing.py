"""Placement of segments of several kinds: a quick filling of windows of leaves, and a complete search by kind.

For kinds see `kinds`. Both start from the members of each class that a leaf holds, and derive the segments by kind.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.filling import Filler
from topo_scheduler.scheduling.placing.heterogeneous.packer import Found, Packer
from topo_scheduler.scheduling.placing.model import packing
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.packing import Frontier, Vector, VectorBudget
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.segment_shapes import Dealing, SegmentBounds, SegmentShapes, in_kinds
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

MAX_FILLINGS: Final = 2000
"""The most fillings of leaves in one search: up to some tens of milliseconds."""


class SegmentFiller:
    """Fills windows of leaves with segments, leaf by leaf, the most demanding kind first."""

    def __init__(self, kinds: SegmentShapes, query: PlacementQuery, layout: Layout) -> None:
        self._kinds = kinds
        self._query = query
        self._layout = layout
        self._vectors = np.array(kinds.vectors, np.int64)
        self._fills_left = MAX_FILLINGS

    def fill(self, filler: Filler, fits: Int64, first: int, width: int) -> list[list[int]] | None:
        """Return the row of each member of each group in a window; None if the window could not be filled."""
        left = list(self._kinds.counts)
        dealt: list[tuple[Vector, list[list[int]]]] = []
        for leaf in range(first, first + width):
            if not any(left):
                break
            filled = self._leaf(filler, fits, leaf, left)
            if filled is not None:
                left = [count - placed for count, placed in zip(left, filled[0], strict=True)]
                dealt.append(filled)
        if any(left):
            return None
        dealing = Dealing(self._query)
        dealing.deal_kinds(self._kinds, dealt)
        return dealing.rows

    def _leaf(
        self, filler: Filler, fits: Int64, leaf: int, left: Sequence[int]
    ) -> tuple[Vector, list[list[int]]] | None:
        layout = self._layout
        rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
        chosen = np.zeros(len(left), np.int64)
        held: Int64 | None = None
        for kind, needed in enumerate(left):
            vector = self._vectors[kind]
            spare = fits[:, leaf] - chosen @ self._vectors
            low, high = 0, min(needed, int((spare[vector > 0] // vector[vector > 0]).min()))
            count = high
            while low < high and self._fills_left > 0:
                self._fills_left -= 1
                chosen[kind] = count
                filled = filler.fill(rows, chosen @ self._vectors)
                if filled is None:
                    high = count - 1
                else:
                    low, held = count, filled
                count = (low + high + 1) // 2
            chosen[kind] = low
        if held is None:
            return None
        return tuple(chosen.tolist()), [np.repeat(rows, group).tolist() for group in held]


class SegmentPacker(Packer):
    """The complete search by kinds of segments. Leaves are domains of the level that each segment must share."""

    def __init__(self, task: PlanningTask, used: Int64, kinds: SegmentShapes, *, empty: bool) -> None:
        super().__init__(task, used, empty=empty)
        self._kinds = kinds
        self._required = kinds.counts
        self._blocks: dict[tuple[int, int], Frontier] = {}
        self._counted: dict[Frontier, Frontier] = {}

    def fewest(self, variants: list[list[ClassView]], fits: list[Int64], depth: int, max_leaves: int) -> Found | None:
        """Return the placement in the fewest leaves, as `Packer.fewest` does."""
        return super().fewest(variants, fits, depth, max_leaves) if self._kinds.countable else None

    def held(self, number: int, views: list[ClassView], leaf: int) -> Frontier:
        """Return the frontier of a leaf in members of each class.

        Raises:
            SearchExhausted: the search has used up its budget.
        """
        frontier = self._blocks.get((number, leaf))
        if frontier is None:
            frontier = (tuple(0 for _ in self._members),)
            for inner in self._inside(leaf):
                frontier = packing.add(frontier, super().leaf(number, views, inner), self._members, self.budget(()))
            self._blocks[number, leaf] = frontier
        return frontier

    def seats(self, number: int, views: list[ClassView], leaf: int, members: Vector) -> list[list[int]]:
        """Return rows for the members of each class, one per member in order of the fabric; the leaf must hold them."""
        inside = list(self._inside(leaf))
        shared = [(inside[0], members)]
        if len(inside) > 1:
            # In a block use the fewest leaves, next to each other.
            unbounded = VectorBudget(packing.UNBOUNDED)
            frontiers = [_capped(super(SegmentPacker, self).leaf(number, views, inner), members) for inner in inside]
            chosen = packing.fewest_leaves(frontiers, len(inside), members, unbounded)
            assert chosen is not None, "the block was said to hold them"
            shared = [(inside[index], counts) for index, counts in chosen]
        return self._rows_of(number, shared)

    def _bounds(self, fits: Int64) -> tuple[Int64, Int64]:
        bounds = SegmentBounds(self._kinds)
        return bounds.of(fits), bounds.required[:, 0]

    def leaf(self, number: int, views: list[ClassView], leaf: int) -> Frontier:
        """Return the frontier of a leaf in segments of each kind, as `Packer.leaf` does."""
        members_held = self.held(number, views, leaf)
        counted = self._counted.get(members_held)
        if counted is None:
            counted = self._counted[members_held] = in_kinds(members_held, self._kinds, self.budget(()))
        return counted

    def _seats(self, number: int, views: list[ClassView], leaves: list[tuple[int, Vector]]) -> list[list[int]]:
        dealing = Dealing(self._query)
        dealt = [
            (counts, self.seats(number, views, leaf, self._kinds.members(counts))) for leaf, counts in sorted(leaves)
        ]
        dealing.deal_kinds(self._kinds, dealt)
        return dealing.rows

    def _inside(self, leaf: int) -> range:
        """Return the leaves of the fabric in a leaf of the layout."""
        if self._layout.inner is None:
            return range(leaf, leaf + 1)
        return range(int(self._layout.blocks[leaf]), int(self._layout.blocks[leaf + 1]))


def _capped(frontier: Frontier, limit: Vector) -> Frontier:
    capped = (tuple(map(min, vector, limit)) for vector in frontier)
    return packing.maximal(capped, VectorBudget(packing.UNBOUNDED))
