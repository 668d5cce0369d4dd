"""The size rule with bandwidth, for gangs of several classes and gangs whose members have constraints on each other.

It works as for gangs of one class (`size_rule_uniform`). The placement found on the empty cluster may overload
a link. Then the planner searches again, within sets of rows in which the links can carry any placement.
"""

from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from topo_scheduler.scheduling.placing.bandwidth.feasible_sets import MAX_ROW_SETS, LinkRoom, room_ever, row_sets
from topo_scheduler.scheduling.placing.bandwidth.reserving_members import reserving_rows
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.heterogeneous.packer import Found
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.model.size_rule import make_rule
from topo_scheduler.scheduling.rules.interpod_filters import settled_links
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.links import Links

Find = Callable[[PlacementQuery, int | None], Found | None]
"""Finds a placement of a query on the empty cluster; where a depth is given, at that depth only."""


def links_key(task: PlanningTask) -> object:
    """Return what a size rule depends on in addition to nodes, for use in cache keys."""
    if task.query.traffic is None:
        return None
    return task.query.traffic.bandwidth, _links(task).capacity_changes


def _links(task: PlanningTask) -> Links:
    return settled_links(task.context.around, task.layout.inner or task.layout)


def rule_with_links(task: PlanningTask, find: Find, variants: Sequence[list[ClassView]]) -> SizeRule | None:
    """Return the size rule: that of a placement which the links can carry when they are all unused; None without one.

    It takes the deepest level possible, then the fewest leaves found there.

    Args:
        task: the gang.
        find: finds a placement and ignores links.
        variants: a view of each class, for each GPU model that the whole gang may use.
    """
    fit = np.max([np.sum([view.empty_fit for view in views], axis=0) for views in variants], axis=0)
    placed = _placement_with_links(task, find, fit)
    if placed is None:
        return None
    depth, leaves, rows = placed
    return make_rule(task.layout, depth, leaves, len({row for group in rows for row in group}))


def _placement_with_links(task: PlanningTask, find: Find, fit: Int64) -> Found | None:
    query, layout = task.query, task.layout
    if query.traffic is None:
        return find(query, None)
    placed = find(query.restricted_to(None), None)
    links = _links(task)
    if placed is None or not links.limited:
        return placed
    room = room_ever(links, query.traffic)
    if _carries(room, task, placed):
        return placed
    for depth in range(placed[0], max(min(query.within, layout.depth - 1), query.bounds.depth) - 1, -1):
        best: Found | None = None
        for rows in islice(row_sets(room, fit, depth, query.members), MAX_ROW_SETS):
            candidate = find(query.restricted_to(rows), depth)
            if candidate is not None and _carries(room, task, candidate) and (best is None or candidate[1] < best[1]):
                best = candidate
        if best is not None:
            return best
    return None


def _carries(room: LinkRoom, task: PlanningTask, placed: Found) -> bool:
    """Return whether links without other traffic can serve the nodes of a placement."""
    reserving = reserving_rows(task.query.groups, placed[2], task.context.nodes.resources)
    rows = np.unique(np.array(reserving, np.int64))
    below = np.bincount(room.wiring.of_row[rows].ravel(), minlength=len(room.below))
    return bool((np.minimum(below, len(rows) - below) <= room.below).all())
