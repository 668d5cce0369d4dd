"""Where a workload goes: the size rule first, then the score among what it leaves, then nodes.

Exact for gangs of one pod class: every window of neighbouring leaves of every domain is looked at. The order in which
placements are preferred: labelled domains; the lowest level that holds the gang; fewest leaves; the nodes its pods
like best; narrowest window; the score; the first in the order of the fabric. For a pod alone, where it likes best to be
comes first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.windows import choose_leaves, narrowest_windows, score_windows
from topo_scheduler.scheduling import mixed, node_scores, placement_rules, repair, tied
from topo_scheduler.scheduling.ask import Ask, Failure, Limits, Placement
from topo_scheduler.scheduling.extension import LeafSeats, Leaves, Request
from topo_scheduler.scheduling.neighbours import Surroundings
from topo_scheduler.scheduling.placement_rules import ConfiguredRule
from topo_scheduler.scheduling.size_rule import leaf_fits, make_rule, named_at, size_rule, spread_needed
from topo_scheduler.scheduling.totals import LeafTotals
from topo_scheduler.scheduling.views import ClassView, Views
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.history import NEUTRAL, History
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.residents import Residents

_NO_WEIGHTS: Final[Int64] = np.empty(0, np.int64)


@dataclass(slots=True)
class Policy:
    """What is configured: weights in thousandths, the size rule's limits, and rules beside it.

    ``added`` weights of the scores of plugins, in their order; ``rules`` for gangs; ``most_scored`` nodes whose places
    are scored, 0 for all.
    """

    weights: Int64
    limits: Limits
    added: Int64 = field(default_factory=lambda: _NO_WEIGHTS)
    rules: tuple[ConfiguredRule, ...] = ()
    most_scored: int = 0


@dataclass(frozen=True, slots=True)
class Ground:
    """Nodes to look at. ``fit`` int64[rows] and ``fits`` int64[leaves]: how many members each takes.

    ``modest`` 0 for the nodes that the class likes best, 1 for all; ``unlabelled`` 1 where those without a full path
    count.
    """

    number: int
    view: ClassView
    fit: Int64
    fits: Int64
    modest: int
    unlabelled: int


@dataclass(frozen=True, slots=True)
class Window:
    """Leaves that hold the gang, and how they compare: lower ``order`` is better."""

    order: tuple[int, int, int, int, int, int, int]
    view: ClassView
    leaves: Int64
    fit: Int64
    fits: Int64
    score: ScoreParts
    candidates: int


class Planner:
    """Plans placements on the current state. Changes nothing."""

    def __init__(self, around: Surroundings, history: History, policy: Policy) -> None:
        self.around = around
        self.nodes = around.nodes
        self.history = history
        self.policy = policy
        self.extensions = around.extensions
        self.views = Views(around)
        self.nobody = Residents()
        """An empty cluster's, for rules on what could be."""
        self._totals: dict[int, LeafTotals] = {}
        self._rules: dict[object, tuple[SizeRule | None, int]] = {}
        self._neutral: Int64 = np.empty(0, np.int64)
        """The record of leaves of which nothing bad is known."""
        self._rules_at: tuple[int, int] = (-1, -1)

    def plan(self, ask: Ask, layout: Layout, now: float) -> Placement | Failure:
        """Find the best place for the members of a workload.

        Args:
            ask: what is to be placed.
            layout: the fabric as it is.
            now: seconds, for outcomes that fade.

        Raises:
            PluginError: a plugin failed, so that nothing can be said.
        """
        if ask.within < 0:
            return Failure(f"its PodGroup asks for one {ask.level}, which no node's labels tell")
        if ask.demands or (ask.gang and self.extensions.has_size_rules):
            return placement_rules.plan_with_rules(self, ask, layout, now)
        return self.plan_within(ask, layout, now)

    def plan_within(self, ask: Ask, layout: Layout, now: float) -> Placement | Failure:
        """Find the best place within the bounds of the ask; otherwise like `plan`."""
        if ask.gang and tied.is_tied(ask.groups):
            return tied.plan_tied(self, ask, layout)
        if len(ask.groups) > 1:
            return mixed.plan_mixed(self, ask, layout, now)
        views = self.views_for(ask)
        rule, most = self.rule(views, ask, layout)
        if ask.running:
            # What runs may do so on nodes that would not be chosen today (cordoned, not ready), or ask for something
            # else. Where the rule can't be told for such reasons, near is all that can be asked.
            most = min(len(layout.paths), ask.bounds.leaves or len(layout.paths))
            anywhere = make_rule(layout, ask.bounds.depth, max(1, most), 1)
            return repair.plan_repair(self, ask, layout, rule or anywhere, views, now)
        if rule is None:
            return Failure(too_large_within(ask) if ask.within and most else too_large(ask, most, self.limits_for(ask)))
        window = self._best_window(views, ask, layout, rule, now)
        if window is None:
            return Failure("", rule)
        rows = self.seat(ask, window.view, window.leaves, window.fits, layout, window.fit)
        if rows is None:
            return Failure("the leaves that hold the gang could not be filled within the limits per leaf", rule)
        return Placement([rows], window.leaves.tolist(), rule, window.score, window.candidates)

    # ------------------------------------------------------------ views and rule

    def views_for(self, ask: Ask) -> list[ClassView]:
        """Return the views in which to look: one a GPU model where a gang must keep to one."""
        cls = ask.groups[0][0]
        if not ask.gang or ask.mixed_models or not cls.gpus:
            return [self.views.get(cls)]
        model = self.running_model(ask)
        return list(self.views.per_model(cls)) if model == UNKNOWN else [self.views.get(cls, model)]

    def running_model(self, ask: Ask) -> int:
        """Return the GPU model that all running members have, else -1."""
        # A member without GPUs may run on a node that has none, and so no model.
        running = {int(self.nodes.model[row]) for row in ask.running} - {UNKNOWN}
        return running.pop() if len(running) == 1 else UNKNOWN

    def rule(self, views: Sequence[ClassView], ask: Ask, layout: Layout) -> tuple[SizeRule | None, int]:
        """Return the size rule, computed again only when facts or the fabric changed."""
        limits = self.limits_for(ask)
        key = (tuple((view.number, view.reach_changes) for view in views), ask.total, limits, ask.within, ask.bounds)
        return self._remembered(
            key, layout, lambda: size_rule(views, layout, limits, ask.total, ask.within, ask.bounds)
        )

    def rule_of_tied(self, ask: Ask, layout: Layout) -> SizeRule | None:
        """Return the same for a gang whose members look at each other."""
        reach = tuple(self.views.get(cls).reach_changes for cls, _ in ask.groups)
        limits = self.limits_for(ask)
        key = (tuple(ask.groups), ask.profiles, ask.mixed_models, limits, ask.within, ask.bounds, reach)
        return self._remembered(key, layout, lambda: (tied.rule_of(self, ask, layout), 0))[0]

    def _remembered(
        self, key: object, layout: Layout, compute: Callable[[], tuple[SizeRule | None, int]]
    ) -> tuple[SizeRule | None, int]:
        at = (layout.generation, self.nodes.facts_changes.position)
        if at != self._rules_at:
            self._rules.clear()
            self._rules_at = at
        found = self._rules.get(key)
        if found is None:
            if len(self._rules) > 4096:
                self._rules.clear()
            found = self._rules[key] = compute()
        return found

    def forget_rules(self) -> None:
        """Drop what was computed under limits that have changed."""
        self._rules.clear()

    def limits_for(self, ask: Ask) -> Limits:
        """Return the limits per leaf that hold for an ask: none for a pod alone."""
        return self.policy.limits if ask.gang else Limits()

    def totals(self, column: int, layout: Layout) -> LeafTotals:
        """Return the leaf totals of a resource, up to date."""
        totals = self._totals.get(column)
        if totals is None:
            totals = self._totals[column] = LeafTotals(self.nodes, column)
        totals.refresh(layout)
        return totals

    # ------------------------------------------------------------ leaves

    def _best_window(
        self, views: Sequence[ClassView], ask: Ask, layout: Layout, rule: SizeRule, now: float
    ) -> Window | None:
        found = [
            window
            for number, view in enumerate(views)
            if (window := self._best_of(number, view, ask, layout, rule, now)) is not None
        ]
        return min(found, key=lambda window: window.order) if found else None

    def _best_of(
        self, number: int, view: ClassView, ask: Ask, layout: Layout, rule: SizeRule, now: float
    ) -> Window | None:
        """Return the best window on the nodes of one view: on those the class likes best, or on all of them."""
        limits = self.limits_for(ask)
        grounds = [
            Ground(number, view, fit, leaf_fits(view, layout, limits, fit=fit), modest, 0)
            for modest, fit in enumerate(_liked(view))
        ]
        if ask.within:
            named = named_at(layout, ask.within)
            grounds = [replace(ground, fits=ground.fits * named) for ground in grounds]
        # Alone, a pod goes where it likes to be, wherever that hangs.
        for alike in [grounds] if ask.gang else [[ground] for ground in grounds]:
            for unlabelled, counted in ((0, layout.aligned), (1, 1)):
                tried = [replace(ground, fits=ground.fits * counted, unlabelled=unlabelled) for ground in alike]
                windows = [found for ground in tried if (found := self._window(ground, ask, layout, rule, now))]
                if windows:
                    return min(windows, key=lambda window: window.order)
        return None

    def _apart(self, ask: Ask, layout: Layout, fits: Int64) -> Int64:
        """Keep to the leaves with the fewest siblings of a pod that is placed alone."""
        if ask.gang or not ask.siblings or not (open_ := fits >= ask.members).any():
            return fits
        leaves = layout.leaf_of_row[np.asarray(ask.siblings, np.int64)]
        siblings = np.bincount(leaves[leaves >= 0], minlength=len(fits))
        return np.where(siblings == siblings[open_].min(), fits, 0)

    def _window(self, ground: Ground, ask: Ask, layout: Layout, rule: SizeRule, now: float) -> Window | None:
        view, fits = ground.view, self._apart(ask, layout, ground.fits)
        depth, leaves = rule.depth, rule.leaves
        first = np.empty(len(fits), np.int64)
        last = np.empty(len(fits), np.int64)
        count = narrowest_windows(fits, layout.domains[depth], leaves, ask.members, first, last)
        if count == 0 and ask.enforcement is Enforcement.PREFERRED:
            needed = spread_needed(fits, layout, ask.members, ask.within, ask.bounds)
            if needed is not None:
                depth, leaves = needed
                count = narrowest_windows(fits, layout.domains[depth], leaves, ask.members, first, last)
        if count == 0:
            return None
        count = self._scored(layout, first, last, count)
        best, parts, added = self._score(ground, ask, layout, (depth, leaves, rule), fits, first, last, count, now)
        chosen = np.empty(leaves + 2, np.int64)
        used = choose_leaves(fits, int(first[best]), int(last[best]), leaves, ask.members, chosen)
        availability, alignment, utilization, history, total = parts[best, :5].tolist()
        score = ScoreParts(availability, alignment, utilization, history, total, added)
        load = int(parts[best, 5]) if ask.latency else 0
        width = int(last[best] - first[best])
        place = (ground.unlabelled, -depth, leaves, ground.modest, width, load, -score.total * 1000 + ground.number)
        return Window(place, view, chosen[:used].copy(), ground.fit, fits, score, count)

    def _scored(self, layout: Layout, first: Int64, last: Int64, count: int) -> int:
        """Return how many of the first windows are to be scored."""
        if not self.policy.most_scored:
            return count
        nodes = np.cumsum(layout.offsets[last[:count] + 1] - layout.offsets[first[:count]])
        return max(1, int(np.searchsorted(nodes, self.policy.most_scored, side="right")))

    def _score(
        self,
        ground: Ground,
        ask: Ask,
        layout: Layout,
        spread: tuple[int, int, SizeRule],
        fits: Int64,
        first: Int64,
        last: Int64,
        count: int,
        now: float,
    ) -> tuple[int, Int64, tuple[tuple[str, int], ...]]:
        depth, leaves, rule = spread
        view, column = ground.view, ground.view.cls.scarce
        totals = self.totals(column, layout)
        capacity, used = totals.domains(layout, depth)
        aligned = alignment_of(rule, depth, leaves)
        facts = self.leaf_facts(ask, view, ground.fit, layout, totals, aligned, now, last[:count])
        parts = np.empty((count, 6), np.int64)
        whole = max(1, int(totals.capacity.sum()))
        best = score_windows(
            first[:count],
            last[:count],
            count,
            fits,
            leaves,
            ask.members,
            view.cls.amount(column),
            facts,
            capacity,
            used,
            self.policy.weights,
            int(self.extensions.strategy(ask.strategy).prefers),
            int(ask.latency),
            1000 * int(totals.used.sum()) // whole,
            parts,
        )
        if not self.extensions.added_scores:
            return int(best), parts, ()
        # Not above: only those who have such plugins wait until it is compiled.
        from topo_scheduler.kernels.added import weigh_added

        added = np.empty((count, len(facts) - 5), np.int64)
        weights = np.concatenate((self.policy.weights, self.policy.added))
        latency = int(ask.latency)
        best = weigh_added(
            first[:count], last[:count], count, fits, leaves, ask.members, facts[5:], weights, latency, parts, added
        )
        names = (score.name for score in self.extensions.added_scores)
        return int(best), parts, tuple(zip(names, added[best].tolist(), strict=True))

    def leaf_facts(
        self,
        ask: Ask,
        view: ClassView,
        fit: Int64,
        layout: Layout,
        totals: LeafTotals,
        aligned: int,
        now: float,
        last: Int64,
    ) -> Int64:
        """Return int64[5 + p, leaves]: capacity, use, alignment, history, link load, and p parts of plugins.

        ``fit`` int64[rows] members each node takes. ``last`` leaves of windows: nodes beyond the last of them are not
        scored.
        """
        scores = self.extensions.scores
        facts = np.empty((3 + len(scores), len(layout.paths)), np.int64)
        facts[0] = totals.capacity
        facts[1] = totals.used
        request = Request(view.cls, ask.members, ask.gang, ask.strategy, aligned, ask.preferred)
        record = self._record(layout, now)
        leaves = Leaves(layout.paths, layout.order, layout.offsets, fit, facts[0], facts[1], layout.aligned, record)
        for at, score in zip((2, 3, *range(5, len(facts))), scores, strict=True):
            if score.leaves is not None:
                facts[at] = score.leaves(leaves, request)
            else:
                facts[at] = node_scores.by_leaf(self, score, request, fit, layout, int(last.max()))
        facts[4] = self._link_load(layout, totals) if ask.latency else 0
        return facts

    def _record(self, layout: Layout, now: float) -> Int64:
        record = self._neutral
        if len(record) != len(layout.paths):
            record = self._neutral = np.full(len(layout.paths), NEUTRAL, np.int64)
        if known := self.history.known():
            record = record.copy()
            index = {path: leaf for leaf, path in enumerate(layout.paths)}
            for path in known:
                if path in index:
                    record[index[path]] = self.history.score(path, now)
        return record

    def _link_load(self, layout: Layout, totals: LeafTotals) -> Int64:
        # Reserved share of the known bandwidth; where none is known, the share in use stands for it.
        known = np.where(self.nodes.bandwidth > 0, self.nodes.bandwidth, 0)[layout.order]
        reserved = self.nodes.reserved_bandwidth[layout.order]
        bandwidth = np.add.reduceat(known, layout.offsets[:-1])
        load = 1000 * np.add.reduceat(reserved, layout.offsets[:-1]) // np.maximum(bandwidth, 1)
        share: Int64 = 1000 * totals.used // np.maximum(totals.capacity, 1)
        return np.where(bandwidth > 0, load, share).astype(np.int64)

    # ------------------------------------------------------------ nodes

    def seat(
        self, ask: Ask, view: ClassView, leaves: Int64, fits: Int64, layout: Layout, fit: Int64 | None = None
    ) -> list[int] | None:
        """Return one row a member in order of the fabric, or None where the limits per leaf leave some without.

        ``fit`` members each row may take, where that is less than what the view says.
        """
        fit = view.fit if fit is None else fit
        strategy = self.extensions.strategy(ask.strategy)
        dealt = strategy.leaves(np.ascontiguousarray(fits[leaves]), ask.members).tolist()
        if sum(dealt) < ask.members:
            return None
        free = self.totals(view.cls.scarce, layout).free_by_row
        siblings = np.zeros(self.nodes.rows if strategy.apart else 0, np.int64)
        if strategy.apart:
            np.add.at(siblings, np.asarray([*ask.siblings, *ask.running], np.int64), 1)
        preference = node_scores.preference(self, ask, view, fit, layout, leaves)
        amount = view.cls.amount(view.cls.scarce)
        most = self.limits_for(ask).max_nodes_per_leaf
        rows: list[int] = []
        for leaf, members in zip(leaves.tolist(), dealt, strict=True):
            if members:
                inside = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
                counts = strategy.nodes(LeafSeats(inside, fit, free, preference, siblings, amount, members, most))
                if counts is None:
                    return None
                rows += np.repeat(inside, counts).tolist()
        return rows


