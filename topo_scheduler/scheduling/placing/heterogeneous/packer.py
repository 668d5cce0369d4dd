"""The complete search for a gang of several classes: the fewest leaves of one domain that hold the whole gang."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model import packing
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.packing import Frontier, LeafRoom, SearchExhausted, Vector, VectorBudget
from topo_scheduler.state.nodes.node_table import Int64

FEW_NODES: Final = 12
"""Up to this number of nodes that can take a member, the search gets the larger budget."""
MAX_VECTORS_ON_FEW_NODES: Final = 1_000_000
"""The most vectors to compare on so few nodes: up to half a second."""
MAX_VECTORS: Final = 50_000
"""The most vectors to compare on more nodes: up to some tens of milliseconds."""

Found = tuple[int, int, list[list[int]]]
"""Depth, number of leaves used, and rows of each group."""


class Packer:
    """One search of one gang, over several levels, with one budget."""

    def __init__(self, task: PlanningTask, used: Int64, *, empty: bool) -> None:
        """``used`` int64[rows, resources]: amounts in use. ``empty``: nodes that are closed now count as well."""
        self._table = task.context.nodes
        self._query, self._layout, self._limits = task.query, task.layout, task.limits
        self._used = used
        self._empty = empty
        self._members: Vector = tuple(count for _, count in task.query.groups)
        self._required: Vector = self._members
        """What to place, in the units in which leaves are counted: members of each class, or segments of each kind."""
        self._budget: VectorBudget | None = None
        self._nodes: dict[tuple[int, ...], Frontier] = {}
        self._leaves: dict[tuple[Frontier, ...], Frontier] = {}
        self._rooms: dict[tuple[int, int], LeafRoom] = {}

    def fewest(self, variants: list[list[ClassView]], fits: list[Int64], depth: int, max_leaves: int) -> Found | None:
        """Return the placement in the fewest leaves of one domain, of equal ones the narrowest, then the first.

        None if there is none in at most ``max_leaves`` leaves, or the search ran out of its budget.

        Args:
            variants: a view of each class, for each GPU model that the whole gang may use.
            fits: int64[classes, leaves] for each variant: members of each class alone that a leaf holds.
            depth: of the domain.
            max_leaves: the most leaves.
        """
        self.budget(variants)
        best: tuple[tuple[int, int], int, list[tuple[int, Vector]]] | None = None
        try:
            for number, (views, variant_fits) in enumerate(zip(variants, fits, strict=True)):
                for first, last in self._domains(variant_fits, depth, max_leaves):
                    leaves = self._in_domain(number, views, variant_fits, first, last, max_leaves)
                    if leaves is not None:
                        key = (len(leaves), leaves[-1][0] - leaves[0][0])
                        if best is None or key < best[0]:
                            best = (key, number, leaves)
                            max_leaves = len(leaves)
        except SearchExhausted:
            pass  # the best result so far is good enough
        if best is None:
            return None
        (size, _), number, leaves = best
        return depth, size, self._seats(number, variants[number], leaves)

    def budget(self, variants: Sequence[list[ClassView]]) -> VectorBudget:
        """Return the remaining budget of the search; it starts larger on few nodes."""
        if self._budget is None:
            few_nodes = max(self._candidates(views) for views in variants) <= FEW_NODES
            self._budget = VectorBudget(MAX_VECTORS_ON_FEW_NODES if few_nodes else MAX_VECTORS)
        return self._budget

    def _candidates(self, views: list[ClassView]) -> int:
        fit = [view.empty_fit if self._empty else view.fit for view in views]
        return int((np.stack(fit).max(axis=0) > 0).sum())

    def _domains(self, fits: Int64, depth: int, max_leaves: int) -> list[tuple[int, int]]:
        """Return the domains that may hold each part of the gang alone in at most ``max_leaves`` leaves."""
        most_held, needed = self._bounds(fits)
        return [
            (first, last)
            for first, last in pairwise(self._layout.domains[depth].tolist())
            if (np.sort(most_held[:, first:last], axis=1)[:, -max_leaves:].sum(axis=1) >= needed).all()
        ]

    def _bounds(self, fits: Int64) -> tuple[Int64, Int64]:
        """Return the most that each leaf holds of each part of the gang (int64[parts, leaves]), and what is needed."""
        return fits, np.array(self._members, np.int64)

    def _in_domain(
        self, number: int, views: list[ClassView], fits: Int64, first: int, last: int, max_leaves: int
    ) -> list[tuple[int, Vector]] | None:
        assert self._budget is not None
        no_members: Frontier = (tuple(0 for _ in self._required),)
        frontiers = [
            self.leaf(number, views, leaf) if fits[:, leaf].any() else no_members for leaf in range(first, last)
        ]
        chosen = packing.fewest_leaves(frontiers, max_leaves, self._required, self._budget)
        return None if chosen is None else [(first + leaf, counts) for leaf, counts in chosen]

    def leaf(self, number: int, views: list[ClassView], leaf: int) -> Frontier:
        """Return the frontier of a leaf, in the units of what to place.

        Raises:
            SearchExhausted: the search has used up its budget.
        """
        assert self._budget is not None
        room = self._rooms.get((number, leaf))
        if room is None:
            room = self._rooms[number, leaf] = self._room(views, leaf)
        # Leaves whose nodes have the same frontiers, in any order, share a cache entry.
        key = tuple(sorted(room.frontiers))
        frontier = self._leaves.get(key)
        if frontier is None:
            frontier = self._leaves[key] = packing.of_leaf(room, self._members, self._budget)
        return frontier

    def _room(self, views: list[ClassView], leaf: int) -> LeafRoom:
        assert self._budget is not None
        layout, nodes = self._layout.inner or self._layout, self._table
        rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
        columns = np.unique(np.concatenate([view.columns for view in views]))
        requests = np.zeros((len(views), len(columns)), np.int64)
        for group, view in enumerate(views):
            requests[group, np.searchsorted(columns, view.columns)] = view.amounts
        free = nodes.allocatable[rows][:, columns] - self._used[rows][:, columns]
        allowed = np.stack([(view.eligible if self._empty else view.open)[rows] for view in views], axis=1)
        if self._query.traffic is not None and self._query.traffic.open is not None:
            allowed &= self._query.traffic.open[rows][:, None]
        # Free resources are not the only limit: members may exclude each other, and quotas may be nearly used up.
        row_limits = np.stack([(view.empty_fit if self._empty else view.fit)[rows] for view in views], axis=1)
        row_limits = np.where(allowed, np.minimum(row_limits, self._members), 0)
        frontiers, usable = [], []
        for row, row_free, row_limit in zip(rows.tolist(), free.tolist(), row_limits.tolist(), strict=True):
            self._budget.spend(1)
            limit = tuple(row_limit)
            key = (*row_free, *limit)
            frontier = self._nodes.get(key)
            if frontier is None:
                frontier = self._nodes[key] = packing.of_node(row_free, requests.tolist(), limit, self._budget)
            if any(map(any, frontier)):
                frontiers.append(frontier)
                usable.append(row)
        limits = self._limits
        gpus = tuple(cls.gpus for cls, _ in self._query.groups)
        return LeafRoom(tuple(usable), tuple(frontiers), limits.max_nodes_per_leaf, limits.max_gpus_per_leaf, gpus)

    def _seats(self, number: int, views: list[ClassView], leaves: list[tuple[int, Vector]]) -> list[list[int]]:
        return self._rows_of(number, leaves)

    def _rows_of(self, number: int, leaves: list[tuple[int, Vector]]) -> list[list[int]]:
        """Return the row of each member of each group, in order of the fabric, in leaves that hold the given counts."""
        rows: list[list[int]] = [[] for _ in self._members]
        for leaf, counts in leaves:
            for row, row_counts in packing.seat(self._rooms[number, leaf], counts, VectorBudget(packing.UNBOUNDED)):
                for group, count in enumerate(row_counts):
                    rows[group] += [row] * count
        position = self._layout.position
        return [sorted(group, key=lambda row: int(position[row])) for group in rows]
