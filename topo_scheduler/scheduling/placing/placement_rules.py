"""Rules on how far a gang may spread, beside the size rule: of the configuration, and of plugins.

A rule narrows what the size rule allows. The size rule is then the fewest leaves of the deepest level *within* the rule
that could hold the gang; a gang that takes the next best spread (``enforcement: preferred``) stays within it as well.
Whether a gang needs as many nodes as a rule is for is told by the size rule without any.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.extensions.extension import Demand, Gang
from topo_scheduler.scheduling.placing import mixed, tied
from topo_scheduler.scheduling.placing.ask import ANYWHERE, Placement, PlacementFailure, PlacementQuery, SpreadLimits
from topo_scheduler.scheduling.placing.second_tree import brought_back, joined, moved
from topo_scheduler.scheduling.placing.segments import seen_by
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.state.crossing import depth_in
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout

Plan = Callable[[PlacementQuery, Layout, float], Placement | PlacementFailure]
"""Finds the best place within the bounds of an ask."""


def plan_with_rules(
    site: PlanningContext, plan: Plan, ask: PlacementQuery, layout: Layout, now: float
) -> Placement | PlacementFailure:
    """Find the best place within the rules; preferred ones are tried first, then done without.

    Raises:
        PluginError: the size rule of a plugin failed.
    """
    demands = _demands(site, ask, layout)
    required = [demand for demand in demands if demand.required]
    for demand in required:
        if demand.level and demand.level not in layout.every_level:
            return PlacementFailure(
                f"{demand.name} asks for {asked(demand)}, and no node has a label for a level called {demand.level};"
                f" there are {', '.join(layout.every_level)}"
            )
    required = list(_kept_by(ask, layout, required))
    known = list(_kept_by(ask, layout, [one for one in demands if not one.level or one.level in layout.every_level]))
    must = _where(ask, required, layout)
    outcome: Placement | PlacementFailure = PlacementFailure("")
    elsewhere: tuple[SizeRule, tuple[str, ...]] | None = None
    for bounds, there in {(where[0], where[1].woven): where for where in (_where(ask, known, layout), must)}.values():
        inside = replace(moved(ask, layout, there), bounds=bounds)
        outcome = plan(inside, there, now)
        if isinstance(outcome, Placement):
            kept = ANYWHERE
            if not ask.running:
                kept = SpreadLimits(must[0].leaves, depth_in(must[1], there, must[0].depth))
            return brought_back(replace(outcome, bounds=kept), inside, there, layout)
        elsewhere = (outcome.rule, there.woven) if outcome.rule is not None and there.cut != layout.cut else None
        outcome = brought_back(outcome, inside, there, layout)
    if must[0] != ANYWHERE and isinstance(plan(ask, layout, now), Placement):
        names = " and ".join(f"{demand.name} asks for {asked(demand)}" for demand in required)
        if outcome.rule is None:
            why = "not even the empty cluster holds the gang so"
        else:
            why = f"no such place {'was found' if ask.in_segments and ask.segments.depth else 'is free'}"
        return PlacementFailure(f"{names}, and {why}; without that there is room", outcome.rule, elsewhere=elsewhere)
    return outcome


def _kept_by(ask: PlacementQuery, layout: Layout, demands: Iterable[Demand]) -> Iterator[Demand]:
    """Yield demands without the levels that members which run don't share: the others can't mend that."""
    for demand in demands:
        if not (demand.level and ask.running):
            yield demand
            continue
        there = joined(ask, layout, (demand.level,))
        shared = there.outer(there.levels.index(demand.level) + 1).leaf_of_row[np.asarray(ask.running, np.int64)]
        if int(shared.min()) >= 0 and int(shared.min()) == int(shared.max()):
            yield demand
        elif demand.leaves:
            yield replace(demand, level="")


def _where(ask: PlacementQuery, demands: Sequence[Demand], layout: Layout) -> tuple[SpreadLimits, Layout]:
    """Return the fabric that has the levels of some demands, and what they leave of it."""
    there = joined(ask, layout, (demand.level for demand in demands))
    bounds = bounds_of(demands, there)
    # All within one leaf of the network, which is in parts there.
    return (SpreadLimits(0, bounds.depth) if there.cut and there.cut == there.network.levels[-1] else bounds), there


def bounds_of(demands: Iterable[Demand], layout: Layout) -> SpreadLimits:
    """Return what several demands leave; their levels must exist."""
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


def asked(demand: Demand) -> str:
    """Return what a demand asks for, in words."""
    leaves = f"at most {demand.leaves} {'leaf' if demand.leaves == 1 else 'leaves'}" if demand.leaves else "all leaves"
    return f"{leaves} in 1 {demand.level}" if demand.level else leaves


def _demands(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> list[Demand]:
    """Return the demands on this gang: the first of the configuration of each kind, and all of plugins."""
    nodes, leaves = _needed(site, ask, layout)
    fitting = [demand for demand in ask.demands if demand.nodes <= nodes]
    found = [demand for kind in (True, False) for demand in [one for one in fitting if one.required is kind][:1]]
    gang = Gang(ask.groups[0][0], ask.total, nodes, leaves, layout.levels)
    return found + [one for one in site.around.extensions.demands(gang) if one.nodes <= nodes]


def _needed(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> tuple[int, int]:
    """Return how many nodes and leaves a gang needs by the size rule alone; a node a pod where there is none."""
    layout = seen_by(ask, layout)
    ask = replace(ask, within=min(ask.within, layout.depth))
    if tied.is_tied(ask.groups):
        rule = tied.rule_of(site, ask, layout)
    elif ask.segments.parts:
        rule = mixed.rule_of(site, ask, layout)
    else:
        rule, _ = site.rule(site.views_for(ask), ask, layout)
    nodes, leaves = (rule.nodes, rule.leaves) if rule is not None else (ask.total, len(layout.paths))
    if len(ask.groups) > 1 and not tied.is_tied(ask.groups):
        nodes = mixed.fewest_nodes(site, ask, layout)
    return nodes, leaves
