"""Which nodes of the leaves that were chosen."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.kernels.windows import choose_leaves, narrowest_windows
from topo_scheduler.scheduling.extensions.extension import LeafSeats
from topo_scheduler.scheduling.placing import node_scores
from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.size_rule import leaf_fits
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def seat(
    site: PlanningContext,
    ask: PlacementQuery,
    view: ClassView,
    leaves: Int64,
    fits: Int64,
    layout: Layout,
    fit: Int64 | None = None,
) -> list[int] | None:
    """Return one row a member in order of the fabric, or None where the limits per leaf leave some without.

    ``fits`` units each leaf takes, ``fit`` members each row may take, where that is less than what the view says.
    """
    fit = view.fit if fit is None else fit
    strategy = site.extensions.strategy(ask.strategy)
    if layout.inner is not None:
        dealt = strategy.leaves(np.ascontiguousarray(fits[leaves]), ask.units).tolist()
        return _seat_in_blocks(site, ask, view, leaves, dealt, layout, layout.inner, fit)
    dealt = strategy.leaves(np.ascontiguousarray(fits[leaves]), ask.units).tolist()
    if sum(dealt) < ask.units:
        return None
    return seat_dealt(site, ask, view, leaves, [units * ask.segment for units in dealt], layout, fit)


def _seat_in_blocks(
    site: PlanningContext,
    ask: PlacementQuery,
    view: ClassView,
    blocks: Int64,
    dealt: Sequence[int],
    outer: Layout,
    layout: Layout,
    fit: Int64,
) -> list[int] | None:
    """Return the same where segments lie in blocks of leaves: in each block the fewest leaves, next to each other."""
    fits = leaf_fits(view, layout, site.limits_for(ask), fit=fit)
    strategy = site.extensions.strategy(ask.strategy)
    rows: list[int] = []
    for block, units in zip(blocks.tolist(), dealt, strict=True):
        if not units:
            continue
        domain = np.ascontiguousarray(outer.blocks[block : block + 2])
        members, found = units * ask.segment, np.zeros(1, np.int64)
        fewest_leaves(fits, domain, members, found)
        first, last = np.empty(len(fits), np.int64), np.empty(len(fits), np.int64)
        narrowest_windows(fits, domain, int(found[0]), members, first, last)
        leaves = np.empty(int(found[0]) + 2, np.int64)
        leaves = leaves[: choose_leaves(fits, int(first[0]), int(last[0]), int(found[0]), members, leaves)]
        some = strategy.leaves(np.ascontiguousarray(fits[leaves]), members).tolist()
        seated = seat_dealt(site, ask, view, leaves, some, layout, fit)
        if seated is None:
            return None
        rows += seated
    return rows


def seat_dealt(
    site: PlanningContext,
    ask: PlacementQuery,
    view: ClassView,
    leaves: Int64,
    dealt: Sequence[int],
    layout: Layout,
    fit: Int64,
) -> list[int] | None:
    """Return one row a member in order of the leaves, of which each gets so many; None where limits are in the way.

    ``fit`` int64[rows] members each row may take.
    """
    strategy = site.extensions.strategy(ask.strategy)
    free = site.totals(view.cls.scarce, layout).free_by_row
    siblings = np.zeros(site.nodes.rows if strategy.apart else 0, np.int64)
    if strategy.apart:
        np.add.at(siblings, np.asarray([*ask.siblings, *ask.running], np.int64), 1)
    preference = node_scores.preference(site, ask, view, fit, layout, leaves)
    amount = view.cls.amount(view.cls.scarce)
    most = site.limits_for(ask).max_nodes_per_leaf
    rows: list[int] = []
    for leaf, members in zip(leaves.tolist(), dealt, strict=True):
        if members:
            inside = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            counts = strategy.nodes(LeafSeats(inside, fit, free, preference, siblings, amount, members, most))
            if counts is None:
                return None
            rows += np.repeat(inside, counts).tolist()
    return rows
