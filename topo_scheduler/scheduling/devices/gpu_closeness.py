"""Whether GPUs of a node are as close to each other as a pod asks, and how many of the free ones are."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING, Final

from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds, bandwidth_text
from topo_scheduler.scheduling.devices.plugin_choice import members_of, set_of
from topo_scheduler.state.devices.hardware import UNKNOWN_NUMA, NodeHardware, PciePath, largest_linked, linked
from topo_scheduler.state.devices.node_hardware import NodeGpus

if TYPE_CHECKING:
    from topo_scheduler.scheduling.devices.gpu_tables import GpuTables

MAX_TABLES: Final = 8
"""Tables of ring bandwidths that are kept: 20 MB for a shape with 16 GPUs, 25 kB with 8."""


@lru_cache(maxsize=MAX_TABLES)
def _tables(hardware: NodeHardware) -> "GpuTables":
    from topo_scheduler.scheduling.devices.gpu_tables import GpuTables, shape_of  # few clusters need its kernels

    return GpuTables(shape_of(hardware), ())


@lru_cache(maxsize=256)
def _neighbours(hardware: NodeHardware) -> tuple[int, ...]:
    return tuple(linked(hardware).tolist())


@lru_cache(maxsize=256)
def _sockets(hardware: NodeHardware) -> tuple[int, ...]:
    """Return the GPUs of each NUMA node."""
    known = sorted({gpu.numa_node for gpu in hardware.gpus} - {UNKNOWN_NUMA})
    return tuple(set_of([gpu.index for gpu in hardware.gpus if gpu.numa_node == numa]) for numa in known)


@lru_cache(maxsize=256)
def _switches(hardware: NodeHardware) -> tuple[int, ...]:
    """Return the GPUs below each PCIe switch, those of at least two."""
    gpus = range(len(hardware.gpus))
    groups = (set_of([second for second in gpus if hardware.path(first, second) >= PciePath.SWITCH]) for first in gpus)
    return tuple(sorted({group for group in groups if group.bit_count() > 1}))


def is_close(gpus: NodeGpus, needs: GpuNeeds, chosen: int) -> bool:
    """Return whether a set of GPUs, as bits, is as close as a pod asks."""
    if chosen.bit_count() < 2:
        return True
    return _is_local(gpus, needs.locality, chosen) and (
        not needs.bandwidth or int(_tables(gpus.hardware).rings[chosen]) >= needs.bandwidth
    )


def _is_local(gpus: NodeGpus, locality: GpuLocality, chosen: int) -> bool:
    match locality:
        case GpuLocality.SAME_SOCKET:
            return any(not chosen & ~group for group in _sockets(gpus.hardware))
        case GpuLocality.SAME_PCIE_SWITCH:
            return any(not chosen & ~group for group in _switches(gpus.hardware))
        case GpuLocality.NVLINK:
            return largest_linked(_neighbours(gpus.hardware), chosen) == chosen.bit_count()
    return True


def most_close(gpus: NodeGpus, needs: GpuNeeds, free: int) -> int:
    """Return how many of the free GPUs are as close as a pod asks, at most; 1 if no two are."""
    most = free.bit_count()
    match needs.locality:
        case GpuLocality.SAME_SOCKET:
            most = max(((free & group).bit_count() for group in _sockets(gpus.hardware)), default=0)
        case GpuLocality.SAME_PCIE_SWITCH:
            most = max(((free & group).bit_count() for group in _switches(gpus.hardware)), default=0)
        case GpuLocality.NVLINK:
            most = largest_linked(_neighbours(gpus.hardware), free)
    most = max(most, min(1, free.bit_count()))
    if needs.bandwidth:
        while most > 1 and _first_close(gpus, needs, free, most) < 0:
            most -= 1
    return most


def best_close(gpus: NodeGpus, needs: GpuNeeds, free: int, size: int) -> int:
    """Return the best of the free sets that are as close as a pod asks; -1 if there is none."""
    choice = _tables(gpus.hardware).choose(free, size)
    return choice if choice >= 0 and is_close(gpus, needs, choice) else _first_close(gpus, needs, free, size)


@lru_cache(maxsize=4096)
def _first_close(gpus: NodeGpus, needs: GpuNeeds, free: int, size: int) -> int:
    """Return the first of the close sets with the highest ring bandwidth."""
    rings = _tables(gpus.hardware).rings
    close = (chosen for chosen in _sets(free, size) if is_close(gpus, needs, chosen))
    return max(close, key=lambda chosen: int(rings[chosen]), default=-1)


def ring_bandwidth(gpus: NodeGpus, chosen: int) -> int:
    """Return the bandwidth of the best ring over a set of GPUs in MB/s in each direction, that of its slowest link."""
    return int(_tables(gpus.hardware).rings[chosen])


def best_bandwidth(gpus: NodeGpus, size: int) -> int:
    """Return the highest `ring_bandwidth` that so many GPUs of a node can have."""
    return _tables(gpus.hardware).best_ring(gpus.all_gpus, size)


def _sets(free: int, size: int) -> Iterator[int]:
    return map(set_of, combinations(members_of(free), size))


def closeness_text(needs: GpuNeeds) -> str:
    """Return what is asked, as the end of "GPUs that are ...", such as ``linked by NVLink``."""
    texts = {
        GpuLocality.SAME_SOCKET: "on one socket",
        GpuLocality.SAME_PCIE_SWITCH: "below one PCIe switch",
        GpuLocality.NVLINK: "linked by NVLink",
    }
    parts = [texts[needs.locality]] if needs.locality in texts else []
    if needs.bandwidth:
        parts.append(f"connected by {bandwidth_text(needs.bandwidth)} in a ring")
    return " and ".join(parts)


def knows_closeness(gpus: NodeGpus, needs: GpuNeeds) -> bool:
    """Return whether the sources of a node say enough to judge how close its GPUs are."""
    if gpus.shared_by_time:
        return False
    if gpus.partly_split:
        # By a switch all are linked alike, whichever are whole.
        all_alike = all(gpu.switch_links for gpu in gpus.hardware.gpus)
        return all_alike and needs.locality in (GpuLocality.NVLINK, GpuLocality.ANY, GpuLocality.SAME_NODE)
    match needs.locality:
        case GpuLocality.SAME_SOCKET:
            return bool(_sockets(gpus.hardware))
        case GpuLocality.SAME_PCIE_SWITCH:
            return any(gpu.pcie_switch or gpu.pcie_root for gpu in gpus.hardware.gpus)
        case GpuLocality.NVLINK:
            return gpus.links_known
    return gpus.links_known


def name_of_links(vendor: str, text: str) -> str:
    """Return a text with the name that the vendor gives to its links."""
    return text.replace("NVLink", "XGMI") if vendor == "amd" else text
