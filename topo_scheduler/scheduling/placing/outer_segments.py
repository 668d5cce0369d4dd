"""Placement rules of gangs whose segments lie in domains above the leaf.

The planner places such a gang on the fabric down to the level of its segments, where leaves don't exist. So it knows
the number of leaves only after it has chosen nodes. A rule may allow fewer leaves, or ask for a domain inside that of a
segment. Then the planner uses narrower queries that keep each segment together in another way.
"""

from collections.abc import Iterator
from dataclasses import replace

from topo_scheduler.scheduling.placing.model.placement_query import (
    NO_SEGMENTS,
    Placement,
    PlacementFailure,
    PlacementQuery,
    SpreadLimits,
)
from topo_scheduler.state.topology.fabric import Layout


def breaks_bounds(query: PlacementQuery, layout: Layout, placement: Placement) -> bool:
    """Return whether a placement breaks the limit on leaves in the bounds, while the running members keep it."""
    limit = query.bounds.leaves
    return 0 < limit < len(placement.leaves) and len(layout.leaves_of(query.running)) <= limit


def narrower_asks(query: PlacementQuery, layout: Layout) -> Iterator[PlacementQuery]:
    """Yield queries that keep segments whole and count leaves: all in one domain, then each segment in one leaf."""
    if query.bounds.depth < query.segments.depth and not query.bounds.leaves:
        return
    outer, bounds = layout.outer(query.segments.depth), query.bounds
    if len(outer.leaves_of(query.running)) <= 1:
        depth = min(max(bounds.depth, query.segments.depth), layout.depth - 1)
        # If the running members break the bounds, only ``within`` keeps the other members near their segments.
        within = max(query.within, query.segments.depth) if query.running else query.within
        yield replace(query, segments=NO_SEGMENTS, bounds=SpreadLimits(bounds.leaves, depth), within=within)
    if not query.running:
        yield replace(query, segments=replace(query.segments, depth=0))


def rule_outside(outcome: Placement | PlacementFailure, depth: int) -> Placement | PlacementFailure:
    """Return an outcome with its size rule converted to the fabric down to ``depth``, the level of the segments."""
    if outcome.rule is None:
        return outcome
    return replace(outcome, rule=replace(outcome.rule, depth=min(outcome.rule.depth, depth - 1)))
