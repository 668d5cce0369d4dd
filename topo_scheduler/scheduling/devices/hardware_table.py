"""The hardware of every node, kept up to date from its labels, its resources and its ResourceSlices."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from topo_scheduler.api.gpu_needs import architecture_name
from topo_scheduler.scheduling.devices.claimed_sets import text_of, whole_gpus
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.state.devices.device_survey import PCIE_ROOT
from topo_scheduler.state.devices.hardware import MAX_GPUS, NUMA_ATTRIBUTES, UNKNOWN_NUMA
from topo_scheduler.state.devices.node_hardware import (
    LABELS_READ,
    MAX_KINDS_WITHOUT_NODE,
    MAX_MEMORY_BYTES,
    NodeGpus,
    PublishedGpu,
    describe,
)
from topo_scheduler.state.devices.pools import Pool, PublishedDevice
from topo_scheduler.state.nodes.gpu_facts import MigOffer
from topo_scheduler.state.nodes.node_table import NodeTable

MAX_DESCRIPTIONS: Final = 1024
"""Descriptions that are kept by what they were read from: identical nodes are read once."""
MAX_COMPLAINTS: Final = 64
"""Complaints that wait to be reported."""
_MAX_PUBLISHED: Final = 4 * MAX_GPUS

_Key = tuple[object, ...]


class HardwareTable:
    """Descriptions of the GPUs of nodes, by number. Identical nodes have the same number."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self.kinds: dict[int, NodeGpus] = {}
        self._numbers: dict[NodeGpus, int] = {}
        self._next = 0
        self._described: dict[_Key, tuple[NodeGpus | None, tuple[str, ...]]] = {}
        self._published_of: dict[object, tuple[PublishedGpu, ...]] = {}
        self._complained: dict[str, tuple[str, ...]] = {}
        self._complaints: list[str] = []

    def of(self, row: int) -> NodeGpus | None:
        """Return the GPUs of a row; None without any that are known."""
        return self.kinds.get(int(self._nodes.gpus.kind[row]))

    def put(self, row: int, devices: NodeDevices) -> bool:
        """Read the GPUs of a row again, with the slices in ``devices``; return whether their description changed."""
        nodes = self._nodes
        gpus, complaints = self._describe(row, devices)
        name = nodes.names[row]
        if complaints != self._complained.get(name, ()):
            fresh = [text for text in complaints if text not in self._complained.get(name, ())]
            self._complaints += [f"node {name}: {text}" for text in fresh][: MAX_COMPLAINTS - len(self._complaints)]
            if complaints:
                self._complained[name] = complaints
            else:
                del self._complained[name]
        before = int(nodes.gpus.kind[row])
        if gpus is None:
            nodes.gpus.clear(row)
            return before >= 0
        if gpus is self.kinds.get(before):
            return False  # the usual case: of identical objects no hash is computed
        number = self._number(gpus)
        if number != before:
            offer = MigOffer(gpus.mig_profiles, gpus.mig_strategy, gpus.mig_capable, gpus.mig_config)
            nodes.gpus.put(row, number, gpus.memory_bytes, gpus.architecture, offer)
        return number != before

    def forget(self, name: str) -> None:
        """Forget a node that was deleted."""
        self._complained.pop(name, None)

    def complaints(self) -> list[str]:
        """Return what sources contradict each other in, or can't be read, each once."""
        complaints, self._complaints = self._complaints, []
        return complaints

    def _describe(self, row: int, devices: NodeDevices) -> tuple[NodeGpus | None, tuple[str, ...]]:
        labels = {key: value for key, value in self._nodes.labels[row].items() if key in LABELS_READ}
        published = self._published(row, devices)
        offers = len(self._nodes.resources), self._nodes.allocatable[row].tobytes()
        key = tuple(sorted(labels.items())), offers, published
        known = self._described.get(key)
        if known is None:
            if len(self._described) >= MAX_DESCRIPTIONS:
                self._described.clear()
            gpus, complaints = describe(labels, self._offered(row), published)
            known = self._described[key] = gpus, tuple(complaints)
        return known

    def _offered(self, row: int) -> Mapping[str, int]:
        """Return the allocatable resources of GPU vendors."""
        resources, offered = self._nodes.resources, self._nodes.allocatable[row]
        prefixes = tuple(sorted({f"{name.partition('/')[0]}/" for name in resources.gpu_resources}))
        columns = np.flatnonzero(offered).tolist()
        named = ((resources.names[column], int(offered[column])) for column in columns)
        return {name: amount for name, amount in sorted(named) if name.startswith(prefixes)}

    def _published(self, row: int, devices: NodeDevices) -> tuple[PublishedGpu, ...]:
        """Return the whole GPUs of the row's own pools, in order; nothing that differs between identical nodes."""
        node = self._nodes.names[row]
        if not devices.inventory.slices_of(node):
            return ()
        pools = devices.pools_of(row)
        layouts = tuple([pool.layout for pool in pools])
        if None in layouts:  # other nodes have some of the devices too
            return _published_gpus(pools, node)
        known = self._published_of.get(layouts)
        if known is None:
            if len(self._published_of) >= MAX_DESCRIPTIONS:
                self._published_of.clear()
            known = self._published_of[layouts] = _published_gpus(pools, node)
        return known

    def _number(self, gpus: NodeGpus) -> int:
        number = self._numbers.get(gpus)
        if number is None:
            if len(self._numbers) > MAX_KINDS_WITHOUT_NODE + 2 * len(self._nodes):
                self._forget_unused()
            number = self._numbers[gpus] = self._next
            self.kinds[number] = gpus
            self._next += 1
        return number

    def _forget_unused(self) -> None:
        used = set(np.unique(self._nodes.gpus.kind).tolist())
        self.kinds = {number: gpus for number, gpus in self.kinds.items() if number in used}
        self._numbers = {gpus: number for number, gpus in self.kinds.items()}
        self._nodes.gpus.forget_unused()


def _published_gpus(pools: Iterable[Pool], node: str) -> tuple[PublishedGpu, ...]:
    published = [device for pool in pools if pool.usable for device in pool.devices if device.scope.node == node]
    gpus = whole_gpus(published)
    return tuple(_published(device) for device in gpus) if len(gpus) <= _MAX_PUBLISHED else ()


def _published(device: PublishedDevice) -> PublishedGpu:
    memory = device.capacity["memory"].total.value if "memory" in device.capacity else 0
    numa = next((node for node in (_whole(device, name) for name in NUMA_ATTRIBUTES) if node is not None), None)
    return PublishedGpu(
        name="",
        model=text_of(device, "productName"),
        memory_bytes=int(memory) if memory <= MAX_MEMORY_BYTES else 0,
        architecture=architecture_name(text_of(device, "architecture")),
        numa_node=numa if numa is not None else UNKNOWN_NUMA,
        pcie_root=text_of(device, PCIE_ROOT),
    )


def _whole(device: PublishedDevice, name: str) -> int | None:
    kind, value = device.attributes.get(name if "/" in name else f"{device.id[0]}/{name}", ("", ""))
    return value if kind == "int" and isinstance(value, int) and 0 <= value < 64 else None
