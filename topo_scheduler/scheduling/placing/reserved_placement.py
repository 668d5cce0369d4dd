"""Placement of members on nodes that were reserved for them, validated like any other placement."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.scheduling.placing.checks.validation import check
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.model.second_tree import network_leaves_of
from topo_scheduler.scheduling.placing.model.size_rule import make_rule
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.uniform.replacement import repair_score
from topo_scheduler.state.pods.workloads import Member
from topo_scheduler.state.topology.fabric import Layout


def place_in_seats(
    planner: Planner,
    query: PlacementQuery,
    members: Sequence[Sequence[Member]],
    rows: Mapping[str, int],
    layout: Layout,
    now: float,
) -> Placement | None:
    """Return the placement in which each member has its reserved row; None where that is not allowed any more.

    Args:
        planner: of the current state.
        query: the members to place.
        members: of each group of the query.
        rows: the reserved row of each member, by uid.
        layout: the fabric.
        now: seconds.
    """
    if len(query.groups) > 1 and not query.running:
        return None  # only the planner of heterogeneous gangs knows its size rule
    views = planner.views_for(query)
    anywhere = make_rule(layout, query.bounds.depth, max(1, query.bounds.leaves or len(layout.paths)), 1)
    rule = (planner.rule(views, query, layout)[0] if len(query.groups) == 1 else None) or anywhere
    rows_by_group = [[rows[member.uid] for member in group] for group in members]
    rows_of_all = [row for group_rows in rows_by_group for row in group_rows]
    if any(layout.leaf_of_row[row] < 0 for row in rows_of_all):
        return None  # a node that lost the label of its accelerator domain
    leaves = sorted(layout.leaves_of([*rows_of_all, *query.running]))
    score = repair_score(PlanningTask(planner, query, layout, now), views[0], leaves, rule)
    seated = (
        [(group, position) for group, group_rows in enumerate(rows_by_group) for position in range(len(group_rows))]
        if query.profiles
        else []
    )
    placement = Placement(rows_by_group, leaves, rule, score, 1, seated, query.bounds)
    if check(planner.around, layout, query, placement, planner.limits_for(query)):
        return None
    return replace(placement, leaves=network_leaves_of(layout, query, placement)) if layout.woven else placement
