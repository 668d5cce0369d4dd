"""The search for a place of a gang whose members are seated one by one: which leaves, beginning where.

Each member is tried with those before it counted as if they ran, so what is found holds in the order in which it was
found. Where a member finds no place, the last choices are taken back and made otherwise. The search is bounded: beyond
that such a gang may wait where an exact search would place it; what is placed always holds.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from topo_scheduler.kernels.fit import sum_ranges
from topo_scheduler.scheduling.placing import tied_segments
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.equals import EqualSearch as EqualSearch
from topo_scheduler.scheduling.placing.mixed import bound
from topo_scheduler.scheduling.placing.packer import FEW_NODES
from topo_scheduler.scheduling.placing.repair import distance
from topo_scheduler.scheduling.placing.seating import SearchState, Seating, Spots, Step
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import named_at
from topo_scheduler.scheduling.placing.tied_zones import Zones, zones_of
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge_rows

LOOKS: Final = 400
"""Looks around that may lead nowhere in one search."""
LOOKS_ON_FEW: Final = 4000
"""The same where few nodes could take a member: for a gang in segments, and in a small cluster for any."""
ROWS_SEEN: Final = 256_000
"""Nodes that all looks of a search cover at most where that allows more than `LOOKS`."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where the members went, in turn."""

    order: tuple[int, int, int, int]
    depth: int
    leaves: int
    steps: list[Step]


def look(search: "ConstrainedSearch", *, rule: SizeRule | None = None, at: int | None = None) -> Found | None:
    """Look domain by domain, the innermost level first; the best of a level is taken. ``at`` the only level to look."""
    ask, layout, home = search.ask, search.layout, search.home
    search.allow()
    if rule is not None and not home:
        found = search.within(rule.depth, rule.leaves)
        return found if found is None or not search.few else search.nearer(found)
    within = bound(layout, ask.within, home)
    if within >= layout.depth:
        return search.within(layout.depth - 1, 1)
    for depth in range(layout.depth - 1, max(within, ask.bounds.depth) - 1, -1):
        if at is not None and depth != at:
            continue
        search.allow()
        found = search.within(depth, ask.bounds.leaves or len(layout.paths))
        if found is not None:
            return found if home else search.nearer(found)
    return None


