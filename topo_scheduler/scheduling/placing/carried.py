"""The size rule of gangs of different pods, and of those that look at each other, where links must carry them too.

As for gangs of one class (`link_rule`): where the place that is found on the empty cluster would take more than some
link carries, it is looked for within sets of rows in which any placement will do.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice

import numpy as np

from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.packer import Found
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.within_links import TRIES, LinkRoom, room_ever, row_sets
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.neighbours import settled_links
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64

Find = Callable[[PlacementQuery, int | None], Found | None]
"""Finds a place on the empty cluster for an ask: at one level only, where that is given."""


def links_key(site: PlanningContext, ask: PlacementQuery, layout: Layout) -> object:
    """Return what a size rule depends on beside nodes, for use in the keys of caches."""
    if ask.traffic is None:
        return None
    return ask.traffic.bandwidth, settled_links(site.around, layout.inner or layout).capacity_changes


def carried(site: PlanningContext, ask: PlacementQuery, layout: Layout, find: Find, fit: Int64) -> Found | None:
    """Return the deepest level, the fewest leaves found of it, and a place there that links, all free, can carry.

    Args:
        site: on which it is planned.
        ask: what is to be placed.
        layout: the fabric as the gang sees it.
        find: finds a place whatever links carry.
        fit: int64[rows], members each row of the empty cluster takes.
    """
    if ask.traffic is None:
        return find(ask, None)
    found = find(_on(ask, None), None)
    links = settled_links(site.around, layout.inner or layout)
    if found is None or not links.limited:
        return found
    room = room_ever(links, ask.traffic)
    if _carries(room, found):
        return found
    for depth in range(found[0], max(min(ask.within, layout.depth - 1), ask.bounds.depth) - 1, -1):
        best: Found | None = None
        for rows in islice(row_sets(room, fit, depth, ask.members), TRIES):
            one = find(_on(ask, rows), depth)
            if one is not None and _carries(room, one) and (best is None or one[1] < best[1]):
                best = one
        if best is not None:
            return best
    return None


def _carries(room: LinkRoom, found: Found) -> bool:
    """Return whether links with nothing else on them serve the nodes of a placement."""
    rows = np.unique(np.fromiter(_rows(found[2]), np.int64))
    below = np.bincount(room.wiring.of_row[rows].ravel(), minlength=len(room.below))
    return bool((np.minimum(below, len(rows) - below) <= room.below).all())


def _rows(groups: Iterable[Iterable[int]]) -> Iterable[int]:
    return (row for group in groups for row in group)


def _on(ask: PlacementQuery, rows: Bool | None) -> PlacementQuery:
    assert ask.traffic is not None
    return replace(ask, traffic=replace(ask.traffic, open=rows))
