"""Reads the topology files of NCCL and RCCL.

``NCCL_TOPO_DUMP_FILE`` makes NCCL write one, and clouds ship them for ``NCCL_TOPO_FILE``. A ``<system>`` contains a
``<cpu>`` for each NUMA node, with the tree of ``<pci>`` devices below it. A GPU is a ``<gpu>`` element with its links,
or, in the files of clouds, a PCI device of the class of 3D controllers. Addresses and domains are in no order.

Source: NCCL's ``xml.cc``, and 48 files of AWS, Azure and RCCL that the tests read.
"""

import re
import xml.etree.ElementTree as ElementTree  # a document type, and so every entity, is refused before
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.text import quoted
from topo_scheduler.state.devices.hardware import (
    AMD_ARCHITECTURES,
    MAX_GPUS,
    MAX_NICS,
    UNKNOWN_NUMA,
    XGMI_MB_PER_SECOND,
    Gpu,
    GpuLink,
    HardwareError,
    Nic,
    NodeHardware,
    PciePath,
    check_count,
    undirected,
)

MAX_FILE_BYTES: Final = 4 << 20
MAX_DEPTH: Final = 32
"""Bridges above each other. Real files have up to 6."""
_NVLINK_MB_PER_SECOND: Final = ((100, 50_000), (70, 25_000), (0, 20_000))
"""MB/s of one NVLink in each direction, from a compute capability (times ten) on."""
_REMEDY: Final = "write one with NCCL_TOPO_DUMP_FILE"
_DEFAULT_LINK_MB_PER_SECOND: Final = 25_000

_GPU_CLASSES: Final = ("0x0302", "0x0380", "0x1200")
_NIC_CLASSES: Final = ("0x0200", "0x0207")
_BRIDGE_CLASS: Final = "0x0604"
_SWITCH_CLASS: Final = "0x068000"
"""PCI class that links lead to if they lead to a switch (NVSwitch)."""
_CPU_CLASS: Final = "0x068001"
"""PCI class of the bridges that links to POWER CPUs lead to."""
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_MAX_COUNT: Final = 1_000
"""Links that one element may stand for."""
_MAX_NAME_CHARACTERS: Final = 64
_MAX_WARNINGS: Final = 32


@dataclass(frozen=True, slots=True)
class _Device:
    """A PCI device with its ``<gpu>`` element if there is one.

    ``cpu``: number of the ``<cpu>`` element. ``above``: addresses of the bridges above the device, outermost first.
    """

    element: ElementTree.Element
    gpu: ElementTree.Element | None
    bus_id: str
    cpu: int
    numa_node: int
    above: tuple[str, ...]


def read_topology(text: str) -> NodeHardware:
    """Return the hardware that a topology file describes.

    GPUs are numbered by ``dev`` where ``<gpu>`` elements carry it, and in the order of the file otherwise.

    Args:
        text: the content of the file.

    Raises:
        HardwareError: it is no such file, has no GPU or too many of them, or contradicts itself.
    """
    root = _parsed(text)
    if len(hosts := {cpu.get("host_hash", "") for cpu in root.iter("cpu")}) > 1:
        raise HardwareError(f"the topology file describes {len(hosts)} hosts; write one for each")
    devices = [device for number, cpu in enumerate(root.iter("cpu")) for device in _below(cpu, number)]
    gpus = _gpu_devices(devices)
    warnings: list[str] = []
    index_of = {device.bus_id: index for index, device in enumerate(gpus)}
    if len(index_of) != len(gpus):
        raise HardwareError("two GPUs have one busid; every GPU needs its own")
    directed, switch_links = _links(gpus, index_of, warnings)
    speeds = [_link_speed(device) for device in gpus]
    nics = list(_nics(root, devices))
    check_count("topology file", len(nics), MAX_NICS, "NICs")
    return NodeHardware(
        gpus=tuple(
            Gpu(
                index=index,
                bus_id=device.bus_id,
                architecture=_architecture(device),
                numa_node=device.numa_node,
                pcie_root=device.above[0] if device.above else f"cpu{device.cpu}",
                pcie_switch=device.above[-1] if device.above else "",
                switch_links=switch_links[index],
                link_mb_per_second=speeds[index] if switch_links[index] or _has_links(index, directed) else 0,
            )
            for index, device in enumerate(gpus)
        ),
        nics=tuple(nic for nic, _ in nics),
        links=_undirected(directed, speeds, warnings),
        gpu_paths=tuple(tuple(_path(gpu, other) for other in gpus) for gpu in gpus),
        nic_paths=tuple(tuple(_path(gpu, device) for _, device in nics) for gpu in gpus),
        warnings=tuple(warnings[:_MAX_WARNINGS]),
    )


