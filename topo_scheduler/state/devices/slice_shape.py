"""What slices of identical hardware have in common: everything but what identifies their devices and nodes.

Thousands of nodes publish the same hardware. What claims can get of it is computed once for each shape, as long as no
claim reads an identity.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from topo_scheduler.state.devices.pools import AttributeValue, Number, PublishedDevice

IDENTITIES: Final = frozenset(("uuid", "parentuuid", "serial", "serialnumber", "pcibusid"))
"""Attributes that differ between devices which are alike otherwise, in lower case and without their domain."""


def is_identity(name: str) -> bool:
    """Return whether an attribute of this name identifies a device."""
    return name.rpartition("/")[2].lower() in IDENTITIES


def shape_key(
    driver: str, devices: Iterable["PublishedDevice"], counters: Iterable[tuple[str, Mapping[str, "Number"]]]
) -> object:
    """Return a value that is equal for slices of one shape."""
    attributes: dict[int, object] = {}  # partitions of a GPU share theirs
    capacities: dict[int, object] = {}
    keys = []
    for device in devices:
        of_device = attributes.get(id(device.attributes))
        if of_device is None:
            of_device = attributes[id(device.attributes)] = _attributes(device.attributes)
        capacity = capacities.get(id(device.capacity))
        if capacity is None:
            capacity = capacities[id(device.capacity)] = tuple(
                sorted(device.capacity.items(), key=lambda item: item[0])
            )
        binds = device.binds_to_node, device.binding_conditions, device.binding_failure_conditions
        keys.append((of_device, capacity, device.consumption, device.taints, device.shared, binds))
    return driver, tuple(keys), tuple((name, tuple(sorted(amounts.items()))) for name, amounts in counters)


def _attributes(attributes: Mapping[str, "AttributeValue"]) -> object:
    return tuple(
        sorted(
            (name, kind, value)
            for name, (kind, value) in attributes.items()
            if kind != "string" or not is_identity(name)
        )
    )
