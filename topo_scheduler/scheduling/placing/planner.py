"""Where a workload goes: the size rule first, then the score among what it leaves, then nodes.

Exact for gangs of one pod class; the order in which placements are preferred stands in docs/explanation/placement.md.
For a pod alone, where it likes best to be comes first.
"""

from dataclasses import replace

import numpy as np

from topo_scheduler.scheduling.placing.alone import plan_alone, shares_in_mixed_gang
from topo_scheduler.scheduling.placing.ask import NO_SEGMENTS, Placement, PlacementFailure, PlacementQuery, SpreadLimits
from topo_scheduler.scheduling.placing.bandwidth import plan_within_links
from topo_scheduler.scheduling.placing.choice import best_window
from topo_scheduler.scheduling.placing.mixed import plan_mixed
from topo_scheduler.scheduling.placing.one_domain import in_one_domain
from topo_scheduler.scheduling.placing.outer_segments import breaks_bounds, narrower_asks, rule_outside
from topo_scheduler.scheduling.placing.parts_repair import plan_parts_again
from topo_scheduler.scheduling.placing.placement_rules import plan_with_rules
from topo_scheduler.scheduling.placing.repair import plan_repair
from topo_scheduler.scheduling.placing.seats import seat
from topo_scheduler.scheduling.placing.second_tree import network_leaves_of
from topo_scheduler.scheduling.placing.segment_repair import plan_segment_repair
from topo_scheduler.scheduling.placing.segments import in_one_piece, not_in_segments
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import make_rule, too_large, too_large_within
from topo_scheduler.scheduling.placing.tied import is_tied, plan_tied
from topo_scheduler.state.fabric import Layout


class Planner(PlanningContext):
    """Plans placements on the current state. Changes nothing."""

    def plan(self, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best place for the members of a workload.

        Args:
            ask: what is to be placed.
            layout: the fabric as it is.
            now: seconds, for outcomes that fade.

        Raises:
            PluginError: a plugin failed, so that nothing can be said.
        """
        if self.policy.baseline is not None:
            found = self.policy.baseline.plan(self, ask, layout)
        elif ask.traffic is not None:
            found = plan_within_links(self.plan_anywhere, self, ask, layout, now)
        else:
            found = self.plan_anywhere(ask, layout, now)
        if layout.woven and isinstance(found, Placement):
            return replace(found, leaves=network_leaves_of(layout, ask, found))
        return found

    def plan_anywhere(self, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best place whatever links carry; otherwise like `plan`."""
        if ask.within < 0:
            return PlacementFailure(f"{ask.because} asks for one {ask.level}, which no node's labels tell")
        if ask.segments.depth < 0:
            return PlacementFailure(
                f"its annotation segment-level asks for {ask.segments.level}, which no node's labels tell"
            )
        if ask.in_segments and in_one_piece(ask, layout):
            ask = replace(ask, segments=NO_SEGMENTS)
        if ask.demands or (ask.gang and self.extensions.has_size_rules):
            return plan_with_rules(self, self._plan_in_segments, ask, layout, now)
        return self._plan_in_segments(ask, layout, now)

    def _plan_in_segments(self, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Plan within the bounds of the ask, whose leaves are those of the fabric whatever the level of segments."""
        if not (ask.in_segments and ask.segments.depth):
            return self.plan_within(ask, layout, now)
        narrower = list(narrower_asks(ask, layout))
        found: Placement | PlacementFailure | None = None
        if ask.bounds.depth < ask.segments.depth or not narrower:
            found = self._plan_outside(ask, layout, now)
            if isinstance(found, PlacementFailure) or not breaks_bounds(ask, layout, found):
                return found
        rule = found.rule if found is not None else None
        for one in narrower:
            inside = rule_outside(self.plan_within(one, layout, now), ask.segments.depth)
            if isinstance(inside, Placement):
                return inside
            rule = rule or inside.rule
        return PlacementFailure("", rule)

    def _plan_outside(self, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Plan on the fabric down to the level of the gang's segments, whose domains are the leaves then."""
        outer = layout.outer(ask.segments.depth)
        low, high = ask.preferred or (0, 0)
        preferred = tuple(np.searchsorted(outer.blocks, (low, high)).tolist()) if ask.preferred else None
        bounds = SpreadLimits(ask.bounds.leaves, min(ask.bounds.depth, outer.depth - 1))
        within = min(ask.within, outer.depth)
        found = self.plan_within(replace(ask, preferred=preferred, within=within, bounds=bounds), outer, now)
        if isinstance(found, PlacementFailure):
            return found
        rows = [row for some in (*found.rows, ask.running) for row in some]
        domains = (len(outer.leaves_of(rows)), ask.segments.level)
        return replace(found, leaves=sorted(layout.leaves_of(rows)), domains=domains)

    def plan_within(self, ask: PlacementQuery, layout: Layout, now: float) -> Placement | PlacementFailure:
        """Find the best place within the bounds of the ask; otherwise like `plan`."""
        if wrong := shares_in_mixed_gang(ask):
            return PlacementFailure(wrong)
        tied = ask.gang and is_tied(ask.groups)
        if ask.in_segments and (wrong := not_in_segments(ask)):
            return PlacementFailure(wrong)
        if tied:
            return plan_tied(self, ask, layout, now)
        if len(ask.groups) > 1 or ask.segments.parts:
            if ask.segments.parts and ask.running:
                return plan_parts_again(self, ask, layout)
            return plan_mixed(self, ask, layout, now)
        views = self.views_for(ask)
        rule, most = self.rule(views, ask, layout)
        if ask.running:
            # What runs may do so on nodes that would not be chosen today (cordoned, not ready), or ask for something
            # else. Where the rule can't be told for such reasons, near is all that can be asked.
            most = min(len(layout.paths), ask.bounds.leaves or len(layout.paths))
            anywhere = make_rule(layout, ask.bounds.depth, max(1, most), 1)
            if ask.in_segments:
                return plan_segment_repair(self, ask, layout, rule or anywhere, views, now)
            return plan_repair(self, ask, layout, rule or anywhere, views, now)
        if rule is None:
            if ask.within and most:
                return PlacementFailure(too_large_within(ask, layout))
            return PlacementFailure(too_large(ask, most, self.limits_for(ask), layout))
        if (alone := plan_alone(self, ask, views[0], layout, rule)) is not None:
            return alone
        window = best_window(self, views, ask, layout, rule, now)
        if window is None:
            return PlacementFailure("", rule)
        if layout.accelerators is not None and (near := in_one_domain(self, ask, layout, window, views, rule, now)):
            return near
        rows = seat(self, ask, window.view, window.leaves, window.fits, layout, window.fit)
        if rows is None:
            within = self.limits_for(ask).within
            return PlacementFailure(f"the leaves that hold the gang could not be filled{within}", rule)
        return Placement([rows], window.leaves.tolist(), rule, window.score, window.candidates)
