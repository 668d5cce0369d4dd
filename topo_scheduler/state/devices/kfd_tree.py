"""Reads the topology that AMD's kernel driver shows below ``/sys/class/kfd/kfd/topology/nodes``.

Each folder is a node: a CPU socket if it has cores, a GPU if it has SIMD units, and both on some APUs. ``io_links``
lead to CPUs and, by XGMI, to other GPUs; ``p2p_links`` to other GPUs by PCIe. A container sees the folders of all GPUs,
but can't read those that it may not use.

Source: Linux ``drivers/gpu/drm/amd/amdkfd/kfd_topology.c``; the trees in the tests of ROCm's device plugin.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.text import quoted
from topo_scheduler.state.devices.hardware import (
    AMD_ARCHITECTURES,
    MAX_GPUS,
    MAX_LINK_MB_PER_SECOND,
    UNKNOWN_NUMA,
    XGMI_MB_PER_SECOND,
    Gpu,
    GpuLink,
    HardwareError,
    NodeHardware,
    PciePath,
    check_count,
    undirected,
)

MAX_FILES: Final = 65_536

_XGMI: Final = 11
"""The type of XGMI links, as the driver numbers types."""
_NODE_FILE: Final = re.compile(r"(?:.*/)?nodes/([0-9]{1,5})/(?:(mem_banks|io_links|p2p_links)/[0-9]+/)?properties")
_NUMBER: Final = re.compile(r"[0-9]{1,20}")
_REMEDY: Final = "give all files named properties below /sys/class/kfd/kfd/topology/nodes"


@dataclass(frozen=True, slots=True)
class _KfdLink:
    target: int
    kind: int
    weight: int
    mb_per_second: int


def read_tree(files: Mapping[str, str]) -> NodeHardware:
    """Return the hardware that a tree describes. GPUs are numbered in the order of their nodes.

    Args:
        files: content by path, of files such as ``nodes/2/io_links/0/properties``.

    Raises:
        HardwareError: no GPU is there, or too many are, or a file has something else than names and numbers.
    """
    check_count("tree", len(files), MAX_FILES, "files")
    nodes: dict[int, dict[str, int]] = {}
    memory: dict[int, int] = {}
    links: dict[int, list[_KfdLink]] = {}
    for path in sorted(files):
        if (match := _NODE_FILE.fullmatch(path)) is None:
            continue
        node, properties = int(match[1]), _properties(path, files[path])
        if match[2] is None:
            nodes[node] = properties
        elif match[2] == "mem_banks":
            memory[node] = memory.get(node, 0) + properties.get("size_in_bytes", 0)
        else:
            links.setdefault(node, []).append(_link(path, properties))
    numbers = [node for node, properties in sorted(nodes.items()) if properties.get("simd_count", 0) > 0]
    if not numbers:
        raise HardwareError(f"no node of the tree has SIMD units, so there is no GPU; {_REMEDY}")
    check_count("tree", len(numbers), MAX_GPUS, "GPUs")
    sockets = {node: _socket(node, nodes, links) for node in numbers}
    xgmi = _xgmi(numbers, links)
    return NodeHardware(
        gpus=tuple(
            _gpu(index, nodes[node], memory.get(node, 0), sockets[node], linked=any(index in pair for pair in xgmi))
            for index, node in enumerate(numbers)
        ),
        links=tuple(
            GpuLink(first, second, max(1, speed // XGMI_MB_PER_SECOND), speed)
            for (first, second), speed in sorted(xgmi.items())
        ),
        gpu_paths=tuple(tuple(_path(gpu, other, sockets) for other in numbers) for gpu in numbers),
    )


def _properties(path: str, text: str) -> dict[str, int]:
    properties: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if not name:
            continue
        if not _NUMBER.fullmatch(value):
            raise HardwareError(f"{quoted(path)}: {quoted(line)} is no name with a number; {_REMEDY}")
        properties[name] = int(value)
    return properties


def _link(path: str, properties: Mapping[str, int]) -> _KfdLink:
    mb_per_second = properties.get("max_bandwidth", 0)
    if mb_per_second > MAX_LINK_MB_PER_SECOND:
        raise HardwareError(f"{quoted(path)}: max_bandwidth is {mb_per_second}, of {MAX_LINK_MB_PER_SECOND:,} at most")
    return _KfdLink(
        properties.get("node_to", -1), properties.get("type", 0), properties.get("weight", 0), mb_per_second
    )


def _socket(node: int, nodes: Mapping[int, Mapping[str, int]], links: Mapping[int, Iterable[_KfdLink]]) -> int:
    """Return the node of the CPU socket of a GPU: its own, else the closest one; `UNKNOWN_NUMA` if there is none."""
    with_cores = {number for number, properties in nodes.items() if properties.get("cpu_cores_count", 0) > 0}
    if node in with_cores:
        return node
    cpus = [(link.weight, link.target) for link in links.get(node, ()) if link.target in with_cores]
    return min(cpus)[1] if cpus else UNKNOWN_NUMA


def _xgmi(numbers: list[int], links: Mapping[int, Iterable[_KfdLink]]) -> dict[tuple[int, int], int]:
    """Return the XGMI bandwidth of each pair of GPUs by index, in MB/s. If the directions differ, the lower counts."""
    index_of = {node: index for index, node in enumerate(numbers)}
    directed: dict[tuple[int, int], int] = {}
    for node in numbers:
        for link in links.get(node, ()):
            if link.kind == _XGMI and link.target in index_of and link.target != node:
                pair = index_of[node], index_of[link.target]
                directed[pair] = directed.get(pair, 0) + (link.mb_per_second or XGMI_MB_PER_SECOND)
    return undirected(directed)


def _path(gpu: int, other: int, sockets: Mapping[int, int]) -> PciePath:
    """Return the PCIe path between two GPUs. The tree says nothing about switches: weights add up over the sockets."""
    if gpu == other:
        return PciePath.SELF
    if UNKNOWN_NUMA in (sockets[gpu], sockets[other]):
        return PciePath.UNKNOWN
    return PciePath.NODE if sockets[gpu] == sockets[other] else PciePath.SYSTEM


def _gpu(index: int, properties: Mapping[str, int], memory_bytes: int, socket: int, *, linked: bool) -> Gpu:
    location = properties.get("location_id", 0)
    bus_id = f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"
    unique = properties.get("unique_id", 0)
    return Gpu(
        index=index,
        uuid=f"{unique:016x}" if unique else "",
        bus_id=bus_id,
        memory_bytes=memory_bytes,
        architecture=AMD_ARCHITECTURES.get(_target(properties.get("gfx_target_version", 0)), ""),
        numa_node=socket,
        link_mb_per_second=XGMI_MB_PER_SECOND if linked else 0,
    )


def _target(version: int) -> str:
    """Return the name of an instruction set, such as 90a, from the driver's number, such as 90010."""
    return f"{version // 10_000}{version // 100 % 100:x}{version % 100:x}"
