"""Scores of single nodes, which only plugins provide: their mean by leaf, and the order of nodes in a leaf."""

import numpy as np

from topo_scheduler.scheduling.extensions.extension import WHOLE, Request, Score
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout


def by_leaf(context: PlanningContext, score: Score, request: Request, fit: Int64, layout: Layout, until: int) -> Int64:
    """Return for each leaf the mean score of its nodes that can take a member now, 0 where none can (int64[leaves]).

    Only nodes up to and including the leaf ``until`` get a score.

    Raises:
        PluginError: the score failed.
    """
    assert score.nodes is not None
    candidates = layout.order[: layout.offsets[until + 1]]
    scored_rows = _scored(context, candidates, fit)
    sums, counts = np.zeros(len(layout.paths), np.int64), np.zeros(len(layout.paths), np.int64)
    if len(scored_rows):
        leaves = layout.leaf_of_row[scored_rows]
        np.add.at(sums, leaves, score.nodes(context.nodes, request, scored_rows))
        np.add.at(counts, leaves, 1)
    return sums // np.maximum(counts, 1)


def preference(task: PlanningTask, view: ClassView, fit: Int64, leaves: Int64) -> Int64:
    """Return the preference for each row of these leaves (int64[rows]): of the pod first, then by scores of nodes.

    Raises:
        PluginError: a score failed.
    """
    context, query, layout = task.context, task.query, task.layout
    if not context.extensions.scores_nodes:
        return view.preference
    scores = [
        (score, weight)
        for score, weight in zip(context.extensions.added_scores, context.policy.added.tolist(), strict=True)
        if score.nodes is not None and weight
    ]
    if not scores:
        return view.preference
    candidates = np.concatenate([layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]] for leaf in leaves])
    scored_rows = _scored(context, candidates, fit)
    request = Request(view.cls, query.members, query.gang, query.strategy)
    combined: Int64 = view.preference * (sum(weight for _, weight in scores) * WHOLE + 1)
    for score, weight in scores:
        assert score.nodes is not None
        if len(scored_rows):
            combined[scored_rows] += weight * score.nodes(context.nodes, request, scored_rows)
    return combined


def _scored(context: PlanningContext, rows: Int64, fit: Int64) -> Int64:
    fitting: Int64 = rows[fit[rows] > 0]
    limit = context.policy.most_scored
    return fitting[:limit] if limit else fitting
