"""Choice of leaves for a workload: the planner compares every window of neighbouring leaves of every domain.

The order of preference is in docs/explanation/placement.md. All counts are in units: a member, or a segment of members
that must share a leaf.
"""

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.kernels.windows import choose_sets, narrowest_windows
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.size_rule import named_at, spread_needed
from topo_scheduler.scheduling.placing.scoring.stranding import least_stranding
from topo_scheduler.scheduling.placing.scoring.weighted_score import LOAD_COLUMN, Sets, Weighed, weigh
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

MAX_SCORED_SETS: Final = 4096
"""The most sets of leaves to score, in addition to the fullest set of each window."""
MAX_EXAMINED_SETS: Final = 65_536
"""The most sets of leaves to examine, whether they hold the gang or not."""


class CandidateNodes(msgspec.Struct, frozen=True):
    """Nodes to examine. ``fit`` int64[rows]: members per node. ``fits`` int64[leaves]: units per leaf.

    ``number`` of the view. ``modest``: 0 for the nodes that the class likes best, 1 for all nodes. ``unlabelled``: 1
    where nodes without a full path count as well.
    """

    number: int
    view: ClassView
    fit: Int64
    fits: Int64
    modest: int
    unlabelled: int


class Window(msgspec.Struct, frozen=True):
    """Leaves that hold the gang, and their rank: a lower ``order`` is better."""

    order: tuple[int, ...]
    view: ClassView
    leaves: Int64
    fit: Int64
    fits: Int64
    score: ScoreParts
    candidates: int


def best_window(task: PlanningTask, views: Sequence[ClassView], rule: SizeRule) -> Window | None:
    """Return the best window over all views, None where no window holds the workload."""
    liked_rows = _liked_best(task, views)
    windows = [
        window
        for number, view in enumerate(views)
        if (window := _best_of(task, number, view, liked_rows, rule)) is not None
    ]
    return min(windows, key=lambda window: window.order) if windows else None


def _best_of(
    task: PlanningTask, number: int, view: ClassView, liked_rows: Bool | None, rule: SizeRule
) -> Window | None:
    """Return the best window of one view: on the nodes that the class likes best, or on all nodes."""
    query, layout = task.query, task.layout
    named = named_at(layout, query.within) if query.within else 1
    fit = query.within_links(view.fit)
    selections = [
        (modest, rows_fit, task.context.leaf_fits(view, query, layout, rows_fit) * named)
        for modest, rows_fit in enumerate([fit] if liked_rows is None else [np.where(liked_rows, fit, 0), fit])
    ]
    # A single pod goes to the nodes it prefers, whatever their labels.
    for alternatives in [selections] if query.gang else [[selection] for selection in selections]:
        for unlabelled, counted in ((0, layout.aligned), (1, 1)):
            candidate_sets = [
                CandidateNodes(number, view, fit, fits * counted, modest, unlabelled)
                for modest, fit, fits in alternatives
            ]
            windows = [window for candidates in candidate_sets if (window := _window(task, candidates, rule))]
            if windows:
                return min(windows, key=lambda window: window.order)
    return None


def _apart(query: PlacementQuery, layout: Layout, fits: Int64) -> Int64:
    """Return the units of each leaf; for a single pod, 0 on leaves with more siblings than necessary."""
    if query.gang or not query.siblings or not (has_room := fits >= query.members).any():
        return fits
    leaves = layout.leaf_of_row[np.asarray(query.siblings, np.int64)]
    siblings = np.bincount(leaves[leaves >= 0], minlength=len(fits))
    return np.where(siblings == siblings[has_room].min(), fits, 0)