def _parsed(text: str) -> ElementTree.Element:
    check_count("topology file", len(text), MAX_FILE_BYTES, "characters")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise HardwareError(f"the topology file declares a document type, which is not read; {_REMEDY}")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, UnicodeEncodeError) as error:
        raise HardwareError(f"the topology file is no XML: {error}; {_REMEDY}") from error
    if root.tag != "system":
        raise HardwareError(f"the topology file begins with <{root.tag[:40]}> instead of <system>; {_REMEDY}")
    return root


def _below(cpu: ElementTree.Element, number: int) -> Iterator[_Device]:
    """Yield the PCI devices below a CPU that are no bridges, in the order of the file."""
    numa_node = _numa(cpu)
    left: list[tuple[ElementTree.Element, tuple[str, ...]]] = [(pci, ()) for pci in reversed(cpu.findall("pci"))]
    while left:
        pci, above = left.pop()
        bus_id = _name(pci, "busid").lower()
        below = pci.findall("pci")
        if below:
            if len(above) >= MAX_DEPTH:
                raise HardwareError(f"PCI device {bus_id} is below more than {MAX_DEPTH} bridges")
            left += [(inner, (*above, bus_id)) for inner in reversed(below)]
        elif not pci.get("class", "").startswith(_BRIDGE_CLASS):
            yield _Device(pci, pci.find("gpu"), bus_id, number, numa_node, above)


def _gpu_devices(devices: list[_Device]) -> list[_Device]:
    """Return the GPUs by index."""
    gpus = [device for device in devices if device.gpu is not None]
    if gpus:
        gpus.sort(key=lambda device: _number(device.gpu, "dev", 0))
    else:
        gpus = [device for device in devices if device.element.get("class", "").startswith(_GPU_CLASSES)]
    if not gpus:
        raise HardwareError(f"the topology file names no GPU; {_REMEDY}")
    check_count("topology file", len(gpus), MAX_GPUS, "GPUs")
    return gpus


