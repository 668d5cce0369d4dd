"""How much of a device's capacity a request consumes: rounding and limits of request policies.

The rules are those of ``consumable_capacity.go`` in Kubernetes 1.36.
"""

from collections.abc import Mapping
from math import ceil

from topo_scheduler.state.devices.pools import Amount, Capacity, Number, PublishedDevice


def consumed(requested: Mapping[str, Amount], device: PublishedDevice) -> dict[str, Amount] | None:
    """Return what a request consumes of each capacity of a device, None if its policies forbid it."""
    if any(name not in device.capacity for name in requested):
        return None
    result = {}
    for name, capacity in device.capacity.items():
        result[name] = part = _part(requested.get(name), capacity)
        if not _allowed(part, capacity):
            return None
    return result


def _part(requested: Amount | None, capacity: Capacity) -> Amount:
    if requested is None:
        return capacity.default or capacity.total
    if capacity.ranged and capacity.minimum is not None:
        return _rounded(requested, capacity.minimum, capacity.step)
    if not capacity.ranged or capacity.minimum is None:
        for value in capacity.valid_values or ():
            if requested.value <= value.value:
                return value
    return requested


def _rounded(requested: Amount, minimum: Amount, step: Amount | None) -> Amount:
    if requested.value < minimum.value:
        return minimum
    if step is None:
        return requested
    unit = max(1, ceil(step.value))
    beyond = ceil(requested.value) - ceil(minimum.value)
    value = ceil(minimum.value) + -(-beyond // unit) * unit
    return requested if value == requested.value else Amount(value, str(value))


def _allowed(part: Amount, capacity: Capacity) -> bool:
    if not capacity.limited or (capacity.default is not None and part.value == capacity.default.value):
        return True
    if capacity.ranged:
        if capacity.maximum is not None and part.value > capacity.maximum.value:
            return False
        if capacity.step is None:
            return True
        minimum = ceil(capacity.minimum.value) if capacity.minimum is not None else 0
        return (ceil(part.value) - minimum) % max(1, ceil(capacity.step.value)) == 0
    return not capacity.valid_values or any(part.value == value.value for value in capacity.valid_values)


def fits(part: Mapping[str, Amount], device: PublishedDevice, used: Mapping[str, Number]) -> bool:
    """Return whether a device has as much left of each capacity, given what is used of it."""
    return all(used.get(name, 0) + taken.value <= device.capacity[name].total.value for name, taken in part.items())