def _window(task: PlanningTask, candidates: CandidateNodes, rule: SizeRule) -> Window | None:
    query, layout = task.query, task.layout
    fits = _apart(query, layout, candidates.fits)
    depth, leaves = rule.depth, rule.leaves
    if candidates.unlabelled:
        # The rule comes from labelled leaves. With unlabelled ones, fewer leaves may suffice.
        leaves = _fewest(fits, layout, depth, leaves, query)
    first = np.empty(len(fits), np.int64)
    last = np.empty(len(fits), np.int64)
    count = narrowest_windows(fits, layout.domains[depth], leaves, query.units, first, last)
    if count == 0 and query.enforcement is Enforcement.PREFERRED:
        needed = spread_needed(fits, layout, query.units, query.within, query.bounds)
        if needed is not None:
            depth, leaves = needed
            count = narrowest_windows(fits, layout.domains[depth], leaves, query.units, first, last)
    if count == 0:
        return None
    count = _scored(task, first, last, count)
    listed, sizes, listed_count = _sets(fits, first, last, count, leaves, query.units)
    sets = Sets(listed, sizes, listed_count, depth, leaves, rule, last[:count])
    best, weighed = _best_set(task, candidates, sets, fits)
    score = weighed.score(best)
    chosen = listed[best, : sizes[best]].copy()
    width = int(chosen[-1] - chosen[0])
    load = int(weighed.parts[best, LOAD_COLUMN]) if query.latency else 0
    order = (candidates.unlabelled, -depth, leaves, candidates.modest, width, load, -score.total, candidates.number)
    return Window(order, candidates.view, chosen, candidates.fit, fits, score, count)


def _fewest(fits: Int64, layout: Layout, depth: int, leaves: int, query: PlacementQuery) -> int:
    """Return the fewest leaves of one domain in which the gang fits now, at most ``leaves``."""
    needed = np.zeros(len(layout.domains[depth]) - 1, np.int64)
    fewest_leaves(fits, layout.domains[depth], query.units, needed)
    counts = needed[needed > 0]
    return min(leaves, int(counts.min())) if len(counts) else leaves


def _sets(fits: Int64, first: Int64, last: Int64, count: int, leaves: int, units: int) -> tuple[Int64, Int64, int]:
    """Return the sets of leaves to choose from: first the fullest set of each window, then the other sets."""
    width = int(last[0] - first[0]) + 1
    wide = width > leaves > 2
    sets = np.empty((count + (MAX_SCORED_SETS if wide else 0), leaves + 2), np.int64)
    sizes = np.empty(len(sets), np.int64)
    choose_sets(fits, first, last, count, leaves, units, sets, sizes)
    if not wide or int(sizes[:count].min()) < leaves:
        return sets, sizes, count
    # Imported here: most clusters never need it.
    from topo_scheduler.kernels.sets import other_sets

    return sets, sizes, int(other_sets(fits, count, width, units, MAX_EXAMINED_SETS, sets, sizes))


def _scored(task: PlanningTask, first: Int64, last: Int64, count: int) -> int:
    """Return how many windows, from the first on, to score."""
    most_scored, offsets = task.context.policy.most_scored, task.layout.offsets
    if not most_scored:
        return count
    nodes = np.cumsum(offsets[last[:count] + 1] - offsets[first[:count]])
    return max(1, int(np.searchsorted(nodes, most_scored, side="right")))


def _best_set(task: PlanningTask, candidates: CandidateNodes, sets: Sets, fits: Int64) -> tuple[int, Weighed]:
    """Return the best set of leaves: the best score, then the most room left for other gangs."""
    query, view = task.query, candidates.view
    column = view.cls.scarce
    amount = view.cls.amount(column) * query.segment
    weighed = weigh(task, view, candidates.fit, sets, query.units * amount)
    if not query.gang or sets.count == 1 or not (gang_sizes := task.context.history.gangs.sizes(column)):
        return weighed.best, weighed
    ties = weighed.ties(weighed.best, latency=query.latency)
    if len(ties) == 1:
        return weighed.best, weighed
    strategy = task.context.extensions.strategy(query.strategy)
    best = least_stranding(
        ties,
        sets.leaves,
        sets.sizes,
        fits,
        gang_sizes,
        weighed.totals,
        weighed.outside,
        query.units * amount,
        lambda leaves: amount * strategy.leaves(np.ascontiguousarray(fits[leaves]), query.units),
    )
    return best, weighed


def _liked_best(task: PlanningTask, views: Sequence[ClassView]) -> Bool | None:
    """Return the rows that the class likes best of all nodes with room (bool[rows]), whatever their GPU model.

    None where the class has no preference, or no node has room.
    """
    any_model = views[0] if len(views) == 1 else task.context.views.get(views[0].cls)
    if not any_model.choosy:
        return None
    room = np.logical_or.reduce([task.query.within_links(view.fit) > 0 for view in views])
    if not room.any():
        return None
    liked: Bool = any_model.liking == any_model.liking[room].max()
    return liked