def _links(
    gpus: list[_Device], index_of: Mapping[str, int], warnings: list[str]
) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Return the links from each GPU to each other one as the file has them, and the links of each to switches."""
    directed: dict[tuple[int, int], int] = {}
    switch_links = [0] * len(gpus)
    for index, device in enumerate(gpus):
        for link in () if device.gpu is None else (*device.gpu.findall("nvlink"), *device.gpu.findall("xgmi")):
            target, count = _name(link, "target").lower(), _number(link, "count", 0, _MAX_COUNT)
            if link.get("tclass") == _SWITCH_CLASS:
                switch_links[index] += count
            elif link.get("tclass") == _CPU_CLASS:
                continue
            elif target == device.bus_id:
                warnings.append(f"GPU {index} ({target}) has {count} links to itself, which are left out")
            elif target in index_of:
                pair = index, index_of[target]
                directed[pair] = directed.get(pair, 0) + count
            else:
                warnings.append(f"GPU {index} has {count} links to {target!r}, which is no GPU: they are left out")
    return directed, switch_links


def _undirected(directed: Mapping[tuple[int, int], int], speeds: list[int], warnings: list[str]) -> tuple[GpuLink, ...]:
    """Return each pair once. If the two directions differ, the smaller number of links counts."""
    links: list[GpuLink] = []
    for (first, second), count in sorted(undirected(directed).items()):
        forward, back = directed.get((first, second)), directed.get((second, first))
        if forward is not None and back is not None and forward != back:
            warnings.append(f"GPU {first} has {forward} links to GPU {second}, but {back} in the other direction")
        if count > 0:
            links.append(GpuLink(first, second, count, count * min(speeds[first], speeds[second])))
    return tuple(links)


def _has_links(index: int, directed: Mapping[tuple[int, int], int]) -> bool:
    return any(index in pair for pair in directed)


def _link_speed(device: _Device) -> int:
    """Return the bandwidth of one link of a GPU in each direction, in MB/s."""
    if device.gpu is None:
        return 0
    if device.gpu.get("gcn"):
        return XGMI_MB_PER_SECOND
    capability = _number(device.gpu, "sm", 0)
    if not capability:
        return _DEFAULT_LINK_MB_PER_SECOND
    return next(speed for least, speed in _NVLINK_MB_PER_SECOND if capability >= least)


_NVIDIA: Final = {7: "volta", 8: "ampere", 9: "hopper", 10: "blackwell", 12: "blackwell"}


def _architecture(device: _Device) -> str:
    if device.gpu is None:
        return ""
    if chip := device.gpu.get("gcn", "").removeprefix("gfx"):
        return AMD_ARCHITECTURES.get(chip, "")
    capability = _number(device.gpu, "sm", 0)
    if capability in (75, 89):
        return "turing" if capability == 75 else "ada"
    return _NVIDIA.get(capability // 10, "")


def _nics(root: ElementTree.Element, devices: list[_Device]) -> Iterator[tuple[Nic, _Device]]:
    """Yield the network ports, each with the device that it is on."""
    for device in devices:
        ports = device.element.findall("./nic/net")
        for port in ports:
            speed = _number(port, "speed", 0)
            yield Nic(_name(port, "name") or device.bus_id, device.bus_id, device.numa_node, speed), device
        if not ports and device.element.get("class", "").startswith(_NIC_CLASSES):
            yield Nic(device.bus_id, device.bus_id, device.numa_node), device
    for number, cpu in enumerate(root.iter("cpu")):
        for port in cpu.findall("./nic/net"):  # a NIC without a PCI device, as in virtual machines
            numa_node = _numa(cpu)
            nic = Nic(_name(port, "name") or "net", "", numa_node, _number(port, "speed", 0))
            yield nic, _Device(port, None, "", number, numa_node, ())


def _path(device: _Device, other: _Device) -> PciePath:
    """Return the PCIe path between two devices. Files say nothing about several host bridges of one NUMA node."""
    if device is other:
        return PciePath.SELF
    if device.cpu != other.cpu:
        return PciePath.SYSTEM
    common = 0
    for first, second in zip(device.above, other.above, strict=False):
        if first != second:
            break
        common += 1
    if not common:
        return PciePath.HOST_BRIDGE
    return PciePath.SWITCH if len(device.above) == len(other.above) == common else PciePath.SWITCHES


def _numa(cpu: ElementTree.Element) -> int:
    return UNKNOWN_NUMA if cpu.get("numaid") == "-1" else _number(cpu, "numaid", UNKNOWN_NUMA)


def _number(element: ElementTree.Element | None, attribute: str, default: int, maximum: int = 999_999_999) -> int:
    if element is None or (text := element.get(attribute)) is None:
        return default
    if not _NUMBER.fullmatch(text) or int(text) > maximum:
        raise HardwareError(
            f"<{element.tag}> has {attribute}={text[:40]!r}, which is no whole number from 0 to {maximum:,}"
        )
    return int(text)


def _name(element: ElementTree.Element, attribute: str) -> str:
    text = element.get(attribute, "")
    if len(text) > _MAX_NAME_CHARACTERS or not text.isprintable():
        raise HardwareError(f"<{element.tag}> has {attribute}={quoted(text)}, which is no name; {_REMEDY}")
    return text
