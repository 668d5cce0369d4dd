"""Why a gang in segments has no place: how many segments fit, and how many each leaf takes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from topo_scheduler.api.text import few_of, plural
from topo_scheduler.scheduling.explaining.dominant import largest_block, names_of
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import variants
from topo_scheduler.scheduling.placing.heterogeneous.segment_packing import SegmentPacker
from topo_scheduler.scheduling.placing.model import packing
from topo_scheduler.scheduling.placing.model.packing import Frontier, LeafRoom, SearchExhausted, VectorBudget
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.segment_shapes import SegmentShapes, kinds_of
from topo_scheduler.scheduling.placing.model.size_rule import domain_depth, in_words
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.topology.fabric import Layout

MAX_NAMED_LEAVES: Final = 8
"""Leaves that the reason names at most."""


@dataclass(frozen=True, slots=True)
class Fitting:
    """Segments that fit.

    Attributes:
        needed: segments of the gang.
        anywhere: segments that fit in the cluster, on nodes of one GPU model.
        held: pairs of leaf and segments that fit there, for the fullest leaves of the domain that takes most.
    """

    needed: int
    anywhere: int
    held: Sequence[tuple[int, int]]

    @property
    def together(self) -> int:
        """Segments that fit in the domain that takes most."""
        return sum(count for _, count in self.held)


def segment_shortage(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> str:
    """Return why segments have no place, without a full stop. Empty where no such reason applies.

    Args:
        planner: on the state as it is.
        ask: a gang in segments, of which no member runs.
        layout: the fabric down to the level of the segments.
        rule: the size rule.
    """
    fitting = (
        _mixed_segments(planner, ask, layout, rule)
        if ask.segments.parts
        else _uniform_segments(planner, ask, layout, rule)
    )
    if fitting is None or fitting.together >= fitting.needed:
        return ""
    names = names_of(layout, tuple(leaf for leaf, _ in fitting.held))
    leaf_texts = [f"{name} takes {count}" for name, (_, count) in zip(names, fitting.held, strict=True)]
    leaves_text = few_of(leaf_texts, MAX_NAMED_LEAVES)
    size_text = f" of {ask.segment} pods" if ask.segment > 1 else ""
    verb = "fits" if fitting.anywhere == 1 else "fit"
    text = (
        f"{fitting.anywhere or 'no'} segment{'' if fitting.anywhere == 1 else 's'}{size_text} {verb}, {fitting.needed}"
    )
    text += f" {'is' if fitting.needed == 1 else 'are'} needed"
    if fitting.anywhere > fitting.together and fitting.held:
        text += f", and {_domain_text(layout, rule)} no more than {fitting.together}"
    return f"{text}: {leaves_text}" if leaves_text else text


def _domain_text(layout: Layout, rule: SizeRule) -> str:
    if rule.leaves == 1:
        return f"in one {in_words(rule.domain, layout)}"
    return f"in {rule.leaves} {plural(layout.levels[-1])}" + (f" under one {rule.domain}" if rule.depth else "")


def _uniform_segments(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> Fitting | None:
    best: Fitting | None = None
    for view in planner.views_for(ask):
        block = largest_block(planner, view, ask, layout, rule, ask.segment)
        fitting = Fitting(ask.units, block.anywhere, list(zip(block.leaves, block.held, strict=True)))
        if best is None or (fitting.together, fitting.anywhere) > (best.together, best.anywhere):
            best = fitting
    return best


def _mixed_segments(planner: Planner, ask: PlacementQuery, layout: Layout, rule: SizeRule) -> Fitting | None:
    """Return the same for segments of several kinds; None where there are too many kinds to count."""
    numbers = {number for part in ask.segments.parts for number in part} - {-1}
    kinds = kinds_of(ask, numbers)
    best: Fitting | None = None
    for views in variants(planner, ask):
        packer = SegmentPacker(PlanningTask(planner, ask, layout), planner.nodes.requested, kinds, empty=False)
        packer.budget([views])
        try:
            leaves = [packer.leaf(0, views, leaf) for leaf in range(len(layout.paths))] if kinds.countable else []
            budget = packer.budget(())
            anywhere = _max_segments(_combined_frontier(leaves, kinds, budget))
            held: list[tuple[int, int]] = []
            for first, last in pairwise(layout.domains[domain_depth(layout, rule)].tolist()):
                best_leaves = _in_domain(leaves[first:last], first, rule.leaves, kinds, budget)
                if sum(count for _, count in best_leaves) > sum(count for _, count in held):
                    held = best_leaves
        except SearchExhausted:
            return None
        if not leaves:
            return None
        fitting = Fitting(len(numbers), anywhere, held)
        if best is None or (fitting.together, fitting.anywhere) > (best.together, best.anywhere):
            best = fitting
    return best


def _in_domain(
    leaves: Sequence[Frontier], first: int, leaf_limit: int, kinds: SegmentShapes, budget: VectorBudget
) -> list[tuple[int, int]]:
    """Return the leaves of a domain that take most segments, at most ``leaf_limit`` of them, with the segments in each.

    Args:
        leaves: what each leaf of the domain takes.
        first: index of the first leaf of the domain.
        leaf_limit: leaves that the gang may use.
        kinds: segments of the gang by kind.
        budget: bounds the work.
    """
    order = sorted(range(len(leaves)), key=lambda leaf: (-_max_segments(leaves[leaf]), leaf))[:leaf_limit]
    order = [leaf for leaf in order if _max_segments(leaves[leaf])]
    chosen = tuple(leaves[leaf] for leaf in order)
    together = max(_combined_frontier(chosen, kinds, budget), key=lambda counts: (sum(counts), counts))
    seats = packing.seat(LeafRoom(tuple(order), chosen), together, budget)
    return sorted(((first + leaf, sum(counts)) for leaf, counts in seats), key=lambda item: (-item[1], item[0]))


def _combined_frontier(leaves: Sequence[Frontier], kinds: SegmentShapes, budget: VectorBudget) -> Frontier:
    frontier: Frontier = (tuple(0 for _ in kinds.counts),)
    for leaf in leaves:
        frontier = packing.add(frontier, leaf, kinds.counts, budget)
    return frontier


def _max_segments(frontier: Frontier) -> int:
    return max(sum(counts) for counts in frontier)
