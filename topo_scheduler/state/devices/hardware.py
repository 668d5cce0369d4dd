"""The hardware of one node: GPUs, NICs, and how each pair of them is connected.

Sources differ in what they know. What a source does not say keeps the default of its field, and whatever reads it must
treat that as unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]

UNKNOWN_NUMA: Final = -1
NUMA_ATTRIBUTES: Final = ("resource.kubernetes.io/numaNode", "numaNode", "numa", "numaNodeID")
"""Attributes of devices that say their NUMA node, the first one that is there; without a domain those of a driver."""
MAX_GPUS: Final = 16
"""GPUs of a node that links are known for: tables over all sets of GPUs double with each one."""
MAX_NICS: Final = 256
"""NICs and their virtual functions of a node."""
MAX_LINK_MB_PER_SECOND: Final = 100_000_000
"""More than the links of any GPU carry together."""
XGMI_MB_PER_SECOND: Final = 50_000
"""MB/s of one XGMI link in each direction, as RCCL's models and KFD give for MI100 to MI300."""
AMD_ARCHITECTURES: Final = {
    "906": "vega20",
    "908": "cdna",
    "90a": "cdna2",
    "910": "cdna2",  # RCCL's name of 90a
    "940": "cdna3",
    "941": "cdna3",
    "942": "cdna3",
    "950": "cdna4",
}
"""Architectures by the instruction set, without ``gfx``."""


class HardwareError(ValueError):
    """A description of hardware can't be read. The message names the place, the reason and the remedy."""


def check_count(source: str, count: int, limit: int, what: str) -> None:
    """Raise `HardwareError` if a source has more of something than is read."""
    if count > limit:
        raise HardwareError(f"the {source} has {count:,} {what}, of {limit:,} at most")


