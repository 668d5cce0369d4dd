"""Score of a node for a pod that asks how close its GPUs are: 0 to 100, from three published parts.

- **Topology** (40 of 100): a base, and bonuses for the best links, for one socket and for one PCIe switch.
- **Resources** (35): share of the node's GPUs in use with the pod. Full nodes come first, so that others stay whole.
- **Balance** (25): how evenly GPUs and CPU of the node are used with the pod.

All values are integers, so every machine computes the same.
"""

from typing import Final, NamedTuple

import numpy as np

from topo_scheduler.api.device_score import BALANCE_WEIGHT, RESOURCES_WEIGHT, TOPOLOGY_WEIGHT
from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds
from topo_scheduler.scheduling.devices.gpu_closeness import TablesOf, best_bandwidth, is_close, ring_bandwidth
from topo_scheduler.state.devices.node_hardware import NodeGpus
from topo_scheduler.state.nodes.node_table import Int64, NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU
from topo_scheduler.state.pods.classes import PodClass

BASE: Final = 40
"""Topology of GPUs that only meet across sockets, or of which nothing is known."""
NVLINK_BONUS: Final = 40
"""For GPUs that are linked, with the best bandwidth that so many GPUs of the node can have."""
SOCKET_BONUS: Final = 12
SWITCH_BONUS: Final = 8
BEST_SCORE: Final = 100


class DeviceScores(NamedTuple):
    """The parts of the scores of nodes, each int64[n] from 0 to 100, and their weighted sums."""

    topology: Int64
    resources: Int64
    balance: Int64

    @property
    def total(self) -> Int64:
        """The scores, from 0 to 100."""
        weighted = TOPOLOGY_WEIGHT * self.topology + RESOURCES_WEIGHT * self.resources + BALANCE_WEIGHT * self.balance
        return weighted // BEST_SCORE


class TopologyParts(NamedTuple):
    """What the topology of a set of GPUs consists of: the base, and the bonuses that it gets."""

    base: int
    nvlink: int = 0
    same_socket: int = 0
    same_pcie_switch: int = 0


def topology_parts(gpus: NodeGpus, chosen: int, tables: TablesOf | None = None) -> TopologyParts:
    """Return how close GPUs of a node are to each other; ``chosen`` as bits."""
    if chosen.bit_count() < 2:
        return TopologyParts(BEST_SCORE)
    is_linked = is_close(gpus, GpuNeeds(GpuLocality.NVLINK), chosen)
    is_best = is_linked and ring_bandwidth(gpus, chosen, tables) >= best_bandwidth(gpus, chosen.bit_count(), tables)
    return TopologyParts(
        BASE,
        NVLINK_BONUS if is_best else 0,
        SOCKET_BONUS if is_close(gpus, GpuNeeds(GpuLocality.SAME_SOCKET), chosen) else 0,
        SWITCH_BONUS if is_close(gpus, GpuNeeds(GpuLocality.SAME_PCIE_SWITCH), chosen) else 0,
    )


def topology_score(gpus: NodeGpus, chosen: int, tables: TablesOf | None = None) -> int:
    """Return the sum of the parts."""
    return sum(topology_parts(gpus, chosen, tables))


def use_scores(nodes: NodeTable, cls: PodClass, rows: Int64) -> tuple[Int64, Int64]:
    """Return the parts for resources and for balance of each row, with one pod of the class more on it.

    Returns:
        Two int64[n], 0 to 100.
    """
    gpus, cpu = _used(nodes, cls, rows, GPU), _used(nodes, cls, rows, CPU)
    return gpus, BEST_SCORE - np.abs(gpus - cpu)


def _used(nodes: NodeTable, cls: PodClass, rows: Int64, column: int) -> Int64:
    """Return the used percentage of a resource."""
    total = nodes.allocatable[rows, column]
    used = nodes.requested[rows, column] + cls.amount(column)
    percent: Int64 = np.clip(BEST_SCORE * used // np.maximum(1, total), 0, BEST_SCORE)
    return np.where(total > 0, percent, 0)
