"""The size rule of gangs that ask for bandwidth: what an empty cluster holds, and what its links carry."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.scheduling.placing.ask import GangTraffic, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.second_tree import domains_apart
from topo_scheduler.scheduling.placing.size_rule import leaf_fits, make_rule, named_at, size_rule
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.scheduling.placing.within_links import TRIES, LinkRoom, room_ever, row_sets
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.crossing import depth_in
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.links import Links
from topo_scheduler.state.nodes import Int64


def carried_size_rule(
    links: Links,
    traffic: GangTraffic,
    views: Sequence[ClassView],
    ask: PlacementQuery,
    layout: Layout,
    limits: SizeRuleLimits,
) -> tuple[SizeRule | None, int]:
    """Return what the size rule asks of a gang where links, with nothing else on them, must carry it too.

    Otherwise like `size_rule`: of the deepest level the fewest leaves in which the gang fits and can be carried.
    """
    rule, most = size_rule(views, layout, limits, ask.total_units, ask.within, ask.bounds, ask.segment)
    if rule is None or rule.leaves == 1 or not links.limited:
        return rule, most
    room = room_ever(links, traffic)
    best: tuple[int, int, int, int] | None = None
    for view in views:
        for unlabelled in (0, 1):
            counted = named_at(layout, ask.within) * (1 if unlabelled else layout.aligned)
            needed = _spread(room, view, ask, layout, limits, counted)
            if needed is not None:
                depth, leaves = needed
                nodes = -(-ask.total // max(1, int(view.empty_fit.max())))
                candidate = (unlabelled, -depth, leaves, nodes)
                best = candidate if best is None else min(best, candidate)
                break
    return (make_rule(layout, -best[1], best[2], best[3]) if best is not None else None), most


def _row_sets(room: LinkRoom, fit: Int64, depth: int, ask: PlacementQuery, layout: Layout) -> Iterator[Bool]:
    """Yield sets of rows that links can carry (bool[rows]), in each accelerator domain where one is to be shared."""
    across = depth_in(layout, layout.network, depth)
    for inside in islice(domains_apart(ask, layout, fit), TRIES):
        yield from islice(row_sets(room, inside, across, ask.total), TRIES)


def _spread(
    room: LinkRoom, view: ClassView, ask: PlacementQuery, layout: Layout, limits: SizeRuleLimits, counted: Int64
) -> tuple[int, int] | None:
    """Return (depth, leaves) as `spread_needed` does, of placements that links can carry.

    ``counted`` int64[leaves]: 1 for leaves that may be used.
    """
    total, bounds, segment = ask.total_units, ask.bounds, ask.segment
    held = leaf_fits(view, layout, limits, empty=True, segment=segment) * counted
    if int(held.max(initial=0)) >= total:
        return layout.depth - 1, 1
    fit = np.zeros(len(view.empty_fit), np.int64)
    fit[layout.order] = view.empty_fit[layout.order] * counted[layout.leaf_of_row[layout.order]]
    for depth in range(layout.depth - 1, max(min(ask.within, layout.depth - 1), bounds.depth) - 1, -1):
        least = 0
        for rows in _row_sets(room, fit, depth, ask, layout):
            fits = leaf_fits(view, layout, limits, fit=np.where(rows, fit, 0), segment=segment)
            out = np.empty(len(layout.domains[depth]) - 1, np.int64)
            fewest_leaves(fits, layout.domains[depth], total, out)
            found = out[(out > 0) & ((out <= bounds.leaves) | (not bounds.leaves))]
            if len(found):
                least = min(least or int(found.min()), int(found.min()))
        if least:
            return depth, least
    return None
