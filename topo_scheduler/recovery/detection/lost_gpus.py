"""Nodes that offer fewer GPUs than their pods hold: the kubelet no longer counts a GPU without device or plugin."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from topo_scheduler.api.migrations import Cause
from topo_scheduler.recovery.detection.node_health import NodeProblem
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import GPU


@dataclass(slots=True)
class LostGPUs:
    """Computed from what pods hold, so that it includes nodes that lost GPUs before this process began."""

    nodes: NodeTable
    _held: dict[str, int] = field(default_factory=dict)
    """GPUs that pods held on a node with lost GPUs when that was detected, by name."""

    def problems(self) -> Mapping[str, NodeProblem]:
        """Return the problems, by name of the node.

        A problem lasts until the node offers as many GPUs again, or all its pods with GPUs are gone: no API says which
        pod lost its GPU.
        """
        nodes = self.nodes
        short = nodes.exists & (nodes.requested[:, GPU] > nodes.allocatable[:, GPU])
        for row in np.flatnonzero(short).tolist():
            if not nodes.names_gpus(row):
                continue  # its pods have devices of slices, which a driver that is updated may take back for a moment
            name = nodes.names[row]
            self._held[name] = max(self._held.get(name, 0), int(nodes.requested[row, GPU]))
        problems: dict[str, NodeProblem] = {}
        for name, held in list(self._held.items()):
            node_row = nodes.row_of.get(name)
            if node_row is None or nodes.allocatable[node_row, GPU] >= held or not nodes.requested[node_row, GPU]:
                del self._held[name]
            else:
                text = f"offers {nodes.allocatable[node_row, GPU]} GPUs, but its pods held {held}"
                problems[name] = NodeProblem(Cause.GPUS, text)
        return problems