def undirected(directed: Mapping[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """Return each pair once, the lower index first, with the lower value of its two directions."""
    return {
        (min(pair), max(pair)): min(value, directed.get((pair[1], pair[0]), value)) for pair, value in directed.items()
    }


class PciePath(IntEnum):
    """How two devices reach each other by PCIe. A higher value is closer."""

    UNKNOWN = 0
    SYSTEM = 1
    """Across sockets."""
    NODE = 2
    """Across host bridges of one NUMA node."""
    HOST_BRIDGE = 3
    SWITCHES = 4
    """Across several PCIe switches, and no host bridge."""
    SWITCH = 5
    """Across one PCIe switch."""
    SELF = 6


PCIE_MB_PER_SECOND: Final = {
    PciePath.UNKNOWN: 6_000,
    PciePath.SYSTEM: 6_000,
    PciePath.NODE: 10_000,
    PciePath.HOST_BRIDGE: 10_000,
    PciePath.SWITCHES: 12_000,
    PciePath.SWITCH: 12_000,
    PciePath.SELF: 0,
}
"""MB/s in each direction between two GPUs without a link. Rough values: only their order decides between GPUs."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A physical GPU.

    Attributes:
        index: position in the order of the driver, from 0.
        uuid: identifier that the driver gives; empty if unknown.
        bus_id: PCI address such as ``0000:1b:00.0``, in lower case; empty if unknown.
        model: product name; empty if unknown.
        memory_bytes: size of its memory; 0 if unknown.
        architecture: such as ``hopper`` or ``cdna3``; empty if unknown.
        numa_node: NUMA node of its PCIe root, or `UNKNOWN_NUMA`.
        pcie_root: name of the root or host bridge that it is below; empty if unknown.
        pcie_switch: PCI address of the switch right above it; empty if there is none, or unknown.
        switch_links: links to a switch (NVSwitch) that connects it to all others with such links.
        link_mb_per_second: MB/s of one link in each direction; 0 if unknown.
    """

    index: int
    uuid: str = ""
    bus_id: str = ""
    model: str = ""
    memory_bytes: int = 0
    architecture: str = ""
    numa_node: int = UNKNOWN_NUMA
    pcie_root: str = ""
    pcie_switch: str = ""
    switch_links: int = 0
    link_mb_per_second: int = 0


@dataclass(frozen=True, slots=True)
class Nic:
    """A network card or port. ``mbit_per_second`` is 0 if unknown; the other fields are as for `Gpu`."""

    name: str
    bus_id: str = ""
    numa_node: int = UNKNOWN_NUMA
    mbit_per_second: int = 0


@dataclass(frozen=True, slots=True)
class GpuLink:
    """Direct links (NVLink, XGMI) between two GPUs, by index: ``first`` is the lower one.

    ``mb_per_second`` is the bandwidth of all ``count`` links together, in each direction.
    """

    first: int
    second: int
    count: int
    mb_per_second: int


@dataclass(frozen=True, slots=True)
class NodeHardware:
    """The hardware of a node.

    Attributes:
        gpus: by index.
        nics: in the order of the source.
        links: direct links, each pair once, in order.
        gpu_paths: PCIe path of each pair of GPUs, by their indexes; symmetric.
        nic_paths: PCIe path of each GPU to each NIC.
        warnings: what the source says that contradicts itself, and how it was read.
    """

    gpus: tuple[Gpu, ...]
    nics: tuple[Nic, ...] = ()
    links: tuple[GpuLink, ...] = ()
    gpu_paths: tuple[tuple[PciePath, ...], ...] = ()
    nic_paths: tuple[tuple[PciePath, ...], ...] = ()
    warnings: tuple[str, ...] = field(default=(), compare=False)

    def path(self, first: int, second: int) -> PciePath:
        """Return the PCIe path between two GPUs."""
        return self.gpu_paths[first][second] if self.gpu_paths else PciePath.UNKNOWN


def pair_bandwidth(hardware: NodeHardware) -> Int64:
    """Return the bandwidth between each pair of GPUs, in each direction.

    It is that of the direct links, of the switch that connects both, or of the PCIe path: the highest of these. A
    switch connects all its GPUs at the full bandwidth of their links, so it is no link between pairs.

    Returns:
        int64[gpus, gpus], MB/s; symmetric, 0 on the diagonal.
    """
    gpus = hardware.gpus
    out = np.zeros((len(gpus), len(gpus)), np.int64)
    for first in range(len(gpus)):
        for second in range(first + 1, len(gpus)):
            switched = min(_switched(gpus[first]), _switched(gpus[second]))
            out[first, second] = max(switched, PCIE_MB_PER_SECOND[hardware.path(first, second)])
    for link in hardware.links:
        out[link.first, link.second] = max(out[link.first, link.second], link.mb_per_second)
    return out + out.T


def _switched(gpu: Gpu) -> int:
    return gpu.switch_links * gpu.link_mb_per_second


def linked(hardware: NodeHardware) -> Int64:
    """Return for each GPU the set of GPUs that a direct link or a switch connects with it.

    Returns:
        int64[gpus], sets as bits by index, without the GPU itself.
    """
    out = np.zeros(len(hardware.gpus), np.int64)
    switch = sum(1 << gpu.index for gpu in hardware.gpus if gpu.switch_links)
    for gpu in hardware.gpus:
        if gpu.switch_links:
            out[gpu.index] = switch & ~(1 << gpu.index)
    for link in hardware.links:
        out[link.first] |= 1 << link.second
        out[link.second] |= 1 << link.first
    return out


def largest_linked(neighbours: Sequence[int] | Int64, free: int) -> int:
    """Return how many of the free GPUs are connected by links, directly or over other free ones, at most.

    Args:
        neighbours: as `linked` returns it.
        free: the free GPUs as bits.
    """
    return max((reached.bit_count() for reached in connected(neighbours, free)), default=0)


def connected(neighbours: Sequence[int] | Int64, free: int) -> list[int]:
    """Return the largest sets of free GPUs that links connect, directly or over other free ones; as bits.

    Args:
        neighbours: as `linked` returns it.
        free: the free GPUs as bits.
    """
    sets, left = [], free
    while left:
        reached = edge = left & -left
        while edge:
            index = (edge & -edge).bit_length() - 1
            edge &= edge - 1
            added = int(neighbours[index]) & free & ~reached
            reached |= added
            edge |= added
        sets.append(reached)
        left &= ~reached
    return sets
