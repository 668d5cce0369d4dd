"""Choice of nodes in the chosen leaves."""

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from topo_scheduler.kernels.fit import fewest_leaves
from topo_scheduler.kernels.windows import choose_leaves, narrowest_windows
from topo_scheduler.scheduling.extensions.extension import LeafSeats
from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.size_rule import leaf_fits
from topo_scheduler.scheduling.placing.scoring import node_scores
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout


def seat(task: PlanningTask, view: ClassView, leaves: Int64, fits: Int64, fit: Int64 | None = None) -> list[int] | None:
    """Return one row per member in order of the fabric, or None where limits per leaf leave a member without a row.

    ``fits``: units that each leaf takes. ``fit``: members that each row may take, by default those of the view.
    """
    query, fit = task.query, view.fit if fit is None else fit
    strategy = task.context.extensions.strategy(query.strategy)
    dealt = strategy.leaves(np.ascontiguousarray(fits[leaves]), query.units).tolist()
    if task.layout.inner is not None:
        return _seat_in_blocks(task, view, leaves, dealt, task.layout.inner, fit)
    if sum(dealt) < query.units:
        return None
    return seat_dealt(task, view, leaves, [units * query.segment for units in dealt], fit)


def _seat_in_blocks(
    task: PlanningTask, view: ClassView, blocks: Int64, dealt: Sequence[int], layout: Layout, fit: Int64
) -> list[int] | None:
    """Do the same where segments lie in blocks of leaves: in each block use the fewest leaves, next to each other."""
    query, inner_task = task.query, replace(task, layout=layout)
    fits = leaf_fits(view, layout, task.limits, fit=fit)
    strategy = task.context.extensions.strategy(query.strategy)
    rows: list[int] = []
    for block, units in zip(blocks.tolist(), dealt, strict=True):
        if not units:
            continue
        domain = np.ascontiguousarray(task.layout.blocks[block : block + 2])
        members, leaves_needed = units * query.segment, np.zeros(1, np.int64)
        fewest_leaves(fits, domain, members, leaves_needed)
        first, last = np.empty(len(fits), np.int64), np.empty(len(fits), np.int64)
        narrowest_windows(fits, domain, int(leaves_needed[0]), members, first, last)
        leaves = np.empty(int(leaves_needed[0]) + 2, np.int64)
        leaves = leaves[: choose_leaves(fits, int(first[0]), int(last[0]), int(leaves_needed[0]), members, leaves)]
        members_by_leaf = strategy.leaves(np.ascontiguousarray(fits[leaves]), members).tolist()
        block_rows = seat_dealt(inner_task, view, leaves, members_by_leaf, fit)
        if block_rows is None:
            return None
        rows += block_rows
    return rows


def seat_dealt(
    task: PlanningTask, view: ClassView, leaves: Int64, dealt: Sequence[int], fit: Int64
) -> list[int] | None:
    """Return one row per member in order of the leaves; None where limits make that impossible.

    ``dealt``: members that each leaf gets. ``fit`` int64[rows]: members that each row may take.
    """
    context, query, layout = task.context, task.query, task.layout
    strategy = context.extensions.strategy(query.strategy)
    free = context.totals(view.cls.scarce, layout).free_by_row
    siblings = np.zeros(context.nodes.rows if strategy.apart else 0, np.int64)
    if strategy.apart:
        np.add.at(siblings, np.asarray([*query.siblings, *query.running], np.int64), 1)
    preference = node_scores.preference(task, view, fit, leaves)
    amount = view.cls.amount(view.cls.scarce)
    max_nodes = task.limits.max_nodes_per_leaf
    rows: list[int] = []
    for leaf, members in zip(leaves.tolist(), dealt, strict=True):
        if members:
            leaf_rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]]
            members_by_row = strategy.nodes(
                LeafSeats(leaf_rows, fit, free, preference, siblings, amount, members, max_nodes)
            )
            if members_by_row is None:
                return None
            rows += np.repeat(leaf_rows, members_by_row).tolist()
    return rows
