"""Devices of a ResourceSlice as selectors see them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import EvaluationError
from .frames import Attribute
from .quantities import Quantity, QuantityFormatError, QuantityRangeError, parse_quantity
from .versions import VersionError, parse_version


@dataclass(frozen=True, slots=True)
class SelectorDevice:
    """The plain form of `DeviceView`."""

    driver: str = ""
    attributes: Mapping[str, Mapping[str, Attribute]] = field(default_factory=dict)
    capacity: Mapping[str, Mapping[str, Quantity]] = field(default_factory=dict)
    allow_multiple_allocations: bool = False


def read_device(driver: str, device: Mapping[str, Any]) -> SelectorDevice:
    """Return a device as it stands in a ResourceSlice (``attributes``, ``capacity``, ``allowMultipleAllocations``).

    Raises:
        EvaluationError: an attribute has no value of a supported type; upstream fails on every selector then.
    """
    attributes: dict[str, dict[str, Attribute]] = {}
    for name, value in (device.get("attributes") or {}).items():
        domain, identifier = _qualified(name, driver)
        attributes.setdefault(domain, {})[identifier] = _attribute(name, value)
    capacity: dict[str, dict[str, Quantity]] = {}
    for name, value in (device.get("capacity") or {}).items():
        domain, identifier = _qualified(name, driver)
        capacity.setdefault(domain, {})[identifier] = _capacity(name, value)
    return SelectorDevice(driver, attributes, capacity, bool(device.get("allowMultipleAllocations")))


def _qualified(name: str, driver: str) -> tuple[str, str]:
    domain, slash, identifier = name.partition("/")
    return (domain, identifier) if slash else (driver, name)


def _attribute(name: str, value: Mapping[str, Any]) -> Attribute:
    for kind, wanted in (("int", int), ("bool", bool), ("string", str)):
        typed_value = value.get(kind)
        if type(typed_value) is wanted:
            return typed_value
    version = value.get("version")
    if not isinstance(version, str):
        raise EvaluationError(f"the attribute {name} has no value of type string, bool, int or version")
    try:
        return parse_version(version)
    except VersionError as error:
        raise EvaluationError(f"the attribute {name}: {error}") from None


def _capacity(name: str, value: Mapping[str, Any]) -> Quantity:
    try:
        return parse_quantity(str(value.get("value", "0")).strip())
    except (QuantityFormatError, QuantityRangeError) as error:
        raise EvaluationError(f"the capacity {name}: {error}") from None
