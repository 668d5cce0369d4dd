"""The facts by which leaves are scored: capacity, use, alignment, history, link load, and scores of plugins."""

import numpy as np

from topo_scheduler.scheduling.extensions.extension import Leaves, Request
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext, PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.scheduling.placing.scoring import node_scores
from topo_scheduler.scheduling.rules.interpod_filters import settled_links
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.links import Links
from topo_scheduler.state.topology.topology_merge import depth_in, network_leaves


def leaf_facts(
    task: PlanningTask,
    view: ClassView,
    fit: Int64,
    totals: LeafTotals,
    aligned: int,
    last: Int64,
    across: int | None = None,
) -> Int64:
    """Return int64[5 + p, leaves]: capacity, use, alignment, history, link load, and p parts of plugins.

    ``fit`` int64[rows]: members each node takes. ``last``: last leaf of each window; nodes after the last of these
    leaves get no score. ``across``: depth of the domain that placements in several leaves share, None for one leaf.
    """
    context, query, layout = task.context, task.query, task.layout
    scores = context.extensions.scores
    facts = np.empty((3 + len(scores), len(layout.paths)), np.int64)
    facts[0] = totals.capacity
    facts[1] = totals.used
    request = Request(view.cls, query.members, query.gang, query.strategy, aligned, query.preferred)
    record = _record(context, layout, task.now)
    leaves = Leaves(layout.paths, layout.order, layout.offsets, fit, facts[0], facts[1], layout.aligned, record)
    for index, score in zip((2, 3, *range(5, len(facts))), scores, strict=True):
        if score.leaves is not None:
            facts[index] = score.leaves(leaves, request)
        else:
            facts[index] = node_scores.by_leaf(context, score, request, fit, layout, int(last.max()))
    facts[4] = load_of_leaves(context, layout, totals, across) if query.latency else 0
    return facts


def _record(context: PlanningContext, layout: Layout, now: float) -> Int64:
    if layout.plain is not None and layout.inner is None:
        # The history of a leaf applies to each part of it.
        return np.ascontiguousarray(_record(context, layout.plain, now)[network_leaves(layout)])
    neutral = context.neutral(layout)
    if not (recorded_paths := context.history.known()):
        return neutral
    record = neutral.copy()
    for path in recorded_paths:
        leaf = layout.index.get(path)
        if leaf is not None:
            record[leaf] = context.history.score(path, now)
    return record


def load_of_leaves(context: PlanningContext, layout: Layout, totals: LeafTotals, across: int | None) -> Int64:
    """Return the load of the links of each leaf (int64[leaves]); without known capacity, the used share of the leaf."""
    share: Int64 = 1000 * totals.used // np.maximum(totals.capacity, 1)
    if layout.inner is not None:
        return share  # links are those of all levels
    if across is not None:
        across = depth_in(layout, layout.network, across)
    return _link_load(settled_links(context.around, layout), layout, share, across)


def _link_load(links: Links, layout: Layout, share: Int64, across: int | None) -> Int64:
    """Return the load of the links of each leaf (int64[leaves], in thousandths).

    The load is the reserved share of the networks of all nodes in the leaf. For placements in several leaves of one
    domain it is at least the load of the most loaded uplink between leaf and domain. Links of unknown capacity are
    unlimited, so reservations do not load them.

    Args:
        links: settled.
        layout: the fabric.
        share: int64[leaves], the load of leaves without a known capacity, in thousandths.
        across: depth of the domain, None for placements in one leaf.
    """
    wiring, capacity, reserved = links.wiring, links.capacity, links.reserved
    has_capacity = capacity[layout.order] > 0
    total_capacity, total_reserved = (
        np.add.reduceat(np.where(has_capacity, of_link[layout.order], 0), layout.offsets[:-1])
        for of_link in (capacity, reserved)
    )
    load = 1000 * total_reserved // np.maximum(total_capacity, 1)
    load = np.where(total_capacity > 0, load, -1)
    if across is not None:
        # The first node of a leaf has the links above the leaf.
        above = wiring.of_row[layout.order[layout.offsets[:-1]], across + 1 :]
        uplinks = np.where(capacity[above] > 0, 1000 * reserved[above] // np.maximum(capacity[above], 1), -1)
        load = np.maximum(load, uplinks.max(axis=1, initial=-1))
    return np.where(load >= 0, load, share).astype(np.int64)
