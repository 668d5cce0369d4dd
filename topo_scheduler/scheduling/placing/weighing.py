"""The weighted score of sets of leaves, whoever takes them: the formulas stand in docs/explanation/scoring.md."""

from typing import Final

import msgspec
import numpy as np

from topo_scheduler.kernels.windows import score_sets
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.leaf_facts import leaf_facts
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.totals import LeafTotals
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

SCORE: Final = 4
LOAD: Final = 5
"""Columns of the score and of the link load in the parts."""


class Sets(msgspec.Struct, frozen=True):
    """Sets of leaves that hold a gang, of one domain of a level each.

    ``leaves`` int64[>= n, k] of each ascending, ``sizes`` int64[>= n] how many they are. ``depth`` of the level and
    ``most`` leaves that were allowed there, where ``rule`` is what is asked. ``last`` int64[m]: nodes of leaves beyond
    need no score.
    """

    leaves: Int64
    sizes: Int64
    count: int
    depth: int
    most: int
    rule: SizeRule
    last: Int64


class Weighed(msgspec.Struct, frozen=True):
    """What sets come to.

    ``best`` the first of those with the highest score (and lowest load, or the other way round where latency counts).
    ``parts`` int64[n, 6]: four parts, the score, the load; ``added`` int64[n, p] parts of plugins, by ``names``.
    ``totals`` of the resource they are judged by; ``outside`` int64[leaves] what is free in the domain around each.
    """

    best: int
    parts: Int64
    added: Int64
    names: tuple[str, ...]
    totals: LeafTotals
    outside: Int64

    def ties(self, number: int, *, latency: bool) -> Int64:
        """Return which sets are worth as much as one of them: the score, and the load where latency counts."""
        equal = self.parts[:, SCORE] == self.parts[number, SCORE]
        if latency:
            equal &= self.parts[:, LOAD] == self.parts[number, LOAD]
        found: Int64 = equal.nonzero()[0]
        return found

    def score(self, number: int) -> ScoreParts:
        """Return the score of a set."""
        availability, alignment, utilization, history, total, _ = self.parts[number].tolist()
        added = tuple(zip(self.names, self.added[number].tolist(), strict=True))
        return ScoreParts(availability, alignment, utilization, history, total, added)


def weigh(
    site: PlanningContext,
    ask: PlacementQuery,
    layout: Layout,
    view: ClassView,
    fit: Int64,
    sets: Sets,
    asked: int,
    now: float,
) -> Weighed:
    """Score sets of leaves.

    Args:
        site: on which it is planned.
        ask: what is to be placed.
        layout: the fabric as the gang sees it.
        view: of its class, of several that which asks for most.
        fit: int64[rows], members of that class each node takes.
        sets: what is scored, one at least.
        asked: what all members ask of the scarce resource of that class.
        now: seconds.

    Raises:
        PluginError: a plugin failed.
    """
    totals = site.totals(view.cls.scarce, layout)
    capacity, used = totals.domains(layout, sets.depth)
    aligned = alignment_of(sets.rule, sets.depth, sets.most)
    across = sets.depth if sets.most > 1 else None
    facts = leaf_facts(site, ask, view, fit, layout, totals, aligned, now, sets.last, across)
    parts = np.empty((sets.count, 6), np.int64)
    strategy = site.extensions.strategy(ask.strategy)
    by = (facts, capacity, used, site.policy.weights, int(strategy.prefers), int(ask.latency), parts)
    best = int(score_sets(sets.leaves, sets.sizes, sets.count, 1, asked, *by))
    added = np.empty((sets.count, len(facts) - 5), np.int64)
    if site.extensions.added_scores:
        # Not above: only those who have such plugins wait until it is compiled.
        from topo_scheduler.kernels.added import weigh_added

        weights = np.concatenate((site.policy.weights, site.policy.added))
        about = (facts[5:], weights, int(ask.latency), parts, added)
        best = int(weigh_added(sets.leaves, sets.sizes, sets.count, *about))
    names = tuple(score.name for score in site.extensions.added_scores)
    return Weighed(best, parts, added, names, totals, capacity - used)


def alignment_of(rule: SizeRule, depth: int, leaves: int) -> int:
    """Return the alignment in thousandths: 1000 at the rule's level and number of leaves, less beyond."""
    return (1000 * rule.leaves // max(leaves, 1)) >> max(0, rule.depth - depth)
