"""The search for the leaves of a gang whose members are seated one by one.

Each check counts the members before as if they ran, so a placement is valid in the order in which it was found. If a
member has no row, the search backtracks and tries other rows for the last members. The search is bounded, so a gang may
stay pending although an exact search would place it. Every placement found is valid.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from topo_scheduler.kernels.fit import sum_ranges
from topo_scheduler.scheduling.placing.constrained import segment_assignments
from topo_scheduler.scheduling.placing.constrained.sequential_assignment import SearchState, Seating, Spots, Step
from topo_scheduler.scheduling.placing.constrained.zone_counts import Zones, zones_of
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import bound
from topo_scheduler.scheduling.placing.heterogeneous.packer import FEW_NODES
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.size_rule import named_at
from topo_scheduler.scheduling.placing.scoring.tie_breaking import EqualSearch
from topo_scheduler.scheduling.placing.uniform.replacement import distance
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge_rows
from topo_scheduler.state.topology.fabric import Layout

MAX_ROW_SEARCHES: Final = 400
"""The most looks in failed attempts of one search. A look is one search for rows for a member."""
MAX_ROW_SEARCHES_ON_FEW_NODES: Final = 4000
"""The same if few nodes can take a member: for a gang in segments, and in a small cluster for any gang."""
MAX_ROWS_SEARCHED: Final = 256_000
"""The most nodes that all looks of a search cover, where this allows more than `MAX_ROW_SEARCHES`."""


@dataclass(frozen=True, slots=True)
class LeafPlacement:
    """A placement: the rows of members in turn. Lower ``order`` is better."""

    order: tuple[int, int, int, int]
    depth: int
    leaves: int
    steps: list[Step]


def look(
    search: "ConstrainedSearch", *, rule: SizeRule | None = None, only_depth: int | None = None
) -> LeafPlacement | None:
    """Search domain by domain, innermost level first; return the best of a level. ``only_depth``: no other depth."""
    query, layout, home = search.query, search.layout, search.home
    search.allow()
    if rule is not None and not home:
        result = search.within(rule.depth, rule.leaves)
        return result if result is None or not search.few else search.nearer(result)
    within = bound(layout, query.within, home)
    if within >= layout.depth:
        return search.within(layout.depth - 1, 1)
    for depth in range(layout.depth - 1, max(within, query.bounds.depth) - 1, -1):
        if only_depth is not None and depth != only_depth:
            continue
        search.allow()
        result = search.within(depth, query.bounds.leaves or len(layout.paths))
        if result is not None:
            return result if home else search.nearer(result)
    return None


class ConstrainedSearch:
    """One search with its limits."""

    def __init__(self, task: PlanningTask, states: Sequence[SearchState], home: set[int]) -> None:
        self._task = task
        self._states = [(state, ceilings_of(state, task.query, task.layout)) for state in states]
        self.query, self.layout = task.query, task.layout
        self.home = home
        self._looks = 0
        self._steps = segment_assignments.Steps()
        usable = [(np.max(state.fit, axis=0) > 0).sum() for state in states]
        self.few = max(usable, default=0) <= FEW_NODES
        """Whether few nodes can take a member."""

    def allow(self) -> None:
        """Reset the number of looks that the search may still use."""
        self._steps = segment_assignments.Steps()
        looks = MAX_ROW_SEARCHES
        if self.few:
            small = min(MAX_ROW_SEARCHES_ON_FEW_NODES, MAX_ROWS_SEARCHED // max(1, self._task.context.nodes.rows))
            looks = MAX_ROW_SEARCHES_ON_FEW_NODES if self.query.in_segments else max(MAX_ROW_SEARCHES, small)
        self._looks = looks + 2 * self.query.members

    def within(self, depth: int, max_leaves: int) -> LeafPlacement | None:
        """Return the best placement in at most ``max_leaves`` leaves of one domain at a depth."""
        best: LeafPlacement | None = None
        for state, ceilings in self._states:
            for domain in self._domains(depth, max_leaves, state, ceilings):
                for start in self._starts(state, ceilings, domain, max_leaves):
                    if self._looks <= 0:
                        return best
                    steps = self._try(state, domain, max_leaves, start)
                    if steps is None:
                        continue
                    result = _judge(self.layout, depth, steps, self.home)
                    best = result if best is None else min(best, result, key=lambda candidate: candidate.order)
                    if isinstance(start, Spots) and self.few:
                        break  # this domain has no better placement
                    if not result.order[0]:
                        return best  # other leaves may be closer together, but a search for them is not worth the time
        return best

    def nearer(self, result: LeafPlacement) -> LeafPlacement:
        """Return a placement in fewer leaves at the same depth, ``result`` if there is none.

        The first placement found may use more leaves than necessary. Other pods may also let a gang use fewer leaves
        than in an empty cluster.
        """
        self.allow()
        fewer = (self.within(result.depth, max_leaves) for max_leaves in range(1, result.leaves))
        return next((candidate for candidate in fewer if candidate is not None), result)

    def among(self, depth: int, rule: SizeRule) -> EqualSearch[LeafPlacement]:
        """Return the search that compares placements at a depth; together they may use as many looks as one search."""
        self.allow()
        self._looks = MAX_ROW_SEARCHES_ON_FEW_NODES if self.few else self._looks
        state, _ = self._states[0]
        held = np.max([np.stack(ceilings) for _, ceilings in self._states], axis=0)

        def rows_of(result: LeafPlacement) -> list[list[int]]:
            return [
                [row for group, row, _ in result.steps if group == index] for index in range(len(self.query.groups))
            ]

        return EqualSearch(
            depth, rule, state.views[0], state.fit[0], held, self.few, partial(self._hold, depth), rows_of
        )

    def _hold(self, depth: int, leaves: Sequence[int]) -> LeafPlacement | None:
        in_leaves = np.isin(self.layout.leaf_of_row, leaves)
        states = [replace(state, fit=[np.where(in_leaves, fit, 0) for fit in state.fit]) for state, _ in self._states]
        search = ConstrainedSearch(self._task, states, self.home)
        search._looks, search._steps = self._looks, self._steps
        result = search.within(depth, len(leaves))
        self._looks = search._looks
        return result

    def _try(
        self, state: SearchState, domain: tuple[int, int], max_leaves: int, start: int | Spots
    ) -> list[Step] | None:
        if isinstance(start, int):
            seating = Seating(self._task, state, domain, max_leaves, start, self.home)
        else:
            used_leaves = {*start.leaves} | self.home
            seating = Seating(self._task, state, domain, len(used_leaves), -1, used_leaves, start)
        steps = seating.run(self._looks)
        self._looks -= seating.looks if steps is None else 0
        return steps

    def _domains(
        self, depth: int, max_leaves: int, state: SearchState, ceilings: Sequence[Int64]
    ) -> Iterator[tuple[int, int]]:
        """Yield the domains that may hold each group alone: preferred ones first, then those with least room."""
        layout, groups = self.layout, self.query.groups
        offsets = layout.domains[depth]
        room = np.add.reduceat(np.sum(ceilings, axis=0), offsets[:-1])
        first_preferred, end_preferred = self.query.preferred or (0, 0)
        for index in sorted(
            range(len(room)),
            key=lambda number: (not first_preferred <= offsets[number] < end_preferred, int(room[number]), number),
        ):
            first, last = int(offsets[index]), int(offsets[index + 1])
            if not all(first <= leaf < last for leaf in self.home):
                continue
            if any(
                int(np.sort(ceiling[first:last])[-max_leaves:].sum()) < count
                for ceiling, (_, count) in zip(ceilings, groups, strict=True)
            ):
                continue
            rows = layout.order[layout.offsets[first] : layout.offsets[last]]
            if all(state.ceiling(group, rows, all_here=True) >= count for group, (_, count) in enumerate(groups)):
                yield first, last

    def _starts(
        self, state: SearchState, ceilings: Sequence[Int64], domain: tuple[int, int], max_leaves: int
    ) -> Iterator[int | Spots]:
        """Yield leaves to begin in, or fixed spots for members where these can be counted in advance."""
        zones = None if self.home else zones_of(state, self.query, self.layout, domain)
        if self.query.segments.parts:
            yield from self._of_segments(ceilings, domain, max_leaves, zones)
            return
        if zones is not None:
            any_spots = False
            for spots in zones.sets(self.query.members, max_leaves, self._steps):
                any_spots = True
                yield spots
            if not any_spots and zones.whole and self._steps.left >= 0:
                return  # no placement exists
        yield from self._leaves(state, ceilings, domain)

    def _of_segments(
        self, ceilings: Sequence[Int64], domain: tuple[int, int], max_leaves: int, zones: Zones | None
    ) -> Iterator[Spots]:
        leaves, home = list(range(*domain)), sorted(self.home)
        if home:
            leaves.sort(key=lambda leaf: (*distance(self.layout, leaf, home), leaf))
        if zones is not None:
            low, high = domain
            ceilings = [ceilings[0].copy()]
            share_room = [np.minimum(zones.room, share.maximum).sum(axis=1) for share in zones.shares]
            ceilings[0][low:high] = np.minimum(ceilings[0][low:high], np.max(share_room, axis=0)) if share_room else 0
        for places in segment_assignments.assignments(
            self.query, segment_assignments.SegmentDomains(ceilings, leaves, home), max_leaves, self._steps
        ):
            if zones is None:
                yield Spots(places, sorted({leaf for part in places for leaf in part}))
            else:
                yield from zones.shared(places[0], self._steps)

    def _leaves(self, state: SearchState, ceilings: Sequence[Int64], domain: tuple[int, int]) -> list[int]:
        """Return the leaves to begin in: labelled first, then those that hold most members, then the tightest."""
        if self.home:
            return [min(self.home)]
        first, end = domain
        held = np.sum(ceilings, axis=0)[first:end]
        room = np.sum([by_leaf(self.layout, fit) for fit in state.fit], axis=0)[first:end]
        order = np.lexsort((np.arange(end - first), room, -held, 1 - self.layout.aligned[first:end]))
        return [first + int(index) for index in order if held[index]]


def ceilings_of(state: SearchState, query: PlacementQuery, layout: Layout) -> list[Int64]:
    """Return the most members of each group that a leaf holds (int64[leaves] each)."""
    ceilings = []
    for group, (_, count) in enumerate(query.groups):
        constraints = state.classes[group].constraints
        ceiling = np.minimum(by_leaf(layout, state.fit[group]), count)
        for key in constraints.apart if constraints is not None else ():
            ceiling = np.minimum(ceiling, _apart_by_leaf(state, layout, group, key))
        ceilings.append(ceiling * named_at(layout, query.within) if query.within else ceiling)
    return ceilings


def _apart_by_leaf(state: SearchState, layout: Layout, group: int, key: str) -> Int64:
    """Return the members that a leaf holds with anti-affinity over a label: 1 per value, all where unlabelled."""
    charge_rows(len(layout.leaf_of_row), 20)
    leaves, fit, column = layout.leaf_of_row, state.fit[group], state.filter_context.nodes.label_column(key)
    usable = (fit > 0) & (leaves >= 0)
    unlabelled, labelled = usable & (column == UNKNOWN), usable & (column != UNKNOWN)
    values = len(state.filter_context.nodes.values) + 1
    pairs = np.unique(leaves[labelled] * values + column[labelled]) // values
    by_value = np.bincount(pairs, minlength=len(layout.paths))
    return by_value + np.bincount(leaves[unlabelled], weights=fit[unlabelled], minlength=len(layout.paths)).astype(
        np.int64
    )


def _judge(layout: Layout, depth: int, steps: list[Step], home: set[int]) -> LeafPlacement:
    leaves = sorted(layout.leaves_of(row for _, row, _ in steps) | home)
    unlabelled = int(not layout.aligned[leaves].all())
    return LeafPlacement((unlabelled, len(leaves), leaves[-1] - leaves[0], leaves[0]), depth, len(leaves), steps)


def by_leaf(layout: Layout, values: Int64) -> Int64:
    """Return the sum of each leaf (int64[leaves]) of values by row."""
    sums = np.zeros(len(layout.paths), np.int64)
    sum_ranges(np.ascontiguousarray(values), layout.order, layout.offsets, sums)
    return sums
