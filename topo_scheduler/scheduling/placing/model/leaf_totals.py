"""Capacity and use of each leaf, for the resource by which placements are scored."""

import numpy as np

from topo_scheduler.kernels.fit import sum_again, sum_domains, sum_ranges
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.topology.fabric import Layout


class LeafTotals:
    """Sums of one resource by leaf (int64[leaves]), updated from the change log.

    Of a node, at most what it has counts as used: pods that name their node themselves may request any amount.
    """

    def __init__(self, nodes: NodeTable, column: int) -> None:
        self._nodes = nodes
        self._column = column
        self._layout = -1
        self._log_position = -1
        self._row_capacity: Int64 = np.empty(0, np.int64)
        self._row_used: Int64 = np.empty(0, np.int64)
        self.free_by_row: Int64 = np.empty(0, np.int64)
        """Free amount on each row (int64[rows])."""
        self.capacity: Int64 = np.empty(0, np.int64)
        self.used: Int64 = np.empty(0, np.int64)

    def refresh(self, layout: Layout) -> None:
        """Update the sums."""
        nodes = self._nodes
        rows = nodes.capacity_changes.since(self._log_position)
        self._log_position = nodes.capacity_changes.position
        if self._layout != layout.generation or rows is None or len(rows) > 1024:
            self._layout = layout.generation
            self._row_capacity = np.ascontiguousarray(nodes.allocatable[:, self._column])
            requested = nodes.requested[:, self._column]
            self._row_used = np.minimum(requested, self._row_capacity)
            self.free_by_row = self._row_capacity - requested
            self.capacity = np.empty(len(layout.paths), np.int64)
            self.used = np.empty(len(layout.paths), np.int64)
            sum_ranges(self._row_capacity, layout.order, layout.offsets, self.capacity)
            sum_ranges(self._row_used, layout.order, layout.offsets, self.used)
            return
        sum_again(
            nodes.allocatable,
            nodes.requested,
            self._column,
            rows,
            layout.leaf_of_row,
            self._row_capacity,
            self._row_used,
            self.free_by_row,
            self.capacity,
            self.used,
        )

    def domains(self, layout: Layout, depth: int) -> tuple[Int64, Int64]:
        """Return for each leaf the capacity and use of the domain it lies in at this depth (int64[leaves] each).

        Read-only.
        """
        if depth == layout.depth:
            return self.capacity, self.used
        capacity, used = np.empty_like(self.capacity), np.empty_like(self.used)
        sum_domains(self.capacity, layout.domains[depth], capacity)
        sum_domains(self.used, layout.domains[depth], used)
        return capacity, used
