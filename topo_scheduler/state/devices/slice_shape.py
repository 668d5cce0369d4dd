"""What slices of identical hardware have in common: everything but what identifies their devices and nodes.

Thousands of nodes publish the same hardware. What claims can get of it is computed once for each shape, as long as no
claim reads an identity.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from topo_scheduler.state.devices.pools import Number, PublishedDevice

IDENTITIES: Final = frozenset(("uuid", "parentuuid", "serial", "serialnumber", "pcibusid"))
"""Attributes that differ between devices which are alike otherwise, in lower case and without their domain."""


def is_identity(name: str) -> bool:
    """Return whether an attribute of this name identifies a device."""
    return name.rpartition("/")[2].lower() in IDENTITIES


def shape_key(
    driver: str, devices: Iterable["PublishedDevice"], counters: Iterable[tuple[str, Mapping[str, "Number"]]]
) -> object:
    """Return a value that is equal for slices of one shape, if their devices share their kinds."""
    amounts = tuple((name, tuple(sorted(amounts.items()))) for name, amounts in counters)
    return driver, tuple(device.kind for device in devices), amounts
