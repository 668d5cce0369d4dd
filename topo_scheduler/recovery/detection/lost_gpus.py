"""Nodes that offer fewer GPUs than their pods hold: the kubelet no longer counts a GPU without device or plugin.

Only pods whose start their kubelet has reported hold GPUs for certain. Any user that may create pods can put one on any
node, and another scheduler may bind one at the same moment. Such a pod may be more than the node ever had, and its
kubelet refuses it. Room that is reserved for other schedulers is none that pods hold.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from topo_scheduler.api.migrations import Cause
from topo_scheduler.recovery.detection.node_health import DEVICE_PLUGIN_SECONDS, NodeProblem
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE


@dataclass(slots=True)
class LostGPUs:
    """Computed from what pods hold, so that it includes nodes that lost GPUs before this process began."""

    view: SchedulerView
    _held: dict[str, int] = field(default_factory=dict)
    """GPUs that pods held on a node with lost GPUs when that was detected, by name."""

    def problems(self) -> Mapping[str, NodeProblem]:
        """Return the problems, by name of the node.

        A problem lasts until the node offers as many GPUs again, or all its pods with GPUs are gone: no API says which
        pod lost its GPU.
        """
        nodes, used = self.view.nodes, self.view.gpus_in_use()
        short = nodes.exists & (used > nodes.allocatable[:, GPU])
        for row in np.flatnonzero(short).tolist():
            if not nodes.names_gpus(row):
                continue  # its pods have devices of slices, which a driver that is updated may take back for a moment
            name = nodes.names[row]
            held = int(used[row]) - self._not_started(name)
            if held > nodes.allocatable[row, GPU]:
                self._held[name] = max(self._held.get(name, 0), held)
        problems: dict[str, NodeProblem] = {}
        for name, held in list(self._held.items()):
            node_row = nodes.row_of.get(name)
            if node_row is None or nodes.allocatable[node_row, GPU] >= held or not used[node_row]:
                del self._held[name]
            else:
                offers = int(nodes.allocatable[node_row, GPU])
                text = f"offers {offers} GPUs, but its pods held {held}"
                problems[name] = NodeProblem(Cause.GPUS, text, least_seconds=0.0 if offers else DEVICE_PLUGIN_SECONDS)
        return problems

    def _not_started(self, node: str) -> int:
        """Return how many GPUs pods may hold on a node whose start is not reported, those of shares included."""
        gpus = 0
        for uid in self.view.pods_on(node):
            entry = self.view.entry(uid)
            if entry is not None and not (entry.occupant is not None and entry.occupant.start_reported):
                gpus += entry.amount(GPU) + (entry.amount(GPU_SHARE) > 0)
        return gpus
