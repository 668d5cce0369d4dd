"""Replacement of lost members of a gang whose segments differ: each goes where the rest of its segment runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import common_score, variants
from topo_scheduler.scheduling.placing.heterogeneous.segment_packing import SegmentPacker
from topo_scheduler.scheduling.placing.model import packing
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.packing import Frontier, LeafRoom, SearchExhausted, Vector, VectorBudget
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure
from topo_scheduler.scheduling.placing.model.segment_shapes import Dealing, Place, in_kinds, lost_members
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits, make_rule
from topo_scheduler.scheduling.placing.uniform.replacement import distance, reachable
from topo_scheduler.state.decision import SizeRule

MAX_FURTHER_LEAVES: Final = 64
"""The most leaves to examine beyond those where the gang runs, the nearest first."""


class _NoRoom(Exception):
    """Why there is no placement; an empty text leaves the reason to the caller."""


def plan_uneven_segment_repair(task: PlanningTask) -> Placement | PlacementFailure:
    """Place lost members where the rest of their segment runs, and lost segments near the others."""
    query, layout = task.query, task.layout
    rule = make_rule(layout, query.bounds.depth, max(1, query.bounds.leaves or len(layout.paths)), 1)
    reason = ""
    for views in variants(task.context, query):
        try:
            rows = _Repair(task, views).rows(rule)
        except _NoRoom as error:
            reason = reason or str(error)
            continue
        except SearchExhausted:
            continue
        used = sorted(layout.leaves_of((*query.running, *(row for group in rows for row in group))))
        return Placement(rows, used, rule, common_score(task, used, rule), 1)
    return PlacementFailure(reason, rule)


class _Repair:
    """One attempt to place lost members, on one view of each class."""

    def __init__(self, task: PlanningTask, views: list[ClassView]) -> None:
        self._query, self._layout, self._limits = task.query, task.layout, task.limits
        self._views = views
        self._home = sorted(task.layout.leaves_of(task.query.running))
        self._fixed, self._kinds = lost_members(task.query)
        self._packer = _RepairPacker(task, task.context.nodes.requested, self._kinds, empty=False)
        self._budget = self._packer.budget([views])

    def rows(self, rule: SizeRule) -> list[list[int]]:
        """Return the row of each member of each group; raises _NoRoom or SearchExhausted."""
        room = {leaf: self._left(leaf) for leaf in {*self._home, *self._fixed}}
        dealt: dict[int, Vector] = {}
        if self._kinds.vectors:
            dealt = dict(self._near(rule, room))
        dealing = Dealing(self._query)
        queues = [iter(of_kind) for of_kind in self._kinds.segments]
        for leaf in sorted({*dealt, *self._fixed}):
            places = list(self._fixed.get(leaf, ()))
            for queue, count in zip(queues, dealt.get(leaf, ()), strict=False):
                places += [place for _ in range(count) for place in next(queue)]
            dealing.deal(places, self._packer.seats(0, self._views, leaf, self._vector(places)))
        return dealing.rows

    def _left(self, leaf: int) -> Frontier:
        """Return the frontier of a leaf after the members that must go there; raises _NoRoom."""
        frontier = self._packer.held(0, self._views, leaf)
        fixed = self._vector(self._fixed.get(leaf, ()))
        if not packing.holds(frontier, fixed):
            path = "/".join(self._layout.paths[leaf])
            raise _NoRoom(f"no room for {counted(sum(fixed), 'pod')} in {path}, where the rest of their segment runs")
        return tuple(
            tuple(count - taken for count, taken in zip(vector, fixed, strict=True))
            for vector in frontier
            if packing.holds((vector,), fixed)
        )

    def _near(self, rule: SizeRule, room: dict[int, Frontier]) -> list[tuple[int, Vector]]:
        """Return leaves for lost segments, and the count of each kind there; leaves where the gang runs come first."""
        counts_needed, budget = self._kinds.counts, self._budget
        if not self._kinds.countable:
            raise _NoRoom
        home_frontiers = [in_kinds(room[leaf], self._kinds, budget) for leaf in self._home]
        together: Frontier = (tuple(0 for _ in counts_needed),)
        for frontier in home_frontiers:
            together = packing.add(together, frontier, counts_needed, budget)
        chosen: list[tuple[int, Vector]] | None = [(0, counts_needed)]
        further: list[int] = []
        if not packing.holds(together, counts_needed):
            near, more_leaves = reachable(self._query, self._layout, rule, self._home)
            further = self._further(near)
            frontiers = [
                in_kinds(room[leaf] if leaf in room else self._left(leaf), self._kinds, budget) for leaf in further
            ]
            chosen = packing.fewest_leaves(
                [together, *frontiers], min(more_leaves, len(further)) + 1, counts_needed, budget
            )
        if chosen is None:
            sizes = sorted({sum(vector) for vector in self._kinds.vectors})
            pods = " or ".join(str(size) for size in sizes)
            raise _NoRoom(f"no leaf near the {len(self._query.running)} members that run has room for {pods} pods")
        dealt = [(further[number - 1], counts) for number, counts in chosen if number]
        if home_frontiers and (home_counts := [counts for number, counts in chosen if not number]):
            dealt += packing.seat(
                LeafRoom(tuple(self._home), tuple(home_frontiers)), home_counts[0], VectorBudget(packing.UNBOUNDED)
            )
        return dealt

    def _further(self, near: Sequence[int]) -> list[int]:
        layout, limits = self._layout, self._limits
        fits = np.max(
            [leaf_fits(view, layout, limits, fit=self._query.within_links(view.fit)) for view in self._views], axis=0
        )
        candidates = [leaf for leaf in near if leaf not in self._home and fits[leaf]]
        return sorted(candidates, key=lambda leaf: (*distance(layout, leaf, self._home), leaf))[:MAX_FURTHER_LEAVES]

    def _vector(self, places: Sequence[Place]) -> Vector:
        return tuple(sum(group == other for other, _ in places) for group in range(len(self._query.groups)))


class _RepairPacker(SegmentPacker):
    """A packer that counts nodes already used by the gang against the limit per leaf."""

    def _room(self, views: list[ClassView], leaf: int) -> LeafRoom:
        room = super()._room(views, leaf)
        layout = self._layout.inner or self._layout
        leaf_rows = set(layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist())
        if not room.max_rows or not (used_rows := leaf_rows.intersection(self._query.running)):
            return room
        # Of the nodes that the gang does not use yet, open only the roomiest, up to the rest of the limit.
        spare = max(0, room.max_rows - len(used_rows))
        pairs = list(zip(room.rows, room.frontiers, strict=True))
        unused = sorted((pair for pair in pairs if pair[0] not in used_rows), key=lambda pair: -sum(map(sum, pair[1])))
        open_rows = {row for row, _ in unused[:spare]} | used_rows
        pairs = [pair for pair in pairs if pair[0] in open_rows]
        return replace(
            room, rows=tuple(row for row, _ in pairs), frontiers=tuple(frontier for _, frontier in pairs), max_rows=0
        )
