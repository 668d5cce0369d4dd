"""Placement rules of gangs whose segments lie in domains above the leaf.

Such a gang is planned on the fabric down to the level of its segments, where leaves don't exist: how many of them it
takes is known only when it has its nodes. Where they are more than a rule allows, or the rule asks for a domain further
in than that of a segment, it is planned in ways that keep each segment whole for another reason.
"""

from collections.abc import Iterator
from dataclasses import replace

from topo_scheduler.scheduling.placing.ask import NO_SEGMENTS, Placement, PlacementFailure, PlacementQuery, SpreadLimits
from topo_scheduler.state.fabric import Layout


def breaks_bounds(ask: PlacementQuery, layout: Layout, found: Placement) -> bool:
    """Return whether a placement takes more leaves than the bounds of an ask allow, which those that run keep."""
    most = ask.bounds.leaves
    return 0 < most < len(found.leaves) and len(layout.leaves_of(ask.running)) <= most


def narrower_asks(ask: PlacementQuery, layout: Layout) -> Iterator[PlacementQuery]:
    """Yield asks that keep the segments whole and are counted in leaves: all in one domain, then each in one leaf."""
    if ask.bounds.depth < ask.segments.depth and not ask.bounds.leaves:
        return
    outer, bounds = layout.outer(ask.segments.depth), ask.bounds
    if len(outer.leaves_of(ask.running)) <= 1:
        depth = min(max(bounds.depth, ask.segments.depth), layout.depth - 1)
        # Where those that run keep to no bounds, nothing else would hold the others near their segments.
        within = max(ask.within, ask.segments.depth) if ask.running else ask.within
        yield replace(ask, segments=NO_SEGMENTS, bounds=SpreadLimits(bounds.leaves, depth), within=within)
    if not ask.running:
        yield replace(ask, segments=replace(ask.segments, depth=0))


def rule_outside(found: Placement | PlacementFailure, depth: int) -> Placement | PlacementFailure:
    """Return what was found in leaves with its rule as it is on the fabric down to a level, that of the segments."""
    if found.rule is None:
        return found
    return replace(found, rule=replace(found.rule, depth=min(found.rule.depth, depth - 1)))
