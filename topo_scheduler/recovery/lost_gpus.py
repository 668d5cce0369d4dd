"""Nodes that offer fewer GPUs than their pods hold: a device that is gone, or whose plugin is, is counted no more."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from topo_scheduler.api.migrations import Cause
from topo_scheduler.recovery.health import NodeProblem
from topo_scheduler.state.nodes import NodeTable
from topo_scheduler.state.resources import GPU


@dataclass(slots=True)
class LostGPUs:
    """Read from what pods hold, so that it is known too of nodes that lost theirs before this process began."""

    nodes: NodeTable
    _held: dict[str, int] = field(default_factory=dict)
    """GPUs that pods held on such a node when that was noticed, by name."""

    def problems(self) -> Mapping[str, NodeProblem]:
        """Return what is wrong, by name of the node.

        It lasts until the node offers as many again or all its pods with GPUs are gone: nobody tells who lost one.
        """
        nodes = self.nodes
        short = nodes.exists & (nodes.requested[:, GPU] > nodes.allocatable[:, GPU])
        for row in np.flatnonzero(short).tolist():
            name = nodes.names[row]
            self._held[name] = max(self._held.get(name, 0), int(nodes.requested[row, GPU]))
        found: dict[str, NodeProblem] = {}
        for name, held in list(self._held.items()):
            at = nodes.row_of.get(name)
            if at is None or nodes.allocatable[at, GPU] >= held or not nodes.requested[at, GPU]:
                del self._held[name]
            else:
                text = f"offers {nodes.allocatable[at, GPU]} GPUs, but its pods held {held}"
                found[name] = NodeProblem(Cause.GPUS, text)
        return found

    def forget(self) -> None:
        """Nobody asks any more."""
        self._held.clear()
