"""Gangs that ask for no accelerator domain get one where it costs nothing: as near as without it, all in one."""

from collections.abc import Sequence
from dataclasses import replace

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.choice import Window, best_window
from topo_scheduler.scheduling.placing.seats import seat
from topo_scheduler.scheduling.placing.second_tree import moved
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.crossing import crossed, depth_in
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout


def in_one_domain(
    site: PlanningContext,
    ask: PlacementQuery,
    layout: Layout,
    window: Window,
    views: Sequence[ClassView],
    rule: SizeRule,
    now: float,
) -> Placement | None:
    """Return a placement as close as a window, all of it in one accelerator domain; None where there is none.

    The innermost level of the second tree first. Of gangs that ask for no such level, and look only for what they would
    get anyway: as many leaves of as deep a domain.
    """
    tree = layout.accelerators
    if tree is None or layout.woven or layout.inner is not None or not ask.gang or ask.in_segments or ask.traffic:
        return None
    unlabelled, depth, leaves = window.order[0], -window.order[1], window.order[2]
    for level in reversed(tree.levels):
        there = crossed(layout, (level,))
        within = there.levels.index(level) + 1
        if leaves > 1 and within >= there.depth:
            continue  # such a domain is part of one leaf
        inside = there.depth - 1 if leaves == 1 else max(within, depth_in(layout, there, depth))
        asked = replace(moved(ask, layout, there), within=max(within, depth_in(layout, there, ask.within)))
        asked = replace(asked, enforcement=Enforcement.REQUIRED)
        found = best_window(site, views, asked, there, replace(rule, depth=inside, leaves=leaves), now)
        if found is None or found.order[0] > unlabelled:
            continue
        rows = seat(site, asked, found.view, found.leaves, found.fits, there, found.fit)
        if rows is not None:
            used = sorted(layout.leaves_of(rows))
            return Placement([rows], used, rule, found.score, window.candidates, shared=(level,))
    return None
