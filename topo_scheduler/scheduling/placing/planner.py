"""The planner: it applies the size rule, then chooses leaves by score, then chooses nodes.

The planner is exact for gangs of one pod class. The order of preference is in docs/explanation/placement.md. For a
single pod, its preferences for nodes come first.
"""

from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.placing.checks.bandwidth_limits import plan_within_links
from topo_scheduler.scheduling.placing.checks.unknown_gpus import unknown_gpus
from topo_scheduler.scheduling.placing.checks.unknown_models import unknown_models
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained, plan_constrained
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import plan_mixed
from topo_scheduler.scheduling.placing.heterogeneous.segment_replacement import plan_uneven_segment_repair
from topo_scheduler.scheduling.placing.model.placement_query import (
    NO_SEGMENTS,
    Placement,
    PlacementFailure,
    PlacementQuery,
    SpreadLimits,
)
from topo_scheduler.scheduling.placing.model.second_tree import network_leaves_of
from topo_scheduler.scheduling.placing.model.segments import in_one_piece, segment_error
from topo_scheduler.scheduling.placing.model.size_rule import (
    are_unlabelled,
    only_unlabelled,
    too_large,
    too_large_within,
)
from topo_scheduler.scheduling.placing.outer_segments import breaks_bounds, narrower_asks, rule_outside
from topo_scheduler.scheduling.placing.placement_rules import plan_with_rules
from topo_scheduler.scheduling.placing.single_pod import gpu_share_error, plan_alone, plan_partition
from topo_scheduler.scheduling.placing.uniform.leaf_choice import best_window
from topo_scheduler.scheduling.placing.uniform.node_assignment import seat
from topo_scheduler.scheduling.placing.uniform.one_domain import in_one_domain
from topo_scheduler.scheduling.placing.uniform.replacement import plan_repair
from topo_scheduler.scheduling.placing.uniform.segment_replacement import plan_segment_repair
from topo_scheduler.state.topology.fabric import Layout


class Planner(PlanningContext):
    """Plans placements on the current state, without changes to it."""

    def plan(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best placement for the members of a workload.

        Args:
            query: the members to place.
            layout: the current fabric.
            now: time in seconds, for the history of leaves, whose weight decays.

        Raises:
            PluginError: a plugin failed, so there is no outcome.
        """
        if query.traffic is not None:
            outcome = plan_within_links(self.plan_anywhere, self, query, layout, now)
        else:
            outcome = self.plan_anywhere(query, layout, now)
        if isinstance(outcome, PlacementFailure):
            unknown = unknown_models(self.nodes, query), unknown_gpus(self.nodes, query)
            return replace(outcome, sentence="; ".join(filter(None, (outcome.sentence, *unknown))))
        if layout.woven and isinstance(outcome, Placement):
            return replace(outcome, leaves=network_leaves_of(layout, query, outcome))
        return outcome

    def plan_anywhere(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best placement and ignore links; otherwise like `plan`."""
        if query.within < 0:
            return PlacementFailure(f"{query.because} asks for one {query.level}, for which no node has a label")
        if query.segments.depth < 0:
            return PlacementFailure(
                f"its annotation segment-level asks for {query.segments.level}, for which no node has a label"
            )
        if query.in_segments and in_one_piece(query, layout):
            query = replace(query, segments=NO_SEGMENTS)
        if query.demands or (query.gang and self.extensions.has_size_rules):
            return plan_with_rules(self, self._plan_in_segments, query, layout, now)
        return self._plan_in_segments(query, layout, now)

    def _plan_in_segments(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Plan within the bounds of the query, which count leaves of the fabric whatever the level of segments."""
        if not (query.in_segments and query.segments.depth):
            return self.plan_within(query, layout, now)
        narrower_queries = list(narrower_asks(query, layout))
        outer_outcome: Placement | PlacementFailure | None = None
        if query.bounds.depth < query.segments.depth or not narrower_queries:
            outer_outcome = self._plan_outside(query, layout, now)
            if isinstance(outer_outcome, PlacementFailure) or not breaks_bounds(query, layout, outer_outcome):
                return outer_outcome
        rule = outer_outcome.rule if outer_outcome is not None else None
        for narrower in narrower_queries:
            outcome = rule_outside(self.plan_within(narrower, layout, now), query.segments.depth)
            if isinstance(outcome, Placement):
                return outcome
            rule = rule or outcome.rule
        return PlacementFailure("", rule)

    def _plan_outside(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Plan on the fabric down to the level of the gang's segments, whose domains serve as leaves."""
        outer = layout.outer(query.segments.depth)
        first, end = query.preferred or (0, 0)
        preferred = tuple(np.searchsorted(outer.blocks, (first, end)).tolist()) if query.preferred else None
        bounds = SpreadLimits(query.bounds.leaves, min(query.bounds.depth, outer.depth - 1))
        within = min(query.within, outer.depth)
        outcome = self.plan_within(replace(query, preferred=preferred, within=within, bounds=bounds), outer, now)
        if isinstance(outcome, PlacementFailure):
            return outcome
        rows = [row for group_rows in (*outcome.rows, query.running) for row in group_rows]
        domains = (len(outer.leaves_of(rows)), query.segments.level)
        return replace(outcome, leaves=sorted(layout.leaves_of(rows)), domains=domains)

    def plan_within(self, query: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best placement within the bounds of the query; otherwise like `plan`."""
        if problem := gpu_share_error(query):
            return PlacementFailure(problem)
        task = PlanningTask(self, query, layout, now)
        if query.in_segments and (problem := segment_error(query)):
            return PlacementFailure(problem)
        if query.gang and is_constrained(query.groups):
            return plan_constrained(task)
        if len(query.groups) > 1 or query.segments.parts:
            if query.segments.parts and query.running:
                return plan_uneven_segment_repair(task)
            return plan_mixed(task)
        views = self.views_for(query)
        if query.running:
            rule_beside = self.rule_beside_running(views, query, layout)
            return (plan_segment_repair if query.in_segments else plan_repair)(task, rule_beside, views)
        rule, capacity = self.rule(views, query, layout)
        if rule is None:
            if query.within and capacity:
                return PlacementFailure(too_large_within(query, layout))
            if query.within and are_unlabelled(views, layout, query.within):
                return PlacementFailure(only_unlabelled(query))
            return PlacementFailure(too_large(query, capacity, task.limits, layout))
        for plan_single in (plan_partition, plan_alone):
            if (single := plan_single(task, views[0], rule)) is not None:
                return single
        window = best_window(task, views, rule)
        if window is None:
            return PlacementFailure("", rule)
        if layout.accelerators is not None and (one_domain := in_one_domain(task, window, views, rule)):
            return one_domain
        rows = seat(task, window.view, window.leaves, window.fits, window.fit)
        if rows is None:
            return PlacementFailure(f"the leaves that hold the gang could not be filled{task.limits.within}", rule)
        return Placement([rows], window.leaves.tolist(), rule, window.score, window.candidates)
