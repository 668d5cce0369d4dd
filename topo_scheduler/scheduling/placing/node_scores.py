"""Scores of single nodes, which only plugins have: what they say of leaves, and of the nodes in one."""

import numpy as np

from topo_scheduler.scheduling.extensions.extension import WHOLE, Request, Score
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def by_leaf(site: PlanningContext, score: Score, request: Request, fit: Int64, layout: Layout, until: int) -> Int64:
    """Return for each leaf the mean score of its nodes that can take a member now, 0 where none can (int64[leaves]).

    Nodes are asked about up to the leaf ``until``.

    Raises:
        PluginError: the score failed.
    """
    assert score.nodes is not None
    inside = layout.order[: layout.offsets[until + 1]]
    rows = _scored(site, inside, fit)
    sums, counts = np.zeros(len(layout.paths), np.int64), np.zeros(len(layout.paths), np.int64)
    if len(rows):
        leaves = layout.leaf_of_row[rows]
        np.add.at(sums, leaves, score.nodes(site.nodes, request, rows))
        np.add.at(counts, leaves, 1)
    return sums // np.maximum(counts, 1)


def preference(
    site: PlanningContext, ask: PlacementQuery, view: ClassView, fit: Int64, layout: Layout, leaves: Int64
) -> Int64:
    """Return how much each row of these leaves is preferred (int64[rows]): by the pod first, then by scores of nodes.

    Raises:
        PluginError: a score failed.
    """
    if not site.extensions.scores_nodes:
        return view.preference
    scores = [
        (score, weight)
        for score, weight in zip(site.extensions.added_scores, site.policy.added.tolist(), strict=True)
        if score.nodes is not None and weight
    ]
    if not scores:
        return view.preference
    inside = np.concatenate([layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]] for leaf in leaves])
    rows = _scored(site, inside, fit)
    request = Request(view.cls, ask.members, ask.gang, ask.strategy)
    found: Int64 = view.preference * (sum(weight for _, weight in scores) * WHOLE + 1)
    for score, weight in scores:
        assert score.nodes is not None
        if len(rows):
            found[rows] += weight * score.nodes(site.nodes, request, rows)
    return found


def _scored(site: PlanningContext, rows: Int64, fit: Int64) -> Int64:
    fitting: Int64 = rows[fit[rows] > 0]
    most = site.policy.most_scored
    return fitting[:most] if most else fitting
