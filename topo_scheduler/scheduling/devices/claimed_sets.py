"""Which GPUs of a node ResourceClaims have, by index, so that they do not count as free for pods without claims."""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from topo_scheduler.api.devices import Allocation
from topo_scheduler.scheduling.devices.node_devices import NodeDevices
from topo_scheduler.state.devices.claim_writes import ClaimChoice
from topo_scheduler.state.devices.device_survey import PCIE_ROOT
from topo_scheduler.state.devices.gpus_of_devices import gpus_of_device
from topo_scheduler.state.devices.pools import DeviceId, PublishedDevice
from topo_scheduler.state.ledger.claimed_gpus import ClaimedGpus
from topo_scheduler.state.operation_budget import charge_rows

UNKNOWN: Final = -1
WHOLE_GPU_TYPES: Final = ("gpu", "amdgpu")
_NUMBER: Final = re.compile(r"(\d{1,4})$")
_PARENTS: Final = ("parentUUID", "uuid")


class ClaimedSets:
    """GPUs of claims by index."""

    def __init__(self, devices: NodeDevices, claimed: ClaimedGpus) -> None:
        """``claimed``: knows which pods request GPUs that their claims have."""
        self._devices = devices
        self._claimed = claimed

    def on_trial(self, devices: NodeDevices) -> "ClaimedSets":
        """Return the same for devices on a trial."""
        return ClaimedSets(devices, self._claimed)

    def in_use(self, row: int, count: int) -> int:
        """Return the GPUs of a node that claims have, wholly or in part, as bits.

        Args:
            row: row of the node.
            count: number of its GPUs.

        Returns:
            `UNKNOWN` if a claim has a GPU of the node, and it is not known which one.
        """
        inventory = self._devices.inventory
        if not inventory.is_any_in_use or not inventory.slices_of(self._devices.node_names[row]):
            return 0
        used = inventory.use_of(device.id for device in self._published(row))
        return self.indexes(row, {*used.whole, *used.shares}, count)

    def held_by(self, uid: str, row: int, count: int) -> int:
        """Return the GPUs of a node that the claims of a pod have, as bits; other arguments as for `in_use`."""
        inventory = self._devices.inventory
        return self._of_allocations(map(inventory.allocation_of, inventory.consumers.claims_of(uid)), row, count)

    def chosen(self, choices: Iterable[ClaimChoice], row: int, count: int) -> int:
        """Return the GPUs of a node that the claims of a decided pod get, as bits; other arguments as for `in_use`."""
        inventory = self._devices.inventory
        allocations = (choice.allocation or inventory.allocation_of(choice.key) for choice in choices)
        return self._of_allocations(allocations, row, count)

    def _of_allocations(self, allocations: Iterable[Allocation | None], row: int, count: int) -> int:
        inventory = self._devices.inventory
        devices = {
            id_
            for allocation in allocations
            if allocation is not None
            for id_ in inventory.devices_of_allocation(allocation)
        }
        return self.indexes(row, devices, count) if devices else 0

    def whole_gpus_of(self, row: int) -> list[PublishedDevice]:
        """Return the devices that are whole GPUs of a node, by index."""
        return whole_gpus(self._published(row))

    def _published(self, row: int) -> list[PublishedDevice]:
        node = self._devices.node_names[row]
        published = [
            device for pool in self._devices.pools_of(row) for device in pool.devices if device.scope.node == node
        ]
        charge_rows(len(published), 4)
        return published

    def indexes(self, row: int, chosen: Collection[DeviceId], count: int) -> int:
        """Return the GPUs of which some devices are, wholly or in part, as bits; as for `in_use`."""
        published = self._published(row)
        whole, out = whole_gpus(published), 0
        for device in published:
            if device.id not in chosen:
                continue
            if not gpus_of_device(device.id[0], device, None, {}):
                continue
            index = _index_of(device, whole)
            if not 0 <= index < count:
                return UNKNOWN
            out |= 1 << index
        return out

    def gpu_of_each(self, row: int, count: int) -> dict[DeviceId, int]:
        """Return the GPU of each device of a node that is one or a part of one; `UNKNOWN` if that is not known."""
        published = self._published(row)
        whole = whole_gpus(published)
        gpus = {
            device.id: _index_of(device, whole)
            for device in published
            if gpus_of_device(device.id[0], device, None, {})
        }
        return {id_: index if index < count else UNKNOWN for id_, index in gpus.items()}

    def has_requests_of(self, uid: str) -> bool:
        """Return whether the GPUs that a pod requests are those of its claims."""
        return self._claimed.stands_for_requests(uid)


def whole_gpus(published: Iterable[PublishedDevice]) -> list[PublishedDevice]:
    """Return the devices that are whole GPUs, in the order of their numbers."""
    gpus = [device for device in published if text_of(device, "type") in WHOLE_GPU_TYPES]
    return sorted(gpus, key=lambda device: (max(0, _number_of(device)), device.id))


def text_of(device: PublishedDevice, name: str) -> str:
    """Return an attribute of a device that is a text; empty without one."""
    kind, value = device.attributes.get(name if "/" in name else f"{device.id[0]}/{name}", ("", ""))
    return value if kind == "string" and isinstance(value, str) else ""


def _number_of(device: PublishedDevice) -> int:
    match = _NUMBER.search(device.id[2])
    return int(match[1]) if match else UNKNOWN


def _index_of(device: PublishedDevice, whole: Sequence[PublishedDevice]) -> int:
    """Return the index of the GPU of a device, or of the one that it is a part of."""
    if not whole:
        return _number_of(device)
    for index, gpu in enumerate(whole):
        if gpu.id == device.id:
            return index
    parent, root = text_of(device, _PARENTS[0]), text_of(device, PCIE_ROOT)
    alike = [
        index
        for index, gpu in enumerate(whole)
        if (device.counter_sets and device.id[:2] == gpu.id[:2] and device.counter_sets & gpu.counter_sets)
        or (parent and parent == text_of(gpu, _PARENTS[1]))
    ]
    alike = alike or [index for index, gpu in enumerate(whole) if root and root == text_of(gpu, PCIE_ROOT)]
    return alike[0] if len(alike) == 1 else UNKNOWN
