"""Devices that stand for no GPU and that claims have, such as NICs: counted by driver."""

from collections import Counter
from collections.abc import Iterable

from topo_scheduler.api.devices import Allocation
from topo_scheduler.state.devices.gpus_of_devices import is_gpu, thousandths_of_device
from topo_scheduler.state.devices.inventory import DeviceInventory


def other_devices(inventory: DeviceInventory, allocations: Iterable[Allocation]) -> Counter[str]:
    """Return how many devices other than GPUs allocations have, in thousandths by driver."""
    devices: Counter[str] = Counter()
    for allocation in allocations:
        for (driver, *_), device, consumed in inventory.parts_of_allocation(allocation):
            if not is_gpu(driver, device):
                counters = inventory.counters_of(device) if device is not None else {}
                devices[driver] += thousandths_of_device(driver, device, consumed, counters)
    return devices


def other_devices_of_namespace(inventory: DeviceInventory, namespace: str) -> Counter[str]:
    """Return how many devices other than GPUs the claims of a namespace have, in thousandths by driver."""
    allocations = map(inventory.allocation_of, inventory.claims_in_use(namespace))
    return other_devices(inventory, (allocation for allocation in allocations if allocation is not None))


def other_devices_of_pod(inventory: DeviceInventory, uid: str) -> Counter[str]:
    """Return how many devices other than GPUs the claims of a pod have; its part of those that it shares."""
    devices: Counter[str] = Counter()
    for key in inventory.consumers.claims_of(uid):
        if (allocation := inventory.allocation_of(key)) is not None:
            pods = inventory.consumers.pods_of(key)
            devices.update({driver: count // pods for driver, count in other_devices(inventory, [allocation]).items()})
    return devices
