"""Re-placing lost members of a gang in segments that are not alike: each where the rest of its segment runs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing import packing
from topo_scheduler.scheduling.placing.ask import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.kinds import Dealing, Place, SegmentShapes, in_kinds, kinds_of
from topo_scheduler.scheduling.placing.mixed import common_score, variants
from topo_scheduler.scheduling.placing.packing import Frontier, LeafRoom, TooMuch, Vector, VectorBudget
from topo_scheduler.scheduling.placing.repair import distance, reachable
from topo_scheduler.scheduling.placing.segment_packing import SegmentPacker
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, make_rule
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

FURTHER: Final = 64
"""Leaves beyond those where the gang runs that are looked at at most, the nearest first."""


class _NoRoom(Exception):
    """Why there is no place; empty where that is for the caller to say."""


def plan_parts_again(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> Placement | PlacementFailure:
    """Place what is lost of a segment where the rest runs, and segments of which nothing runs near the others."""
    rule = make_rule(layout, ask.bounds.depth, max(1, ask.bounds.leaves or len(layout.paths)), 1)
    reason = ""
    for views in variants(site, ask):
        try:
            rows = _Again(site, ask, layout, views).rows(rule)
        except _NoRoom as error:
            reason = reason or str(error)
            continue
        except TooMuch:
            continue
        used = sorted(layout.leaves_of((*ask.running, *(row for group in rows for row in group))))
        return Placement(rows, used, rule, common_score(site, ask, layout, used, rule), 1)
    return PlacementFailure(reason, rule)


class _Again:
    """One look, on one view of each class."""

    def __init__(self, site: PlanningContext, ask: PlacementQuery, layout: Layout, views: list[ClassView]) -> None:
        self._site = site
        self._ask = ask
        self._layout = layout
        self._views = views
        self._home = sorted(layout.leaves_of(ask.running))
        homes = dict(ask.segments.homes)
        self._kinds = kinds_of(ask, {number for part in ask.segments.parts for number in part} - set(homes))
        self._packer = _Beside(site, ask, layout, site.nodes.requested, self._kinds, empty=False)
        self._budget = self._packer.budget([views])
        self._fixed: dict[int, list[Place]] = {}
        for group, part in enumerate(ask.segments.parts):
            for position, number in enumerate(part):
                if number in homes:
                    self._fixed.setdefault(homes[number], []).append((group, position))

    def rows(self, rule: SizeRule) -> list[list[int]]:
        """Return the row of each member of each group; raises _NoRoom, or TooMuch."""
        left = {leaf: self._left(leaf) for leaf in {*self._home, *self._fixed}}
        dealt: dict[int, Vector] = {}
        if self._kinds.vectors:
            dealt = dict(self._near(rule, left))
        dealing = Dealing(self._ask)
        queues = [iter(some) for some in self._kinds.segments]
        for leaf in sorted({*dealt, *self._fixed}):
            places = list(self._fixed.get(leaf, ()))
            for queue, count in zip(queues, dealt.get(leaf, ()), strict=False):
                places += [place for _ in range(count) for place in next(queue)]
            dealing.deal(places, self._packer.seats(0, self._views, leaf, self._vector(places)))
        return dealing.rows

    def _left(self, leaf: int) -> Frontier:
        """Return what a leaf holds beside the members that must be there; raises _NoRoom."""
        held = self._packer.held(0, self._views, leaf)
        fixed = self._vector(self._fixed.get(leaf, ()))
        if not packing.holds(held, fixed):
            path = "/".join(self._layout.paths[leaf])
            raise _NoRoom(f"no room for {sum(fixed)} pods in {path}, where the rest of their segment runs")
        return tuple(
            tuple(have - less for have, less in zip(one, fixed, strict=True))
            for one in held
            if packing.holds((one,), fixed)
        )

    def _near(self, rule: SizeRule, left: dict[int, Frontier]) -> list[tuple[int, Vector]]:
        """Return the leaves for segments of which nothing runs, and how many of each kind: the gang's own first."""
        wanted, budget = self._kinds.counts, self._budget
        if not self._kinds.countable:
            raise _NoRoom
        own = [in_kinds(left[leaf], self._kinds, budget) for leaf in self._home]
        together: Frontier = (tuple(0 for _ in wanted),)
        for one in own:
            together = packing.add(together, one, wanted, budget)
        found: list[tuple[int, Vector]] | None = [(0, wanted)]
        further: list[int] = []
        if not packing.holds(together, wanted):
            near, extra = reachable(self._ask, self._layout, rule, self._home)
            further = self._further(near)
            frontiers = [
                in_kinds(left[leaf] if leaf in left else self._left(leaf), self._kinds, budget) for leaf in further
            ]
            found = packing.fewest_leaves([together, *frontiers], min(extra, len(further)) + 1, wanted, budget)
        if found is None:
            sizes = sorted({sum(vector) for vector in self._kinds.vectors})
            pods = " or ".join(str(size) for size in sizes)
            raise _NoRoom(f"no leaf near the {len(self._ask.running)} members that run has room for {pods} pods")
        dealt = [(further[at - 1], counts) for at, counts in found if at]
        if own and (mine := [counts for at, counts in found if not at]):
            dealt += packing.seat(LeafRoom(tuple(self._home), tuple(own)), mine[0], VectorBudget(packing.UNBOUNDED))
        return dealt

    def _further(self, near: Sequence[int]) -> list[int]:
        layout, limits = self._layout, self._site.limits_for(self._ask)
        fits = np.max(
            [leaf_fits(view, layout, limits, fit=self._ask.within_links(view.fit)) for view in self._views], axis=0
        )
        found = [leaf for leaf in near if leaf not in self._home and fits[leaf]]
        return sorted(found, key=lambda leaf: (*distance(layout, leaf, self._home), leaf))[:FURTHER]

    def _vector(self, places: Sequence[Place]) -> Vector:
        return tuple(sum(group == at for at, _ in places) for group in range(len(self._ask.groups)))


class _Beside(SegmentPacker):
    """Counts the nodes that the gang uses already against the limit per leaf."""

    def __init__(
        self,
        site: PlanningContext,
        ask: PlacementQuery,
        layout: Layout,
        used: Int64,
        kinds: SegmentShapes,
        *,
        empty: bool,
    ) -> None:
        super().__init__(site, ask, layout, used, kinds, empty=empty)
        self._running = set(ask.running)

    def _room(self, views: list[ClassView], leaf: int) -> LeafRoom:
        room = super()._room(views, leaf)
        layout = self._layout.inner or self._layout
        inside = set(layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist())
        if not room.most_rows or not (here := inside & self._running):
            return room
        # Of the nodes it does not use yet only the roomiest may be opened, as many as are left to it.
        spare = max(0, room.most_rows - len(here))
        pairs = list(zip(room.rows, room.frontiers, strict=True))
        others = sorted((pair for pair in pairs if pair[0] not in here), key=lambda pair: -sum(map(sum, pair[1])))
        kept = {row for row, _ in others[:spare]} | here
        pairs = [pair for pair in pairs if pair[0] in kept]
        return replace(room, rows=tuple(r for r, _ in pairs), frontiers=tuple(f for _, f in pairs), most_rows=0)
