"""Placing members into seats that were held for them, checked as any other placement is."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.placing.repair import repair_score
from topo_scheduler.scheduling.placing.second_tree import network_leaves_of
from topo_scheduler.scheduling.placing.size_rule import make_rule
from topo_scheduler.scheduling.placing.validation import check
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.workloads import Member


def place_in_seats(
    planner: Planner,
    ask: PlacementQuery,
    members: Sequence[Sequence[Member]],
    rows: Mapping[str, int],
    layout: Layout,
    now: float,
) -> Placement | None:
    """Return the placement in which each member has its seat; None where that may not be any more.

    Args:
        planner: on the state as it is.
        ask: what is asked for them.
        members: those of each group of the ask.
        rows: the seat of each, by uid.
        layout: the fabric.
        now: seconds.
    """
    if len(ask.groups) > 1 and not ask.running:
        return None  # what its size rule is takes the planner of mixed gangs to tell
    views = planner.views_for(ask)
    if not views:
        return None
    anywhere = make_rule(layout, ask.bounds.depth, max(1, ask.bounds.leaves or len(layout.paths)), 1)
    rule = (planner.rule(views, ask, layout)[0] if len(ask.groups) == 1 else None) or anywhere
    seats = [[rows[member.uid] for member in group] for group in members]
    rows_of_all = [row for some in seats for row in some]
    if any(layout.leaf_of_row[row] < 0 for row in rows_of_all):
        return None  # of a node that does not tell the accelerator domain it should be in any more
    leaves = sorted(layout.leaves_of([*rows_of_all, *ask.running]))
    score = repair_score(planner, ask, layout, views[0], leaves, rule, now)
    seated = [(group, at) for group, some in enumerate(seats) for at in range(len(some))] if ask.profiles else []
    placement = Placement(seats, leaves, rule, score, 1, seated, ask.bounds)
    if check(planner.around, layout, ask, placement, planner.limits_for(ask)):
        return None
    return replace(placement, leaves=network_leaves_of(layout, ask, placement)) if layout.woven else placement
