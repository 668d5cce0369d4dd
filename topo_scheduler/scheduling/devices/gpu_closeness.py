"""Whether GPUs of a node are as close to each other as a pod asks, and how many of the free ones are."""

from collections.abc import Callable
from functools import lru_cache
from itertools import combinations
from typing import TYPE_CHECKING

from topo_scheduler.api.gpu_needs import GpuLocality, GpuNeeds, bandwidth_text
from topo_scheduler.scheduling.devices.approximate_tables import ApproximateTables
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.state.devices.hardware import (
    UNKNOWN_NUMA,
    NodeHardware,
    PciePath,
    connected,
    largest_linked,
    linked,
)
from topo_scheduler.state.devices.node_hardware import NodeGpus

if TYPE_CHECKING:
    from topo_scheduler.scheduling.devices.gpu_tables import GpuTables

    Tables = GpuTables | ApproximateTables

TablesOf = Callable[[NodeHardware], "Tables"]
"""Returns the tables of a shape, such as `ShapeTables.of`."""


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


def is_close(gpus: NodeGpus, needs: GpuNeeds, chosen: int, tables: TablesOf | None = None) -> bool:
    """Return whether a set of GPUs, as bits, is as close as a pod asks; without ``tables``, as far as surely known."""
    if chosen.bit_count() < 2:
        return True
    if not _is_local(gpus, needs.locality, chosen):
        return False
    return not needs.bandwidth or _tables(gpus, tables).ring(chosen) >= needs.bandwidth


def _tables(gpus: NodeGpus, tables: TablesOf | None) -> "Tables":
    return tables(gpus.hardware) if tables is not None else ApproximateTables(gpus.hardware)


def _is_local(gpus: NodeGpus, locality: GpuLocality, chosen: int) -> bool:
    match locality:
        case GpuLocality.SAME_SOCKET:
            return any(not chosen & ~group for group in _sockets(gpus.hardware))
        case GpuLocality.SAME_PCIE_SWITCH:
            return any(not chosen & ~group for group in _switches(gpus.hardware))
        case GpuLocality.NVLINK:
            return largest_linked(_neighbours(gpus.hardware), chosen) == chosen.bit_count()
    return True


def any_is_close(gpus: NodeGpus, needs: GpuNeeds, tables: TablesOf) -> bool:
    """Return whether any set of the GPUs of a node is as close as a pod asks, because all pairs are."""
    if not knows_closeness(gpus, needs):
        return False
    pairs = (set_of(pair) for pair in combinations(range(gpus.count), 2))
    return all(is_close(gpus, needs, pair, tables) for pair in pairs) and is_close(gpus, needs, gpus.all_gpus, tables)


def close_areas(gpus: NodeGpus, locality: GpuLocality, free: int) -> list[int]:
    """Return sets of free GPUs such that close GPUs are all in one of them."""
    match locality:
        case GpuLocality.SAME_SOCKET:
            return [free & group for group in _sockets(gpus.hardware)]
        case GpuLocality.SAME_PCIE_SWITCH:
            return [free & group for group in _switches(gpus.hardware)]
        case GpuLocality.NVLINK:
            return connected(_neighbours(gpus.hardware), free)
    return [free]


def most_close(gpus: NodeGpus, needs: GpuNeeds, free: int, tables: TablesOf | None = None) -> int:
    """Return how many of the free GPUs are as close as a pod asks, at most; 1 if no two are."""
    size = max((area.bit_count() for area in close_areas(gpus, needs.locality, free)), default=0)
    size = max(size, min(1, free.bit_count()))
    if needs.bandwidth:
        while size > 1 and best_close(gpus, needs, free, size, tables) < 0:
            size -= 1
    return size


def best_close(gpus: NodeGpus, needs: GpuNeeds, free: int, size: int, tables: TablesOf | None = None) -> int:
    """Return the best of the free sets that are as close as a pod asks; -1 if there is none."""
    of_shape = _tables(gpus, tables)
    best = of_shape.choose(free, size)
    if best >= 0 and is_close(gpus, needs, best, tables):
        return best
    best = -1
    for area in close_areas(gpus, needs.locality, free):
        chosen = of_shape.choose(area, size)
        if chosen >= 0 and not is_close(gpus, needs, chosen, tables):
            chosen = of_shape.closest(area, size, needs.bandwidth, lambda other: _is_local(gpus, needs.locality, other))
        if chosen >= 0 and (best < 0 or of_shape.ring(chosen) > of_shape.ring(best)):
            best = chosen
    return best


def ring_bandwidth(gpus: NodeGpus, chosen: int, tables: TablesOf | None = None) -> int:
    """Return the bandwidth of the best ring over a set of GPUs in MB/s in each direction, that of its slowest link."""
    return _tables(gpus, tables).ring(chosen)


def best_bandwidth(gpus: NodeGpus, size: int, tables: TablesOf | None = None) -> int:
    """Return the highest `ring_bandwidth` that so many GPUs of a node can have."""
    return _tables(gpus, tables).best_ring(gpus.all_gpus, size)


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


def too_few_close(free: int, close: int, text: str) -> str:
    """Return the shortage on a node with so many free and close GPUs; ``text`` is from `closeness_text`."""
    return f"{free} free GPUs but at most {close} {'is' if close == 1 else 'are'} {text}"


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
