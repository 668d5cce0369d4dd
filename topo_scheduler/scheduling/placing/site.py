"""What plans are made on: the nodes as classes see them, the policy, and what was worked out of both."""

from collections.abc import Callable, Sequence

import numpy as np

from topo_scheduler.scheduling.placing.ask import NO_LIMITS, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.leaf_counts import LeafCounts
from topo_scheduler.scheduling.placing.link_rule import carried_size_rule
from topo_scheduler.scheduling.placing.policy import Policy
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, size_rule
from topo_scheduler.scheduling.placing.small_pods import SmallPodScores
from topo_scheduler.scheduling.placing.totals import LeafTotals
from topo_scheduler.scheduling.placing.views import ClassView, Views
from topo_scheduler.scheduling.rules.neighbours import FilterContext, settled_links
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.history import NEUTRAL, History
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.residents import Residents


class PlanningContext:
    """The state that all ways of placing share. Changes nothing."""

    def __init__(self, around: FilterContext, history: History, policy: Policy) -> None:
        self.around = around
        self.nodes = around.nodes
        self.history = history
        self.policy = policy
        self.extensions = around.extensions
        self.views = Views(around)
        self.small_pods = SmallPodScores(around.nodes, around.kinds)
        self.nobody = Residents()
        """An empty cluster's, for rules on what could be."""
        self._totals: dict[tuple[int, int, tuple[str, ...]], LeafTotals] = {}
        self._rules: dict[object, tuple[SizeRule | None, int]] = {}
        self._neutral: Int64 = np.empty(0, np.int64)
        self._rules_at: tuple[int, int] = (-1, -1)

    def views_for(self, ask: PlacementQuery) -> list[ClassView]:
        """Return the views in which to look: one a GPU model where a gang must keep to one."""
        cls = ask.groups[0][0]
        if not ask.gang or ask.mixed_models or not cls.gpus:
            return [self.views.get(cls)]
        model = self.running_model(ask)
        return list(self.views.per_model(cls)) if model == UNKNOWN else [self.views.get(cls, model)]

    def running_model(self, ask: PlacementQuery) -> int:
        """Return the GPU model that all running members have, else -1."""
        # A member without GPUs may run on a node that has none, and so no model.
        running = {int(self.nodes.model[row]) for row in ask.running} - {UNKNOWN}
        return running.pop() if len(running) == 1 else UNKNOWN

    def rule(self, views: Sequence[ClassView], ask: PlacementQuery, layout: Layout) -> tuple[SizeRule | None, int]:
        """Return the size rule, computed again only when facts or the fabric changed."""
        limits = self.limits_for(ask)
        seen = tuple((view.number, view.reach_changes) for view in views)
        key = (seen, ask.total_units, ask.segment, layout.depth, limits, ask.within, ask.bounds)
        if (traffic := ask.traffic) is not None:
            links = settled_links(self.around, layout.inner or layout)
            return self.remembered(
                (*key, traffic.bandwidth, links.capacity_changes),
                layout,
                lambda: carried_size_rule(links, traffic, views, ask, layout, limits),
            )
        return self.remembered(
            key,
            layout,
            lambda: size_rule(views, layout, limits, ask.total_units, ask.within, ask.bounds, ask.segment),
        )

    def remembered(
        self, key: object, layout: Layout, compute: Callable[[], tuple[SizeRule | None, int]]
    ) -> tuple[SizeRule | None, int]:
        """Return what was computed for a key, computed again only when facts or the fabric changed."""
        at = (layout.generation, self.nodes.facts_changes.position)
        if at != self._rules_at:
            self._rules.clear()
            self._rules_at = at
        found = self._rules.get((layout.woven, key))
        if found is None:
            if len(self._rules) > 4096:
                self._rules.clear()
            found = self._rules[layout.woven, key] = compute()
        return found

    def forget_rules(self) -> None:
        """Drop what was computed under limits that have changed."""
        self._rules.clear()

    def drop_caches(self) -> None:
        """Drop what is kept to be quick, by class of pods."""
        self.views.clear()
        self.small_pods.scores.clear()
        self.nobody.drop_caches()
        self._rules.clear()

    def limits_for(self, ask: PlacementQuery) -> SizeRuleLimits:
        """Return the limits per leaf that hold for an ask: none for a pod alone."""
        return self.policy.limits if ask.gang else NO_LIMITS

    def leaf_fits(self, view: ClassView, ask: PlacementQuery, layout: Layout, fit: Int64) -> Int64:
        """Return how many units each leaf holds now (int64[leaves]), not to be written to.

        ``fit`` members each row takes, of the view or less; what is that of the view is brought up to date, not anew.
        """
        limits = self.limits_for(ask)
        if fit is not view.fit:
            return leaf_fits(view, layout, limits, fit=fit, segment=ask.segment)
        counts = view.counts.get((limits, layout.woven))
        if counts is None:
            counts = view.counts[limits, layout.woven] = LeafCounts(view.cls.gpus, limits)
        held = counts.refresh(view.fit, view.changes, layout.inner or layout)
        if layout.inner is not None:
            held = np.add.reduceat(held, layout.blocks[:-1])
        return held if ask.segment == 1 else held // ask.segment

    def neutral(self, layout: Layout) -> Int64:
        """Return the record of leaves of which nothing bad is known (int64[leaves])."""
        if len(self._neutral) != len(layout.paths):
            self._neutral = np.full(len(layout.paths), NEUTRAL, np.int64)
        return self._neutral

    def totals(self, column: int, layout: Layout) -> LeafTotals:
        """Return the leaf totals of a resource, up to date."""
        key = (column, layout.depth, layout.woven)
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = LeafTotals(self.nodes, column)
        totals.refresh(layout)
        return totals
