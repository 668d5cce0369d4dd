"""A quick way to fill nodes with members of several classes: its result is valid, but it may miss one that exists."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge, charge_rows

ROWS_A_MICROSECOND: Final = 500
"""Amounts that the kernel compares in an operation of the budget."""


class Filler:
    """The nodes as one gang sees them, on one view of each of its classes."""

    def __init__(self, task: PlanningTask, views: Sequence[ClassView], used: Int64, *, empty: bool) -> None:
        """``used`` int64[rows, resources]: amounts in use. ``empty``: nodes that are closed now count as well."""
        nodes, query = task.context.nodes, task.query
        self._allocatable = nodes.allocatable
        self._used = used
        self._requests = np.zeros((len(views), nodes.allocatable.shape[1]), np.int64)
        for number, view in enumerate(views):
            self._requests[number, view.columns] = view.amounts
        self._eligible = np.stack([view.eligible if empty else view.open for view in views])
        if query.traffic is not None and query.traffic.open is not None:
            self._eligible &= query.traffic.open
        # Free resources are not the only limit: members may exclude each other, and quotas may be nearly used up.
        self._limit_by_class = np.stack([view.empty_fit if empty else view.fit for view in views])
        self._gpus = np.array([cls.gpus for cls, _ in query.groups], np.int64)
        self._limits = task.limits
        self._leaf_of_row = (task.layout.inner or task.layout).leaf_of_row

    def fill(self, rows: Int64, counts: Int64) -> Int64 | None:
        """Return how many members of each class go to each row, None where no filling was found within the limits.

        Args:
            rows: int64[n], in order of the fabric.
            counts: int64[classes].

        Returns:
            int64[classes, n].
        """
        from topo_scheduler.kernels.filling import fill_nodes  # few gangs have several classes

        rows = np.ascontiguousarray(rows)
        charge(5 + len(counts) * len(rows) * self._requests.shape[1] // ROWS_A_MICROSECOND)
        out = np.zeros((len(counts), len(rows)), np.int64)
        if fill_nodes(rows, self._allocatable, self._used, self._requests, self._eligible, counts, 0, out):
            return None
        if (out > self._limit_by_class[:, rows]).any():
            return None
        limits = self._limits
        if not limits.max_nodes_per_leaf and not limits.max_gpus_per_leaf:
            return out
        leaf_of_row = self._leaf_of_row[rows]
        for leaf in np.unique(leaf_of_row):
            charge_rows(out.size)
            in_leaf = leaf_of_row == leaf
            used_nodes = int((out[:, in_leaf].sum(axis=0) > 0).sum())
            used_gpus = int((out[:, in_leaf].sum(axis=1) * self._gpus).sum())
            if limits.max_nodes_per_leaf and used_nodes > limits.max_nodes_per_leaf:
                return None
            if limits.max_gpus_per_leaf and used_gpus > limits.max_gpus_per_leaf:
                return None
        return out
