"""The complete search for a gang of several classes: the fewest leaves of a level that hold all of it together."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing import packing
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.packing import Frontier, LeafRoom, TooMuch, Vector, VectorBudget
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

FEW_NODES: Final = 12
"""Nodes that could take a member up to which the search may take its time."""
MOST_WORK_ON_FEW: Final = 1_000_000
"""Vectors compared at most on so few nodes: up to half a second."""
MOST_WORK: Final = 50_000
"""Vectors compared at most on more nodes: up to some tens of milliseconds."""

Found = tuple[int, int, list[list[int]]]
"""Depth, leaves used, and rows of each group."""


class Packer:
    """One search of one gang, over several levels, with one budget."""

    def __init__(self, site: PlanningContext, ask: PlacementQuery, layout: Layout, used: Int64, *, empty: bool) -> None:
        """``used`` int64[rows, resources] is taken; ``empty``: nodes that are closed at the moment count as well."""
        self._site = site
        self._ask = ask
        self._layout = layout
        self._used = used
        self._empty = empty
        self._asked: Vector = tuple(count for _, count in ask.groups)
        self._wanted: Vector = self._asked
        """How many are to be placed of what leaves are counted in."""
        self._budget: VectorBudget | None = None
        self._nodes: dict[tuple[int, ...], Frontier] = {}
        self._leaves: dict[tuple[Frontier, ...], Frontier] = {}
        self._rooms: dict[tuple[int, int], LeafRoom] = {}

    def fewest(self, variants: list[list[ClassView]], fits: list[Int64], depth: int, most: int) -> Found | None:
        """Return the place in the fewest leaves of one domain of a level, of these the narrowest and then the first.

        None where there is none in so many leaves, or it was not found in time.

        Args:
            variants: a view of each class, once a GPU model that the gang may keep to.
            fits: int64[classes, leaves] of each variant: members of each class alone that a leaf holds.
            depth: of the level.
            most: leaves at most.
        """
        self.budget(variants)
        best: tuple[tuple[int, int], int, list[tuple[int, Vector]]] | None = None
        try:
            for number, (views, held) in enumerate(zip(variants, fits, strict=True)):
                for first, last in self._domains(held, depth, most):
                    leaves = self._in_domain(number, views, held, first, last, most)
                    if leaves is not None:
                        key = (len(leaves), leaves[-1][0] - leaves[0][0])
                        if best is None or key < best[0]:
                            best = (key, number, leaves)
                            most = len(leaves)
        except TooMuch:
            pass  # what was found until then is good enough
        if best is None:
            return None
        (size, _), number, leaves = best
        return depth, size, self._seats(number, variants[number], leaves)

    def budget(self, variants: Sequence[list[ClassView]]) -> VectorBudget:
        """Return what is left of the work allowed; on few nodes that is more."""
        if self._budget is None:
            few = max(self._candidates(views) for views in variants) <= FEW_NODES
            self._budget = VectorBudget(MOST_WORK_ON_FEW if few else MOST_WORK)
        return self._budget

    def _candidates(self, views: list[ClassView]) -> int:
        fit = [view.empty_fit if self._empty else view.fit for view in views]
        return int((np.stack(fit).max(axis=0) > 0).sum())

    def _domains(self, held: Int64, depth: int, most: int) -> list[tuple[int, int]]:
        """Return the domains that may hold each class alone in so many leaves."""
        offsets = self._layout.domains[depth].tolist()
        needed = np.array(self._asked, np.int64)
        return [
            (first, last)
            for first, last in pairwise(offsets)
            if (np.sort(held[:, first:last], axis=1)[:, -most:].sum(axis=1) >= needed).all()
        ]

    def _in_domain(
        self, number: int, views: list[ClassView], held: Int64, first: int, last: int, most: int
    ) -> list[tuple[int, Vector]] | None:
        assert self._budget is not None
        nothing: Frontier = (tuple(0 for _ in self._wanted),)
        frontiers = [self._leaf(number, views, leaf) if held[:, leaf].any() else nothing for leaf in range(first, last)]
        found = packing.fewest_leaves(frontiers, most, self._wanted, self._budget)
        return None if found is None else [(first + leaf, counts) for leaf, counts in found]

    def _leaf(self, number: int, views: list[ClassView], leaf: int) -> Frontier:
        assert self._budget is not None
        room = self._rooms.get((number, leaf))
        if room is None:
            room = self._rooms[number, leaf] = self._room(views, leaf)
        # A leaf is known by what its nodes hold, in whatever order.
        key = tuple(sorted(room.frontiers))
        found = self._leaves.get(key)
        if found is None:
            found = self._leaves[key] = packing.of_leaf(room, self._asked, self._budget)
        return found

    def _room(self, views: list[ClassView], leaf: int) -> LeafRoom:
        assert self._budget is not None
        layout, nodes = self._layout.inner or self._layout, self._site.nodes
        rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
        columns = np.unique(np.concatenate([view.columns for view in views]))
        requests = np.zeros((len(views), len(columns)), np.int64)
        for group, view in enumerate(views):
            requests[group, np.searchsorted(columns, view.columns)] = view.amounts
        free = nodes.allocatable[rows][:, columns] - self._used[rows][:, columns]
        allowed = np.stack([(view.eligible if self._empty else view.open)[rows] for view in views], axis=1)
        if self._ask.traffic is not None and self._ask.traffic.open is not None:
            allowed &= self._ask.traffic.open[rows][:, None]
        # What is free is not all that counts: members may exclude each other, or quotas be nearly used up.
        most = np.stack([(view.empty_fit if self._empty else view.fit)[rows] for view in views], axis=1)
        most = np.where(allowed, np.minimum(most, self._asked), 0)
        frontiers, usable = [], []
        for row, left, some in zip(rows.tolist(), free.tolist(), most.tolist(), strict=True):
            self._budget.spend(1)
            asked = tuple(some)
            key = (*left, *asked)
            frontier = self._nodes.get(key)
            if frontier is None:
                frontier = self._nodes[key] = packing.of_node(left, requests.tolist(), asked, self._budget)
            if any(map(any, frontier)):
                frontiers.append(frontier)
                usable.append(row)
        limits = self._site.limits_for(self._ask)
        gpus = tuple(cls.gpus for cls, _ in self._ask.groups)
        return LeafRoom(tuple(usable), tuple(frontiers), limits.max_nodes_per_leaf, limits.max_gpus_per_leaf, gpus)

    def _seats(self, number: int, views: list[ClassView], leaves: list[tuple[int, Vector]]) -> list[list[int]]:
        position = self._layout.position
        rows = self._rows_of(number, leaves)
        return [sorted(group, key=lambda row: int(position[row])) for group in rows]

    def _rows_of(self, number: int, leaves: list[tuple[int, Vector]]) -> list[list[int]]:
        """Return the rows of each group, one a member, in leaves that hold so many."""
        rows: list[list[int]] = [[] for _ in self._asked]
        for leaf, counts in leaves:
            for row, some in packing.seat(self._rooms[number, leaf], counts, VectorBudget(packing.UNBOUNDED)):
                for group, count in enumerate(some):
                    rows[group] += [row] * count
        return rows
