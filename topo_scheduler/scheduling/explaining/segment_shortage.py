"""Why a gang in segments has no place: how many of them fit, and which leaf takes how many."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from topo_scheduler.api.words import few_of, plural
from topo_scheduler.scheduling.explaining.dominant import names_of
from topo_scheduler.scheduling.placing import packing
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.kinds import SegmentShapes, kinds_of
from topo_scheduler.scheduling.placing.mixed import variants
from topo_scheduler.scheduling.placing.packing import Frontier, LeafRoom, TooMuch, VectorBudget
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.segment_packing import SegmentPacker
from topo_scheduler.scheduling.placing.size_rule import in_words, leaf_fits, named_at
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout

MOST_NAMED: Final = 8
"""Leaves that are named at most."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """Segments that fit: of ``needed``, ``anywhere`` on nodes of one GPU model, and ``held`` by the leaves that hold
    most of the domain of the rule that holds most, as pairs of leaf and segments.
    """

    needed: int
    anywhere: int
    held: Sequence[tuple[int, int]]

    @property
    def together(self) -> int:
        """Segments that fit in that domain."""
        return sum(count for _, count in self.held)


def segment_shortage(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> str:
    """Return why segments have no place, without a full stop; empty where this can't be said so.

    Args:
        planner: on the state as it is.
        ask: a gang in segments, of which nothing runs.
        layout: the fabric down to the level of the segments.
        rule: the size rule.
    """
    found = _parts(planner, ask, layout, rule) if ask.segments.parts else _alike(planner, ask, layout, rule)
    if found is None or found.together >= found.needed:
        return ""
    names = names_of(layout, tuple(leaf for leaf, _ in found.held))
    some = [f"{name} takes {count}" for name, (_, count) in zip(names, found.held, strict=True)]
    takes = few_of(some, MOST_NAMED)
    each = f" of {ask.segment} pods" if ask.segment > 1 else ""
    fit = "fits" if found.anywhere == 1 else "fit"
    told = f"{found.anywhere or 'no'} segment{'' if found.anywhere == 1 else 's'}{each} {fit}, {found.needed}"
    told += f" {'is' if found.needed == 1 else 'are'} needed"
    if found.anywhere > found.together and found.held:
        told += f", and {_where(layout, rule)} no more than {found.together}"
    return f"{told}: {takes}" if takes else told


def _where(layout: Layout, rule: SizeRule) -> str:
    if rule.leaves == 1:
        return f"in one {in_words(rule.domain, layout)}"
    return f"in {rule.leaves} {plural(layout.levels[-1])}" + (f" under one {rule.domain}" if rule.depth else "")


def _alike(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> Fitting | None:
    best: Fitting | None = None
    named = named_at(layout, ask.within) if ask.within > 0 else 1
    for view in planner.views_for(ask):
        fits = leaf_fits(view, layout, planner.limits_for(ask), segment=ask.segment) * named
        held: list[tuple[int, int]] = []
        for first, last in pairwise(layout.domains[_depth(layout, rule)].tolist()):
            most = np.argsort(-fits[first:last], kind="stable")[: rule.leaves]
            some = [(first + int(at), int(fits[first + at])) for at in most if fits[first + at]]
            if sum(count for _, count in some) > sum(count for _, count in held):
                held = some
        found = Fitting(ask.units, int(fits.sum()), held)
        if best is None or (found.together, found.anywhere) > (best.together, best.anywhere):
            best = found
    return best


def _parts(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> Fitting | None:
    """The same for segments of several kinds, where they are few enough to be counted."""
    numbers = {number for part in ask.segments.parts for number in part} - {-1}
    kinds = kinds_of(ask, numbers)
    best: Fitting | None = None
    for views in variants(planner, ask):
        packer = SegmentPacker(planner, ask, layout, planner.nodes.requested, kinds, empty=False)
        packer.budget([views])
        try:
            leaves = [packer.counted(0, views, leaf) for leaf in range(len(layout.paths))] if kinds.countable else []
            budget = packer.budget(())
            anywhere = _most(_sum(leaves, kinds, budget))
            held: list[tuple[int, int]] = []
            for first, last in pairwise(layout.domains[_depth(layout, rule)].tolist()):
                some = _in_domain(leaves[first:last], first, rule.leaves, kinds, budget)
                if sum(count for _, count in some) > sum(count for _, count in held):
                    held = some
        except TooMuch:
            return None
        if not leaves:
            return None
        found = Fitting(len(numbers), anywhere, held)
        if best is None or (found.together, found.anywhere) > (best.together, best.anywhere):
            best = found
    return best


def _in_domain(
    leaves: Sequence[Frontier], first: int, most: int, kinds: SegmentShapes, budget: VectorBudget
) -> list[tuple[int, int]]:
    """Return the leaves of a domain, in so many of which most segments fit, and how many are in each."""
    order = sorted(range(len(leaves)), key=lambda at: (-_most(leaves[at]), at))[:most]
    order = [at for at in order if _most(leaves[at])]
    chosen = tuple(leaves[at] for at in order)
    together = max(_sum(chosen, kinds, budget), key=lambda counts: (sum(counts), counts))
    seats = packing.seat(LeafRoom(tuple(order), chosen), together, budget)
    return sorted(((first + at, sum(counts)) for at, counts in seats), key=lambda one: (-one[1], one[0]))


def _sum(leaves: Sequence[Frontier], kinds: SegmentShapes, budget: VectorBudget) -> Frontier:
    found: Frontier = (tuple(0 for _ in kinds.counts),)
    for one in leaves:
        found = packing.add(found, one, kinds.counts, budget)
    return found


def _most(frontier: Frontier) -> int:
    return max(sum(counts) for counts in frontier)


def _depth(layout: Layout, rule: SizeRule) -> int:
    return layout.depth if rule.leaves == 1 else rule.depth
