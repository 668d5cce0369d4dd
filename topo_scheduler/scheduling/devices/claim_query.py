"""What a claim asks for, checked and joined with the classes that it names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.devices import (
    ALL_DEVICES,
    EXACT_COUNT,
    MAX_RESULTS,
    DeviceClass,
    DeviceConfiguration,
    DeviceConstraint,
    DeviceRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
    SelectorSource,
)
from topo_scheduler.state.devices.pools import Amount, PublishedDevice
from topo_scheduler.state.devices.slice_reader import amount

PREVENTING: Final = ("NoSchedule", "NoExecute")
"""Effects of taints that keep a device from being allocated."""


class ClaimQueryError(Exception):
    """A claim can't be allocated on any node as it is. The message names the request and the remedy."""


@dataclass(frozen=True, slots=True, eq=False)
class DeviceQuery:
    """A request, or one alternative of a request.

    Attributes:
        request: name of the request.
        alternative: name of the alternative; empty if the request has none.
        class_name: its DeviceClass.
        expressions: CEL of the class, then of the request; all must match.
        count: devices; 0 for all that match.
        admin_access: devices that are in use may be given.
        tolerations: of taints of devices.
        capacity: requested part of capacities, by name.
        class_config: configuration that its class carries.
    """

    request: str
    alternative: str
    class_name: str
    expressions: tuple[str, ...]
    count: int
    admin_access: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: Mapping[str, Amount]
    class_config: tuple[DeviceConfiguration, ...]

    @property
    def name(self) -> str:
        """Name in results: ``request`` or ``request/alternative``."""
        return f"{self.request}/{self.alternative}" if self.alternative else self.request

    def tolerates(self, device: PublishedDevice) -> bool:
        """Return whether all taints of a device that prevent an allocation are tolerated."""
        return not device.taints or all(
            effect not in PREVENTING or any(is_tolerated(entry, key, value, effect) for entry in self.tolerations)
            for key, value, effect in device.taints
        )


@dataclass(frozen=True, slots=True, eq=False)
class AttributeConstraint:
    """Devices of some requests must have one value of an attribute in common, or all ``distinct`` values.

    ``requests``: names of requests or alternatives; all requests of the claim if empty.
    """

    requests: frozenset[str]
    attribute: str
    distinct: bool

    def concerns(self, query: DeviceQuery) -> bool:
        """Return whether devices of a request count."""
        return not self.requests or query.request in self.requests or query.name in self.requests


@dataclass(frozen=True, slots=True, eq=False)
class ClaimQuery:
    """A claim: its requests with their alternatives, best first, and its constraints."""

    requests: tuple[tuple[DeviceQuery, ...], ...]
    constraints: tuple[AttributeConstraint, ...]
    config: tuple[DeviceConfiguration, ...]


def claim_query(spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]) -> ClaimQuery:
    """Return what a claim asks for.

    Raises:
        ClaimQueryError: a class does not exist, or the claim uses something that is not supported.
        QuantityError: a requested capacity is not a quantity.
    """
    if spec.excess:
        raise ClaimQueryError(spec.excess)
    devices = spec.devices
    return ClaimQuery(
        tuple(_request(request, classes) for request in devices.requests),
        tuple(_constraint(number, constraint) for number, constraint in enumerate(devices.constraints)),
        tuple(devices.config),
    )


def _request(request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> tuple[DeviceQuery, ...]:
    if request.first_available:
        queries = [_query(request.name, entry.name, entry, classes) for entry in request.first_available]
    elif request.exactly is not None:
        queries = [_query(request.name, "", request.exactly, classes)]
    else:
        raise ClaimQueryError(f"request {request.name} has neither exactly nor firstAvailable")
    if (least := min(query.count for query in queries)) > MAX_RESULTS:
        raise ClaimQueryError(f"request {request.name} asks for {least} devices, a claim gets {MAX_RESULTS} at most")
    return tuple(queries)


def _query(
    request: str, alternative: str, written: ExactDeviceRequest, classes: Mapping[str, DeviceClass]
) -> DeviceQuery:
    name = f"{request}/{alternative}" if alternative else request
    device_class = classes.get(written.device_class_name)
    if device_class is None:
        raise ClaimQueryError(
            f"request {name}: DeviceClass {written.device_class_name!r} does not exist; create it, or name another"
        )
    if written.allocation_mode not in ("", EXACT_COUNT, ALL_DEVICES):
        raise ClaimQueryError(f"request {name}: allocationMode {written.allocation_mode} is not supported")
    takes_all = written.allocation_mode == ALL_DEVICES
    count = 0 if takes_all else max(1, written.count)
    return DeviceQuery(
        request,
        alternative,
        written.device_class_name,
        (*_expressions(name, device_class.spec.selectors), *_expressions(name, written.selectors)),
        count,
        bool(written.admin_access),
        tuple(written.tolerations),
        {key: amount(value) for key, value in (written.capacity.requests if written.capacity else {}).items()},
        tuple(device_class.spec.config),
    )


def _expressions(name: str, selectors: list[SelectorSource]) -> list[str]:
    if any(selector.cel is None for selector in selectors):
        raise ClaimQueryError(f"request {name}: a selector is not written in CEL")
    return [selector.cel.expression for selector in selectors if selector.cel is not None]


def _constraint(number: int, constraint: DeviceConstraint) -> AttributeConstraint:
    attribute = constraint.match_attribute or constraint.distinct_attribute
    if not attribute:
        raise ClaimQueryError(f"constraint {number} has neither matchAttribute nor distinctAttribute")
    return AttributeConstraint(frozenset(constraint.requests), attribute, not constraint.match_attribute)


def is_tolerated(toleration: DeviceToleration, key: str, value: str, effect: str) -> bool:
    """Return whether a toleration is for a taint of a device with this key, value and effect."""
    if toleration.effect not in ("", effect) or toleration.key not in ("", key):
        return False
    return toleration.operator == "Exists" or (toleration.operator in ("", "Equal") and toleration.value == value)