class ConstrainedSearch:
    """One search with its bounds."""

    def __init__(
        self, site: PlanningContext, grounds: Sequence[SearchState], ask: PlacementQuery, layout: Layout, home: set[int]
    ) -> None:
        self._site = site
        self._grounds = [(ground, ceilings_of(ground, ask, layout)) for ground in grounds]
        self.ask = ask
        self.layout = layout
        self.home = home
        self._looks = 0
        self._steps = tied_segments.Steps()
        usable = [(np.max(ground.fit, axis=0) > 0).sum() for ground in grounds]
        self.few = max(usable, default=0) <= FEW_NODES
        """Whether few nodes could take a member."""

    def allow(self) -> None:
        """Allow so many looks from now on."""
        self._steps = tied_segments.Steps()
        looks = LOOKS
        if self.few:
            small = min(LOOKS_ON_FEW, ROWS_SEEN // max(1, self._site.nodes.rows))
            looks = LOOKS_ON_FEW if self.ask.in_segments else max(LOOKS, small)
        self._looks = looks + 2 * self.ask.members

    def within(self, depth: int, most: int) -> Found | None:
        """Return the best place in so many leaves of one domain of a level."""
        best: Found | None = None
        for ground, ceilings in self._grounds:
            for domain in self._domains(depth, most, ground, ceilings):
                for start in self._starts(ground, ceilings, domain, most):
                    if self._looks <= 0:
                        return best
                    steps = self._try(ground, domain, most, start)
                    if steps is None:
                        continue
                    found = _judge(self.layout, depth, steps, self.home)
                    best = found if best is None else min(best, found, key=lambda one: one.order)
                    if isinstance(start, Spots) and self.few:
                        break  # of this domain there is none that is better
                    if not found.order[0]:
                        return best  # others may be nearer to each other; looking for them is not worth the time
        return best

    def nearer(self, found: Found) -> Found:
        """Return a place in fewer leaves of the same level, ``found`` where there is none.

        The first that was found may use more leaves than it must, and pods that are there may let a gang use fewer
        than it could in an empty cluster.
        """
        self.allow()
        fewer = (self.within(found.depth, most) for most in range(1, found.leaves))
        return next((one for one in fewer if one is not None), found)

    def among(self, depth: int, rule: SizeRule) -> EqualSearch[Found]:
        """Return how the places of a level are compared: all of them together may take as many looks as one search."""
        self.allow()
        self._looks = LOOKS_ON_FEW if self.few else self._looks
        ground, _ = self._grounds[0]
        held = np.max([np.stack(ceilings) for _, ceilings in self._grounds], axis=0)

        def rows_of(found: Found) -> list[list[int]]:
            return [[row for group, row, _ in found.steps if group == at] for at in range(len(self.ask.groups))]

        return EqualSearch(
            depth, rule, ground.views[0], ground.fit[0], held, self.few, partial(self._hold, depth), rows_of
        )

    def _hold(self, depth: int, leaves: Sequence[int]) -> Found | None:
        inside = np.isin(self.layout.leaf_of_row, leaves)
        grounds = [replace(ground, fit=[np.where(inside, fit, 0) for fit in ground.fit]) for ground, _ in self._grounds]
        search = ConstrainedSearch(self._site, grounds, self.ask, self.layout, self.home)
        search._looks, search._steps = self._looks, self._steps
        found = search.within(depth, len(leaves))
        self._looks = search._looks
        return found

    def _try(self, ground: SearchState, domain: tuple[int, int], most: int, start: int | Spots) -> list[Step] | None:
        ask, layout = self.ask, self.layout
        if isinstance(start, int):
            seating = Seating(self._site, ground, ask, layout, domain, most, start, self.home)
        else:
            used = {*start.leaves} | self.home
            seating = Seating(self._site, ground, ask, layout, domain, len(used), -1, used, start)
        steps = seating.run(self._looks)
        self._looks -= seating.looks if steps is None else 0
        return steps

    def _domains(
        self, depth: int, most: int, ground: SearchState, ceilings: Sequence[Int64]
    ) -> Iterator[tuple[int, int]]:
        """Yield the domains that may hold every group alone: preferred ones first, then those with least room."""
        layout, groups = self.layout, self.ask.groups
        offsets = layout.domains[depth]
        room = np.add.reduceat(np.sum(ceilings, axis=0), offsets[:-1])
        low, high = self.ask.preferred or (0, 0)
        for index in sorted(range(len(room)), key=lambda at: (not low <= offsets[at] < high, int(room[at]), at)):
            first, last = int(offsets[index]), int(offsets[index + 1])
            if not all(first <= leaf < last for leaf in self.home):
                continue
            if any(
                int(np.sort(ceiling[first:last])[-most:].sum()) < count
                for ceiling, (_, count) in zip(ceilings, groups, strict=True)
            ):
                continue
            rows = layout.order[layout.offsets[first] : layout.offsets[last]]
            if all(ground.ceiling(group, rows, all_here=True) >= count for group, (_, count) in enumerate(groups)):
                yield first, last

    def _starts(
        self, ground: SearchState, ceilings: Sequence[Int64], domain: tuple[int, int], most: int
    ) -> Iterator[int | Spots]:
        """Yield leaves to begin in, or what is settled of where members go, where it can be counted before."""
        zones = None if self.home else zones_of(ground, self.ask, self.layout, domain)
        if self.ask.segments.parts:
            yield from self._of_segments(ceilings, domain, most, zones)
            return
        if zones is not None:
            found = False
            for spots in zones.sets(self.ask.members, most, self._steps):
                found = True
                yield spots
            if not found and zones.whole and self._steps.left >= 0:
                return  # there is no place
        yield from self._leaves(ground, ceilings, domain)

    def _of_segments(
        self, ceilings: Sequence[Int64], domain: tuple[int, int], most: int, zones: Zones | None
    ) -> Iterator[Spots]:
        leaves, home = list(range(*domain)), sorted(self.home)
        if home:
            leaves.sort(key=lambda leaf: (*distance(self.layout, leaf, home), leaf))
        if zones is not None:
            low, high = domain
            ceilings = [ceilings[0].copy()]
            held = [np.minimum(zones.room, share.most).sum(axis=1) for share in zones.shares]
            ceilings[0][low:high] = np.minimum(ceilings[0][low:high], np.max(held, axis=0)) if held else 0
        for places in tied_segments.ways(
            self.ask, tied_segments.SegmentDomains(ceilings, leaves, home), most, self._steps
        ):
            if zones is None:
                yield Spots(places, sorted({leaf for part in places for leaf in part}))
            else:
                yield from zones.shared(places[0], self._steps)

    def _leaves(self, ground: SearchState, ceilings: Sequence[Int64], domain: tuple[int, int]) -> list[int]:
        """Return the leaves to begin in: labelled ones, then those that hold most of the gang, then the tightest."""
        if self.home:
            return [min(self.home)]
        low, high = domain
        held = np.sum(ceilings, axis=0)[low:high]
        room = np.sum([_by_leaf(self.layout, fit) for fit in ground.fit], axis=0)[low:high]
        order = np.lexsort((np.arange(high - low), room, -held, 1 - self.layout.aligned[low:high]))
        return [low + int(at) for at in order if held[at]]


def ceilings_of(ground: SearchState, ask: PlacementQuery, layout: Layout) -> list[Int64]:
    """How many of each group a leaf holds at most (int64[leaves] each)."""
    found = []
    for group, (_, count) in enumerate(ask.groups):
        constraints = ground.classes[group].constraints
        ceiling = np.minimum(_by_leaf(layout, ground.fit[group]), count)
        for key in constraints.apart if constraints is not None else ():
            ceiling = np.minimum(ceiling, _apart_by_leaf(ground, layout, group, key))
        found.append(ceiling * named_at(layout, ask.within) if ask.within else ceiling)
    return found


def _apart_by_leaf(ground: SearchState, layout: Layout, group: int, key: str) -> Int64:
    """How many of a group that keep apart over a label a leaf holds: one for each value, and all without the label."""
    charge_rows(len(layout.leaf_of_row), 20)
    leaves, fit, column = layout.leaf_of_row, ground.fit[group], ground.around.nodes.label_column(key)
    usable = (fit > 0) & (leaves >= 0)
    bare, labelled = usable & (column == UNKNOWN), usable & (column != UNKNOWN)
    values = len(ground.around.nodes.values) + 1
    pairs = np.unique(leaves[labelled] * values + column[labelled]) // values
    most = np.bincount(pairs, minlength=len(layout.paths))
    return most + np.bincount(leaves[bare], weights=fit[bare], minlength=len(layout.paths)).astype(np.int64)


def _judge(layout: Layout, depth: int, steps: list[Step], home: set[int]) -> Found:
    leaves = sorted(layout.leaves_of(row for _, row, _ in steps) | home)
    unlabelled = int(not layout.aligned[leaves].all())
    return Found((unlabelled, len(leaves), leaves[-1] - leaves[0], leaves[0]), depth, len(leaves), steps)


def _by_leaf(layout: Layout, values: Int64) -> Int64:
    out = np.zeros(len(layout.paths), np.int64)
    sum_ranges(np.ascontiguousarray(values), layout.order, layout.offsets, out)
    return out