def _liked(view: ClassView) -> list[Int64]:
    """Return how many members each row takes: where the class likes best to be, if it minds, then anywhere."""
    if not view.choosy or not (room := view.fit > 0).any():
        return [view.fit]
    best = view.liking == view.liking[room].max()
    return [np.where(best, view.fit, 0), view.fit]


def alignment_of(rule: SizeRule, depth: int, leaves: int) -> int:
    """Return the alignment in thousandths: 1000 at the rule's level and number of leaves, less beyond."""
    return (1000 * rule.leaves // max(leaves, 1)) >> max(0, rule.depth - depth)


def too_large_within(ask: Ask) -> str:
    """Return the reason for a gang that the cluster could hold, but none of the domains it must share."""
    return f"no {ask.level} could hold the gang's {ask.total} pods even if it were empty, and its PodGroup asks for one"


def too_large(ask: Ask, most: int, limits: Limits) -> str:
    """Return the reason for a workload that not even an empty cluster could hold."""
    gpus = ask.groups[0][0].gpus
    if ask.total == 1:
        return "no matching node could hold this pod even if it were empty"
    if gpus > limits.max_gpus_per_leaf > 0:
        return f"one pod of the gang asks for {gpus} GPUs, and maxGPUsPerLeaf is {limits.max_gpus_per_leaf}"
    if most == 0:
        return f"no matching node could hold one of the gang's {ask.total} pods even if it were empty"
    held = f"matching nodes of one GPU model hold {most} of {ask.total} pods even when empty"
    if most >= ask.total:
        held = "no single domain holds it even when empty"
    limited = " within the limits per leaf" if limits.max_gpus_per_leaf or limits.max_nodes_per_leaf else ""
    return f"the gang is larger than the cluster: {held}{limited}"
