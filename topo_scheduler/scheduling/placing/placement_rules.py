"""Placement rules: limits on the spread of a gang in addition to the size rule, from the configuration and plugins.

A placement rule narrows what the size rule allows. The size rule is then the fewest leaves, at the deepest level
*within* the placement rule, that could hold the gang. A gang that takes the next best spread (``enforcement:
preferred``) stays within the placement rule as well. A placement rule may apply only to gangs that need a number of
nodes or more. The size rule without placement rules gives the number of nodes of a gang.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.extensions.extension import Demand, Gang
from topo_scheduler.scheduling.placing.constrained import constrained_gang
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous import heterogeneous_gang
from topo_scheduler.scheduling.placing.model.placement_query import (
    ANYWHERE,
    Placement,
    PlacementFailure,
    PlacementQuery,
    SpreadLimits,
)
from topo_scheduler.scheduling.placing.model.second_tree import convert_outcome, convert_query, layout_with_levels
from topo_scheduler.scheduling.placing.model.segments import seen_by
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.topology_merge import depth_in

Plan = Callable[[PlacementQuery, Layout, float], Placement | PlacementFailure]
"""Finds the best placement within the bounds of a query."""


def plan_with_rules(
    context: PlanningContext, plan: Plan, query: PlacementQuery, layout: Layout, now: float
) -> Placement | PlacementFailure:
    """Find the best placement within the rules. If none exists, try again without the preferred rules.

    Raises:
        PluginError: the size rule of a plugin failed.
    """
    demands = _demands(context, query, layout)
    required = [demand for demand in demands if demand.required]
    for demand in required:
        if demand.level and demand.level not in layout.every_level:
            return PlacementFailure(
                f"{demand.name} asks for {demand_text(demand)}, and no node has a label for a level called"
                f" {demand.level}; there are {', '.join(layout.every_level)}"
            )
    required = list(_kept_by(query, layout, required))
    applicable = list(
        _kept_by(
            query, layout, [demand for demand in demands if not demand.level or demand.level in layout.every_level]
        )
    )
    required_scope = _where(query, required, layout)
    outcome: Placement | PlacementFailure = PlacementFailure("")
    elsewhere: tuple[SizeRule, tuple[str, ...]] | None = None
    for bounds, scoped_layout in {
        (scope[0], scope[1].woven): scope for scope in (_where(query, applicable, layout), required_scope)
    }.values():
        bounded = replace(convert_query(query, layout, scoped_layout), bounds=bounds)
        outcome = plan(bounded, scoped_layout, now)
        if isinstance(outcome, Placement):
            enforced_bounds = ANYWHERE
            if not query.running:
                enforced_bounds = SpreadLimits(
                    required_scope[0].leaves, depth_in(required_scope[1], scoped_layout, required_scope[0].depth)
                )
            return convert_outcome(replace(outcome, bounds=enforced_bounds), bounded, scoped_layout, layout)
        elsewhere = (
            (outcome.rule, scoped_layout.woven)
            if outcome.rule is not None and scoped_layout.cut != layout.cut
            else None
        )
        outcome = convert_outcome(outcome, bounded, scoped_layout, layout)
    if required_scope[0] != ANYWHERE and isinstance(plan(query, layout, now), Placement):
        names = " and ".join(f"{demand.name} asks for {demand_text(demand)}" for demand in required)
        if outcome.rule is None:
            reason = "not even the empty cluster holds the gang so"
        else:
            reason = f"no such place {'was found' if query.in_segments and query.segments.depth else 'is free'}"
        return PlacementFailure(f"{names}, and {reason}; without that there is room", outcome.rule, elsewhere=elsewhere)
    return outcome


def _kept_by(query: PlacementQuery, layout: Layout, demands: Iterable[Demand]) -> Iterator[Demand]:
    """Yield the demands, without a level that the running members break already: new members can't repair that."""
    for demand in demands:
        if not (demand.level and query.running):
            yield demand
            continue
        joined_layout = layout_with_levels(query, layout, (demand.level,))
        domains = joined_layout.outer(joined_layout.levels.index(demand.level) + 1).leaf_of_row[
            np.asarray(query.running, np.int64)
        ]
        if int(domains.min()) >= 0 and int(domains.min()) == int(domains.max()):
            yield demand
        elif demand.leaves:
            yield replace(demand, level="")


def _where(query: PlacementQuery, demands: Sequence[Demand], layout: Layout) -> tuple[SpreadLimits, Layout]:
    """Return the bounds that demands set, and the fabric with their levels."""
    joined_layout = layout_with_levels(query, layout, (demand.level for demand in demands))
    bounds = bounds_of(demands, joined_layout)
    # All members share one leaf of the network, which this fabric divides into parts.
    return (
        SpreadLimits(0, bounds.depth)
        if joined_layout.cut and joined_layout.cut == joined_layout.network.levels[-1]
        else bounds
    ), joined_layout


def bounds_of(demands: Iterable[Demand], layout: Layout) -> SpreadLimits:
    """Return the bounds that several demands set together; their levels must exist."""
    leaves, depth = 0, 0
    for demand in demands:
        fewest = demand.leaves
        if demand.level:
            level = layout.levels.index(demand.level) + 1
            if level == layout.depth:
                # One domain of the innermost level is one leaf.
                level, fewest = layout.depth - 1, 1
            depth = max(depth, level)
        if fewest:
            leaves = min(leaves or fewest, fewest)
    return SpreadLimits(leaves, depth)


def demand_text(demand: Demand) -> str:
    """Return the text of what a demand asks for."""
    leaves = f"at most {demand.leaves} {'leaf' if demand.leaves == 1 else 'leaves'}" if demand.leaves else "all leaves"
    return f"{leaves} in 1 {demand.level}" if demand.level else leaves


def _demands(context: PlanningContext, query: PlacementQuery, layout: Layout) -> list[Demand]:
    """Return the demands on this gang: the first required and first preferred one configured, and all of plugins."""
    nodes, leaves = _needed(context, query, layout)
    fitting = [demand for demand in query.demands if demand.nodes <= nodes]
    demands = [
        demand
        for required in (True, False)
        for demand in [configured for configured in fitting if configured.required is required][:1]
    ]
    gang = Gang(query.groups[0][0], query.total, nodes, leaves, layout.levels)
    return demands + [demand for demand in context.around.extensions.demands(gang) if demand.nodes <= nodes]


def _needed(context: PlanningContext, query: PlacementQuery, layout: Layout) -> tuple[int, int]:
    """Return the nodes and leaves that a gang needs by the size rule alone; without a rule, one node per pod."""
    layout = seen_by(query, layout)
    query = replace(query, within=min(query.within, layout.depth))
    task = PlanningTask(context, query, layout)
    if constrained_gang.is_constrained(query.groups):
        rule = constrained_gang.rule_of(task)
    elif query.segments.parts:
        rule = heterogeneous_gang.rule_of(task, heterogeneous_gang.variants(context, query))
    else:
        rule, _ = context.rule(context.views_for(query), query, layout)
    nodes, leaves = (rule.nodes, rule.leaves) if rule is not None else (query.total, len(layout.paths))
    if len(query.groups) > 1 and not constrained_gang.is_constrained(query.groups):
        mixed_rule = heterogeneous_gang.rule_of(task, heterogeneous_gang.variants(context, query))
        nodes = mixed_rule.nodes if mixed_rule is not None else query.total
    return nodes, leaves
