"""Devices of seats, as a Migration stores them, and as an allocation that holds them."""

from collections.abc import Iterable

from topo_scheduler.api.devices import AllocatedDevice, Allocation, DeviceAllocation
from topo_scheduler.api.migrations import SeatDevice


def devices_to_hold(allocations: Iterable[Allocation]) -> list[SeatDevice]:
    """Return the devices of allocations, and their shares of devices. Admin access holds none."""
    return [
        SeatDevice(result.driver, result.pool, result.device, _consumed(result))
        for allocation in allocations
        for result in allocation.devices.results
        if not result.admin_access
    ]


def _consumed(result: AllocatedDevice) -> dict[str, str] | None:
    if result.share_id is None:
        return None
    return {name: str(amount) for name, amount in (result.consumed_capacity or {}).items()}


def seat_allocation(devices: Iterable[SeatDevice]) -> Allocation:
    """Return devices of a seat as an allocation that holds them."""
    return Allocation(DeviceAllocation([_as_allocated(device) for device in devices]))


def _as_allocated(device: SeatDevice) -> AllocatedDevice:
    if device.consumed_capacity is None:
        return AllocatedDevice("seat", *device.id)
    return AllocatedDevice("seat", *device.id, share_id="seat", consumed_capacity=dict(device.consumed_capacity))
