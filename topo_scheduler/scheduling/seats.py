"""Which nodes of the leaves that were chosen."""

import numpy as np

from topo_scheduler.scheduling import node_scores
from topo_scheduler.scheduling.ask import Ask
from topo_scheduler.scheduling.extension import LeafSeats
from topo_scheduler.scheduling.site import Site
from topo_scheduler.scheduling.views import ClassView
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def seat(
    site: Site, ask: Ask, view: ClassView, leaves: Int64, fits: Int64, layout: Layout, fit: Int64 | None = None
) -> list[int] | None:
    """Return one row a member in order of the fabric, or None where the limits per leaf leave some without.

    ``fits`` units each leaf takes, ``fit`` members each row may take, where that is less than what the view says.
    """
    fit = view.fit if fit is None else fit
    strategy = site.extensions.strategy(ask.strategy)
    dealt = strategy.leaves(np.ascontiguousarray(fits[leaves]), ask.units).tolist()
    if sum(dealt) < ask.units:
        return None
    free = site.totals(view.cls.scarce, layout).free_by_row
    siblings = np.zeros(site.nodes.rows if strategy.apart else 0, np.int64)
    if strategy.apart:
        np.add.at(siblings, np.asarray([*ask.siblings, *ask.running], np.int64), 1)
    preference = node_scores.preference(site, ask, view, fit, layout, leaves)
    amount = view.cls.amount(view.cls.scarce)
    most = site.limits_for(ask).max_nodes_per_leaf
    rows: list[int] = []
    for leaf, units in zip(leaves.tolist(), dealt, strict=True):
        if units:
            members = units * ask.segment
            inside = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            counts = strategy.nodes(LeafSeats(inside, fit, free, preference, siblings, amount, members, most))
            if counts is None:
                return None
            rows += np.repeat(inside, counts).tolist()
    return rows
