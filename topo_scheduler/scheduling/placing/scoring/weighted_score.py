"""The weighted score of sets of leaves. The formulas are in docs/explanation/scoring.md."""

from typing import Final

import msgspec
import numpy as np

from topo_scheduler.kernels.windows import score_sets
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.scheduling.placing.scoring.leaf_facts import leaf_facts
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64

SCORE_COLUMN: Final = 4
"""Column of the score in `Weighed.parts`."""
LOAD_COLUMN: Final = 5
"""Column of the link load in `Weighed.parts`."""


class Sets(msgspec.Struct, frozen=True):
    """Sets of leaves that hold a gang, each in one domain of a level.

    ``leaves`` int64[>= n, k]: leaves of each set, ascending. ``sizes`` int64[>= n]: number of leaves in each set.
    ``count``: number of sets. ``depth``: of the level. ``max_leaves``: the most leaves allowed there. ``rule``: size
    rule of the gang. ``last`` int64[m]: nodes in leaves after all of these need no score.
    """

    leaves: Int64
    sizes: Int64
    count: int
    depth: int
    max_leaves: int
    rule: SizeRule
    last: Int64


class Weighed(msgspec.Struct, frozen=True):
    """The scores of sets.

    ``best``: the first set with the highest score, then the lowest load; where latency counts, load comes first.
    ``parts`` int64[n, 6 + p]: four parts, the score, the load, and parts of plugins, which ``names`` lists.
    ``totals``: of the resource that decides. ``outside`` int64[leaves]: free amount of the domain around each leaf.
    """

    best: int
    parts: Int64
    names: tuple[str, ...]
    totals: LeafTotals
    outside: Int64

    def ties(self, number: int, *, latency: bool) -> Int64:
        """Return the indexes of sets with the same score as one of them, and the same load where latency counts."""
        equal = self.parts[:, SCORE_COLUMN] == self.parts[number, SCORE_COLUMN]
        if latency:
            equal &= self.parts[:, LOAD_COLUMN] == self.parts[number, LOAD_COLUMN]
        indexes: Int64 = equal.nonzero()[0]
        return indexes

    def score(self, number: int) -> ScoreParts:
        """Return the score of a set."""
        availability, alignment, utilization, history, total, _, *added = self.parts[number].tolist()
        added_by_name = tuple(zip(self.names, added, strict=True))
        return ScoreParts(availability, alignment, utilization, history, total, added_by_name)


def weigh(task: PlanningTask, view: ClassView, fit: Int64, sets: Sets, requested: int) -> Weighed:
    """Score sets of leaves.

    Args:
        task: what to plan.
        view: of its class; with several classes, of the most demanding one.
        fit: int64[rows], members of that class that each node takes.
        sets: the sets to score, at least one.
        requested: request of all members for the scarce resource of that class.

    Raises:
        PluginError: a plugin failed.
    """
    context, query, layout = task.context, task.query, task.layout
    totals = context.totals(view.cls.scarce, layout)
    capacity, used = totals.domains(layout, sets.depth)
    # 1000 at the rule's level and number of leaves, less beyond.
    aligned = (1000 * sets.rule.leaves // max(sets.max_leaves, 1)) >> max(0, sets.rule.depth - sets.depth)
    across = sets.depth if sets.max_leaves > 1 else None
    facts = leaf_facts(task, view, fit, totals, aligned, sets.last, across)
    names = tuple(score.name for score in context.extensions.added_scores)
    weights = np.concatenate((context.policy.weights, context.policy.added)) if names else context.policy.weights
    parts = np.empty((sets.count, 6 + len(names)), np.int64)
    strategy = context.extensions.strategy(query.strategy)
    score_arguments = (facts, capacity, used, weights, int(strategy.prefers), int(query.latency), parts)
    best = int(score_sets(sets.leaves, sets.sizes, sets.count, 1, requested, *score_arguments))
    return Weighed(best, parts, names, totals, capacity - used)
