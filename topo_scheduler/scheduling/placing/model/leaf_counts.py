"""Number of members of a class that each leaf holds now, updated leaf by leaf."""

from typing import Final

import numpy as np

from topo_scheduler.kernels.fit import fit_leaves
from topo_scheduler.scheduling.placing.model.placement_query import SizeRuleLimits
from topo_scheduler.state.nodes.change_log import ChangeLog
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

FEW_LEAVES_DIVISOR: Final = 4
"""Leaves are counted one by one if at most 1 in 4 changed; otherwise all leaves are counted."""


class LeafCounts:
    """Members by leaf (int64[leaves]) of one class, within the limits that a gang has in one leaf."""

    def __init__(self, gpus: int, limits: SizeRuleLimits) -> None:
        """``gpus`` of one member."""
        self._nodes = limits.max_nodes_per_leaf
        self._max_members = limits.members_per_leaf(gpus)
        self._excluded = bool(limits.max_gpus_per_leaf and gpus and not self._max_members)
        self._layout: Layout | None = None
        self._fit: Int64 | None = None
        self._log_position = -1
        self._held: Int64 = np.empty(0, np.int64)

    def refresh(self, fit: Int64, changes: ChangeLog, layout: Layout) -> Int64:
        """Return the members that each leaf holds, read-only.

        Args:
            fit: int64[rows], members each row takes.
            changes: log of the rows of ``fit`` that changed.
            layout: the fabric.
        """
        rows = changes.since(self._log_position)
        self._log_position = changes.position
        unchanged = layout is self._layout and fit is self._fit
        if unchanged and rows is not None and FEW_LEAVES_DIVISOR * len(rows) <= len(layout.paths):
            leaves = layout.leaf_of_row[rows]
            leaves = leaves[leaves >= 0]
        else:
            self._layout, self._fit = layout, fit
            self._held = np.zeros(len(layout.paths), np.int64)
            leaves = np.arange(len(layout.paths), dtype=np.int64)
        if len(leaves) and not self._excluded:
            fit_leaves(fit, layout.order, layout.offsets, leaves, self._nodes, self._max_members, self._held)
        return self._held
