"""The size rule of gangs that ask for bandwidth: an empty cluster must hold them, and its links must carry them."""

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.scheduling.placing.bandwidth.feasible_sets import MAX_ROW_SETS, LinkRoom, room_ever, row_sets
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import GangTraffic, PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.second_tree import domains_apart
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits, named_at, narrowest_rule, size_rule
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.links import Links
from topo_scheduler.state.topology.topology_merge import depth_in


def size_rule_with_links(
    links: Links,
    traffic: GangTraffic,
    views: Sequence[ClassView],
    query: PlacementQuery,
    layout: Layout,
    limits: SizeRuleLimits,
) -> tuple[SizeRule | None, int]:
    """Return the size rule of a gang that links without other traffic must carry as well, and the most that fit.

    Otherwise like `size_rule`: at the deepest level, the fewest leaves that hold the gang and whose links carry it.
    """
    rule, capacity = size_rule(views, query, layout, limits)
    if rule is None or rule.leaves == 1 or not links.limited:
        return rule, capacity
    room = room_ever(links, traffic)

    def needed(number: int, unlabelled: int) -> tuple[int, int] | None:
        usable = named_at(layout, query.within) * (1 if unlabelled else layout.aligned)
        return _spread(room, views[number], query, layout, limits, usable)

    return narrowest_rule(views, layout, query.total, needed), capacity


def _row_sets(room: LinkRoom, fit: Int64, depth: int, query: PlacementQuery, layout: Layout) -> Iterator[Bool]:
    """Yield sets of rows that links can carry (bool[rows]), per accelerator domain where the gang must share one."""
    across = depth_in(layout, layout.network, depth)
    for inside in islice(domains_apart(query, layout, fit), MAX_ROW_SETS):
        yield from islice(row_sets(room, inside, across, query.total), MAX_ROW_SETS)


def _spread(
    room: LinkRoom, view: ClassView, query: PlacementQuery, layout: Layout, limits: SizeRuleLimits, usable: Int64
) -> tuple[int, int] | None:
    """Return (depth, leaves) as `size_rule.spread_needed` does, for placements that links can carry.

    ``usable`` int64[leaves]: 1 for leaves that the gang may use, else 0.
    """
    total, bounds, segment = query.total_units, query.bounds, query.segment
    units_held = leaf_fits(view, layout, limits, empty=True, segment=segment) * usable
    if int(units_held.max(initial=0)) >= total:
        return layout.depth - 1, 1
    fit = np.zeros(len(view.empty_fit), np.int64)
    fit[layout.order] = view.empty_fit[layout.order] * usable[layout.leaf_of_row[layout.order]]
    for depth in range(layout.depth - 1, max(min(query.within, layout.depth - 1), bounds.depth) - 1, -1):
        fewest = 0
        for rows in _row_sets(room, fit, depth, query, layout):
            fits = leaf_fits(view, layout, limits, fit=np.where(rows, fit, 0), segment=segment)
            leaves_needed = np.empty(len(layout.domains[depth]) - 1, np.int64)
            fewest_leaves(fits, layout.domains[depth], total, leaves_needed)
            counts = leaves_needed[(leaves_needed > 0) & ((leaves_needed <= bounds.leaves) | (not bounds.leaves))]
            if len(counts):
                fewest = min(fewest or int(counts.min()), int(counts.min()))
        if fewest:
            return depth, fewest
    return None
