"""The context of planning: nodes as pod classes see them, the policy, and caches derived from both; and its tasks."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import numpy as np

from topo_scheduler.api.small_pods import FGD, FRAGMENTATION
from topo_scheduler.scheduling.extensions.gradient import scored
from topo_scheduler.scheduling.placing.bandwidth.size_rule_uniform import size_rule_with_links
from topo_scheduler.scheduling.placing.model.class_views import ClassView, Views
from topo_scheduler.scheduling.placing.model.leaf_counts import LeafCounts
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.scheduling.placing.model.placement_query import NO_LIMITS, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.policy import Policy
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits, make_rule, size_rule
from topo_scheduler.scheduling.placing.small_pods.scores import NodeScores, TypicalPods
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext, settled_links
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.statistics.placement_outcomes import NEUTRAL_SCORE, History
from topo_scheduler.state.topology.fabric import Layout

MAX_CACHED_RULES: Final = 4096
"""Maximum number of cached size rules."""


class PlanningContext:
    """The state that all planning algorithms share, without changes to it."""

    def __init__(self, around: FilterContext, history: History, policy: Policy) -> None:
        self.around = around
        self.nodes = around.nodes
        self.history = history
        self.policy = policy
        self.extensions = around.extensions
        self.views = Views(around)
        self.typical_pods = TypicalPods(around.nodes, around.kinds)
        self.node_scores = NodeScores(around.nodes)
        """Scores of nodes for single pods."""
        self.no_pods = around.pod_index.without_pods()
        """The pods of an empty cluster: none. For the size rule."""
        self._totals: dict[tuple[int, int, tuple[str, ...]], LeafTotals] = {}
        self._rules: dict[object, tuple[SizeRule | None, int]] = {}
        self._neutral: Int64 = np.empty(0, np.int64)
        self._rules_version: tuple[int, int] = (-1, -1)

    def views_for(self, query: PlacementQuery) -> list[ClassView]:
        """Return the views to search: one per GPU model if all members must use the same model."""
        cls = query.groups[0][0]
        if not query.gang or query.mixed_models or not cls.gpus:
            return [self.views.get(cls)]
        model = self.running_model(query)
        return list(self.views.per_model(cls)) if model == UNKNOWN else [self.views.get(cls, model)]

    def running_model(self, query: PlacementQuery) -> int:
        """Return the GPU model of all running members, -1 if they have none or several."""
        # A member without GPUs may run on a node that has none, and so no model.
        running = {int(self.nodes.model[row]) for row in query.running} - {UNKNOWN}
        return running.pop() if len(running) == 1 else UNKNOWN

    def rule(self, views: Sequence[ClassView], query: PlacementQuery, layout: Layout) -> tuple[SizeRule | None, int]:
        """Return the size rule and the capacity, recomputed only when facts or the fabric changed."""
        limits = self.limits_for(query)
        view_states = tuple((view.number, view.reach_changes) for view in views)
        key = (view_states, query.total_units, query.segment, layout.depth, limits, query.within, query.bounds)
        if (traffic := query.traffic) is not None:
            links = settled_links(self.around, layout.inner or layout)
            return self.remembered(
                (*key, traffic.bandwidth, links.capacity_changes),
                layout,
                lambda: size_rule_with_links(links, traffic, views, query, layout, limits),
            )
        return self.remembered(key, layout, lambda: size_rule(views, query, layout, limits))

    def rule_beside_running(self, views: Sequence[ClassView], query: PlacementQuery, layout: Layout) -> SizeRule:
        """Return the size rule of a gang that runs in part; if it has none, one that allows all leaves in its bounds.

        Running members may be on nodes that no longer qualify (cordoned, not ready), or request less than the members
        to place. If there is no size rule for such reasons, the planner only searches for nodes near them.
        """
        rule, _ = self.rule(views, query, layout)
        max_leaves = min(len(layout.paths), query.bounds.leaves or len(layout.paths))
        return rule or make_rule(layout, query.bounds.depth, max(1, max_leaves), 1)

    def remembered(
        self, key: object, layout: Layout, compute: Callable[[], tuple[SizeRule | None, int]]
    ) -> tuple[SizeRule | None, int]:
        """Return the cached result for a key, recomputed only when facts or the fabric changed."""
        version = (layout.generation, self.nodes.facts_changes.position)
        if version != self._rules_version:
            self._rules.clear()
            self._rules_version = version
        result = self._rules.get((layout.woven, key))
        if result is None:
            if len(self._rules) > MAX_CACHED_RULES:
                self._rules.clear()
            result = self._rules[layout.woven, key] = compute()
        return result

    def configure(self, policy: Policy) -> None:
        """Apply a new policy. Size rules that depend on it stay cached until `forget_rules`."""
        self.policy = policy

    def forget_rules(self) -> None:
        """Drop cached size rules, after a change of limits."""
        self._rules.clear()

    def drop_caches(self) -> None:
        """Drop all caches by pod class."""
        self.views.clear()
        self.node_scores.clear()
        self.no_pods.drop_caches()
        self._rules.clear()

    def limits_for(self, query: PlacementQuery) -> SizeRuleLimits:
        """Return the limits per leaf that apply to a query: none for a single pod."""
        return self.policy.limits if query.gang else NO_LIMITS

    def leaf_fits(self, view: ClassView, query: PlacementQuery, layout: Layout, fit: Int64) -> Int64:
        """Return the units that each leaf holds now (int64[leaves]), read-only.

        ``fit``: members that each row takes, those of the view or fewer. The counts for the view itself are updated
        incrementally.
        """
        limits = self.limits_for(query)
        if fit is not view.fit:
            return leaf_fits(view, layout, limits, fit=fit, segment=query.segment)
        counts = view.counts.get((limits, layout.woven))
        if counts is None:
            counts = view.counts[limits, layout.woven] = LeafCounts(view.cls.gpus, limits)
        members_by_leaf = counts.refresh(view.fit, view.changes, layout.inner or layout)
        if layout.inner is not None:
            members_by_leaf = np.add.reduceat(members_by_leaf, layout.blocks[:-1])
        return members_by_leaf if query.segment == 1 else members_by_leaf // query.segment

    def gpu_of_share(self, cls: PodClass, row: int) -> int:
        """Return the GPU by which a node is scored for a GPU share that is placed alone, -1 without such a score."""
        if self.policy.alone not in (FRAGMENTATION, FGD):
            return -1
        typical = self.typical_pods.now(self.policy.typical)
        return int(scored(self.policy.alone, self.nodes, cls, typical, np.array([row], np.int64))[0, 1])

    def neutral(self, layout: Layout) -> Int64:
        """Return the history of leaves without recorded outcomes (int64[leaves])."""
        if len(self._neutral) != len(layout.paths):
            self._neutral = np.full(len(layout.paths), NEUTRAL_SCORE, np.int64)
        return self._neutral

    def totals(self, column: int, layout: Layout) -> LeafTotals:
        """Return the current leaf totals of a resource."""
        key = (column, layout.depth, layout.woven)
        totals = self._totals.get(key)
        if totals is None:
            totals = self._totals[key] = LeafTotals(self.nodes, column)
        totals.refresh(layout)
        return totals


class PlanningTask(msgspec.Struct, frozen=True):
    """What one plan is about.

    ``context``: nodes, policy and caches that plans share. ``query``: the members to place. ``layout``: the fabric as
    the gang sees it. ``now``: seconds, for the history of leaves, whose weight decays; it matters only for scores.
    """

    context: PlanningContext
    query: PlacementQuery
    layout: Layout
    now: float = 0.0

    @property
    def limits(self) -> SizeRuleLimits:
        """The limits per leaf that apply to the query."""
        return self.context.limits_for(self.query)
