"""Gangs that ask for no accelerator domain: they are placed in a single one if that makes the placement no wider."""

from collections.abc import Sequence
from dataclasses import replace

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import Placement
from topo_scheduler.scheduling.placing.model.second_tree import convert_query
from topo_scheduler.scheduling.placing.uniform.leaf_choice import Window, best_window
from topo_scheduler.scheduling.placing.uniform.node_assignment import seat
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.topology.topology_merge import crossed, depth_in


def in_one_domain(task: PlanningTask, window: Window, views: Sequence[ClassView], rule: SizeRule) -> Placement | None:
    """Return a placement in one accelerator domain that is as close as a window; None where there is none.

    The function tries the innermost level of the second tree first. It uses the same number of leaves, and a domain of
    the same depth, as the window. It applies only to gangs that ask for no level of the second tree.
    """
    query, layout, tree = task.query, task.layout, task.layout.accelerators
    if tree is None or layout.woven or layout.inner is not None or not query.gang or query.in_segments or query.traffic:
        return None
    unlabelled, depth, leaves = window.order[0], -window.order[1], window.order[2]
    for level in reversed(tree.levels):
        woven_layout = crossed(layout, (level,))
        within = woven_layout.levels.index(level) + 1
        if leaves > 1 and within >= woven_layout.depth:
            continue  # a domain of this level is part of one leaf
        rule_depth = woven_layout.depth - 1 if leaves == 1 else max(within, depth_in(layout, woven_layout, depth))
        domain_query = replace(
            convert_query(query, layout, woven_layout),
            within=max(within, depth_in(layout, woven_layout, query.within)),
            enforcement=Enforcement.REQUIRED,
        )
        domain_task = PlanningTask(task.context, domain_query, woven_layout, task.now)
        domain_window = best_window(domain_task, views, replace(rule, depth=rule_depth, leaves=leaves))
        if domain_window is None or domain_window.order[0] > unlabelled:
            continue
        rows = seat(domain_task, domain_window.view, domain_window.leaves, domain_window.fits, domain_window.fit)
        if rows is not None:
            used_leaves = sorted(layout.leaves_of(rows))
            return Placement([rows], used_leaves, rule, domain_window.score, window.candidates, shared=(level,))
    return None
