"""The best GPUs of a node for a pod, for every set of free GPUs, from tables.

Nodes of identical hardware share one shape. So one set of tables serves thousands of nodes; each choice is a look-up.
A choice prefers, in this order:

1. the highest ring bandwidth of the chosen GPUs;
2. what the GPUs that stay free offer to later pods: for each size the bandwidth of the best sets that they can be
   divided into, weighted by how often this cluster sees the size;
3. if the running pods of the node are known: what the free GPUs offer once any one of these pods ends;
4. few NUMA nodes, then few PCIe switches, then NICs below the same switches;
5. the lowest indexes.

All but the third is in the tables. Those of a shape hold the bandwidths of all sets from the start, and the choices of
a set of free GPUs once it occurs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.kernels.gpu_sets import best_choices, best_divisions, ring_bandwidths
from topo_scheduler.state.devices.hardware import (
    MAX_GPUS,
    Gpu,
    Int64,
    NodeHardware,
    PciePath,
    check_count,
    pair_bandwidth,
)
from topo_scheduler.state.operation_budget import charge, charge_rows

MAX_WEIGHT: Final = 1_000
_INDEX_BITS: Final = 17
_CLOSENESS_BITS: Final = 12
_LEFT_BITS: Final = 17
_LEFT_SHIFT: Final = _INDEX_BITS + _CLOSENESS_BITS
_RING_SHIFT: Final = _LEFT_SHIFT + _LEFT_BITS


@dataclass(frozen=True, slots=True)
class Shape:
    """What decides about choices: nodes with equal shapes share their tables.

    Attributes:
        pairs: MB/s between each pair of GPUs in each direction.
        numa_nodes: of each GPU, numbered from 0 in the order of their first GPU.
        switches: PCIe switch of each GPU, numbered likewise; a GPU without one has a number of its own.
        near_nic: whether a NIC is below the same PCIe switch, for each GPU.
    """

    pairs: tuple[tuple[int, ...], ...]
    numa_nodes: tuple[int, ...]
    switches: tuple[int, ...]
    near_nic: tuple[bool, ...]


def shape_of(hardware: NodeHardware) -> Shape:
    """Return the shape of a node.

    Raises:
        HardwareError: the node has more GPUs than tables are made for.
    """
    gpus = hardware.gpus
    check_count("node", len(gpus), MAX_GPUS, "GPUs")
    paths = hardware.nic_paths or ((),) * len(gpus)
    return Shape(
        pairs=tuple(tuple(int(value) for value in row) for row in pair_bandwidth(hardware)),
        numa_nodes=_numbered([str(gpu.numa_node) for gpu in gpus]),
        switches=_numbered([_switch(gpu, hardware) for gpu in gpus]),
        near_nic=tuple(any(path is PciePath.SWITCH for path in row) for row in paths),
    )


def _switch(gpu: Gpu, hardware: NodeHardware) -> str:
    """Return the PCIe switch of a GPU: by its address, else the first GPU that it shares one with."""
    if gpu.pcie_switch:
        return gpu.pcie_switch
    near = (other.index for other in hardware.gpus if hardware.path(gpu.index, other.index) >= PciePath.SWITCH)
    return f"of GPU {min(near, default=gpu.index)}"


def _numbered(names: Sequence[str]) -> tuple[int, ...]:
    numbers: dict[str, int] = {}
    return tuple(numbers.setdefault(name, len(numbers)) for name in names)


class GpuTables:
    """Ring bandwidths and best choices of one shape. A set of GPUs is an int: bit i is GPU i."""

    def __init__(self, shape: Shape, weights: Sequence[int]) -> None:
        """Compute the tables: below 1 ms for 8 GPUs, and 0.1 s and 7 MB at most for 16.

        The choices from a set of free GPUs are added when they are first asked for: 0.3 ms at most.

        Args:
            shape: the shape.
            weights: how often pods of each number of GPUs come, from 0 on, of `MAX_WEIGHT` at most; sizes beyond the
                end have weight 0.
        """
        n = len(shape.pairs)
        self.size: Final = n
        self.rings: Final[Int64] = np.zeros(1 << n, np.int64)
        pairs = np.array(shape.pairs, np.int64).reshape(n, n)
        ring_bandwidths(np.ascontiguousarray(pairs), self.rings)
        ring_rank = _ranked(self.rings)
        divisions = np.zeros((1 << n, n + 1), np.int64)
        usual = _weights(weights, n)
        best_divisions(self.rings, usual, n, divisions)
        self.offers: Final[Int64] = divisions @ usual
        own = (ring_rank << _RING_SHIFT) | (_closeness(shape) << _INDEX_BITS) | _lowest_first(np.arange(1 << n), n)
        self._own: Final[Int64] = own
        self._left: Final[Int64] = _ranked(self.offers) << _LEFT_SHIFT
        self._choices: Final = np.zeros((1 << n, n + 1), np.int32)
        self._is_known: Final = bytearray(1 << n)
        self._row: Final = np.zeros(n + 1, np.int64)
        self._of_size: Final[dict[int, Int64]] = {}

    def choose(self, free: int, size: int) -> int:
        """Return the best choice of ``size`` GPUs, or -1 if fewer are free."""
        if not 0 <= size <= self.size:
            return -1
        if not self._is_known[free]:
            best_choices(self._own, self._left, free, self._row)
            self._choices[free] = self._row
            self._is_known[free] = 1
        return int(self._choices[free, size])

    def choose_beside(
        self, free: int, chosen: int, running: Sequence[int], accepts: Callable[[int], bool] = lambda chosen: True
    ) -> int:
        """Return the choice that leaves the most once any one of the running pods ends.

        It has the bandwidth of the chosen set, and what it leaves free now offers as much.

        Args:
            free: the free GPUs.
            chosen: the best choice among them by the tables.
            running: the GPUs of each running pod.
            accepts: whether a set will do.
        """
        sets = self._sets(chosen.bit_count())
        sets = sets[sets & ~free == 0]
        alike = (self.rings[sets] == self.rings[chosen]) & (self.offers[free ^ sets] == self.offers[free ^ chosen])
        sets = sets[alike]
        charge_rows(len(sets), 1 + len(running))
        if len(sets) < 2 or not running:
            return chosen
        later = np.zeros(len(sets), np.int64)
        for pod in running:
            later += self.offers[(free ^ sets) | pod]
        order = np.lexsort((-self._own[sets], -later))
        return next((choice for choice in sets[order].tolist() if accepts(choice)), chosen)

    def _sets(self, size: int) -> Int64:
        """Return all sets of a size."""
        known = self._of_size.get(size)
        if known is None:
            every = np.arange(1 << self.size)
            known = self._of_size[size] = every[np.bitwise_count(every) == size]
        return known

    def best_ring(self, free: int, size: int) -> int:
        """Return the best ring bandwidth of ``size`` free GPUs in MB/s, or -1 if fewer are free."""
        chosen = self.choose(free, size)
        return self.ring(chosen) if chosen >= 0 else -1

    def ring(self, chosen: int) -> int:
        """Return the ring bandwidth of a set in MB/s in each direction."""
        return int(self.rings[chosen])

    def closest(self, free: int, size: int, bandwidth: int, accepts: Callable[[int], bool]) -> int:
        """Return the set of ``size`` free GPUs with the highest ring bandwidth that is accepted; -1 if none is.

        Args:
            free: the free GPUs.
            size: number of GPUs.
            bandwidth: that a ring over them must have at least, in MB/s.
            accepts: whether a set will do; called for the best sets first, the lowest indexes of equal ones.
        """
        if not 0 < size <= free.bit_count():
            return 0 if size == 0 else -1
        sets = self._sets(size)
        sets = sets[(sets & ~free == 0) & (self.rings[sets] >= bandwidth)]
        charge_rows(len(sets))
        order = np.lexsort((-_lowest_first(sets, self.size), -self.rings[sets]))
        for chosen in sets[order].tolist():
            charge(1)
            if accepts(chosen):
                return int(chosen)
        return -1

    @property
    def all_gpus(self) -> int:
        """The set of all GPUs."""
        return (1 << self.size) - 1


def _weights(weights: Sequence[int], n: int) -> Int64:
    out = np.zeros(n + 1, np.int64)
    given = np.clip(np.array(weights[: n + 1], np.int64), 0, MAX_WEIGHT)
    out[: len(given)] = given
    return out


def _ranked(values: Int64) -> Int64:
    """Return the rank of each value among the distinct ones, the lowest 0."""
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _closeness(shape: Shape) -> Int64:
    """Return how close the GPUs of each set are: int64[2**n], higher is closer.

    Fewer NUMA nodes count most, then fewer PCIe switches, then GPUs with a NIC below their switch.
    """
    n = len(shape.pairs)
    numa, switches = _distinct(shape.numa_nodes), _distinct(shape.switches)
    near = np.zeros(1 << n, np.int64)
    for index, is_near in enumerate(shape.near_nic):
        near += ((np.arange(1 << n) >> index) & 1) * is_near
    spread = ((MAX_GPUS - numa) * (MAX_GPUS + 1) + MAX_GPUS - switches) * (MAX_GPUS + 1) + near
    return np.minimum(_ranked(spread), (1 << _CLOSENESS_BITS) - 1)


def _distinct(numbers: Sequence[int]) -> Int64:
    """Return the number of distinct values among the members of each set: int64[2**n]."""
    count = 1 << len(numbers)
    sets = np.arange(count)
    out = np.zeros(count, np.int64)
    for number in set(numbers):
        members = sum(1 << index for index, own in enumerate(numbers) if own == number)
        out += (sets & members) != 0
    return out


def _lowest_first(sets: Int64, n: int) -> Int64:
    """Return a rank of each set that prefers lower indexes: its bits in reverse order."""
    out = np.zeros(len(sets), np.int64)
    for index in range(n):
        out |= ((sets >> index) & 1) << (n - 1 - index)
    return out
