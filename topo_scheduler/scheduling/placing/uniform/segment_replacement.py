"""Replacement of lost members of a gang in segments: each goes to the leaf where the rest of its segment runs."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.text import counted
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementFailure, PlacementQuery
from topo_scheduler.scheduling.placing.uniform.node_assignment import seat_dealt
from topo_scheduler.scheduling.placing.uniform.replacement import distance, fits_beside, reachable, repair_score
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout


def plan_segment_repair(task: PlanningTask, rule: SizeRule, views: Sequence[ClassView]) -> Placement | PlacementFailure:
    """Place lost members where the rest of their segment runs, and lost segments near the others."""
    query, layout, reason = task.query, task.layout, ""
    for view in views:
        fits, fit = fits_beside(task, view)
        leaf_of, lacking = _leaves(query, layout, rule, fits)
        if lacking:
            reason = reason or lacking
            continue
        dealt = Counter(leaf_of[number] for number, _ in query.segments.places)
        leaves = np.array(sorted(dealt), np.int64)
        rows = seat_dealt(task, view, leaves, [dealt[leaf] for leaf in leaves.tolist()], fit)
        if rows is None:
            reason = reason or f"the leaves of its segments could not be filled{task.limits.within}"
            continue
        rows_by_leaf: dict[int, list[int]] = {}
        for row in rows:
            rows_by_leaf.setdefault(int(layout.leaf_of_row[row]), []).append(row)
        next_row = {leaf: iter(leaf_rows) for leaf, leaf_rows in rows_by_leaf.items()}
        placed = [next(next_row[leaf_of[number]]) for number, _ in query.segments.places]
        used = sorted({*layout.leaves_of(query.running), *leaf_of.values()})
        return Placement([placed], used, rule, repair_score(task, view, used, rule), 1)
    return PlacementFailure(reason, rule)


def _leaves(query: PlacementQuery, layout: Layout, rule: SizeRule, fits: Int64) -> tuple[dict[int, int], str]:
    """Return the leaf of each segment that lacks members, or the reason why a segment has no leaf."""
    missing = Counter(number for number, _ in query.segments.places)
    leaf_of_segment: dict[int, int] = {}
    room = fits.copy()
    for number, leaf in dict(query.segments.places).items():
        if leaf >= 0:
            if room[leaf] < missing[number]:
                path = "/".join(layout.paths[leaf])
                pods = counted(missing[number], "pod")
                return {}, f"no room for {pods} in {path}, where the rest of their segment runs"
            room[leaf] -= missing[number]
            leaf_of_segment[number] = leaf
    home = sorted(layout.leaves_of(query.running))
    near, additional_leaves = reachable(query, layout, rule, home)
    order = sorted({*near, *home}, key=lambda leaf: (*distance(layout, leaf, home), -int(room[leaf]), leaf))
    opened: set[int] = set()
    for number, count in missing.items():
        if number in leaf_of_segment:
            continue
        for leaf in order:
            additional = leaf not in home and leaf not in opened
            if room[leaf] >= count and not (additional and len(opened) >= additional_leaves):
                opened |= {leaf} if additional else set()
                room[leaf] -= count
                leaf_of_segment[number] = leaf
                break
        else:
            return {}, f"no leaf near the {len(query.running)} members that run has room for a segment of {count} pods"
    return leaf_of_segment, ""
