"""Selections and indices: ``a.b``, ``a[b]``, ``a.?b``, ``a[?b]`` and ``has(a.b)``, in chains from one operand."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Final

from topo_scheduler.api.text import quoted

from .addresses import NetworkPrefix
from .errors import EvaluationError, ExpressionNotUnderstoodError
from .frames import DEVICE_SLOT, Code, DeviceView, Frame, Run
from .quantities import Quantity
from .values import MISSING, NONE, CelMap, DomainMap, Optional, TypeValue, Uint, Value, string_map, type_name
from .versions import Version

KEY_TYPES: Final = frozenset({str, int, Uint, bool, float})
_WITHOUT_FIELDS: Final = (Quantity, Version, IPv4Address, IPv6Address, NetworkPrefix)
_NOT_CONVERTED: Final = (*_WITHOUT_FIELDS, TypeValue)


@dataclass(frozen=True, slots=True)
class Step:
    """One selection or index of a chain."""

    key: Code
    optional: bool = False
    test: bool = False


def device_map(view: DeviceView) -> CelMap:
    """Return a device as a map."""
    return string_map(
        {
            "driver": view.driver,
            "allowMultipleAllocations": view.allow_multiple_allocations,
            "attributes": domain_map(view.attributes),
            "capacity": domain_map(view.capacity),
        }
    )


def domain_map(domains: Mapping[str, Mapping[str, Any]]) -> DomainMap:
    """Return the attributes or the capacity of a device as a map."""
    return DomainMap({domain: (domain, string_map(values)) for domain, values in domains.items() if values})


def device_chain(steps: Sequence[Step]) -> tuple[Run, Sequence[Step]]:
    """Return the first steps from ``device`` as one function, and the steps that remain."""
    keys = [step.key.constant for step in steps[:3]]
    if not steps or steps[0].optional or steps[0].test:
        return (lambda frame: device_map(frame[DEVICE_SLOT])), steps
    field = keys[0]
    if field == "driver":
        return (lambda frame: frame[DEVICE_SLOT].driver), steps[1:]
    if field == "allowMultipleAllocations":
        return (lambda frame: frame[DEVICE_SLOT].allow_multiple_allocations), steps[1:]
    capacity = field == "capacity"
    plain = len(steps) > 1 and type(keys[1]) is str and not (steps[1].optional or steps[1].test)
    if not plain:
        if capacity:
            return (lambda frame: domain_map(frame[DEVICE_SLOT].capacity)), steps[1:]
        return (lambda frame: domain_map(frame[DEVICE_SLOT].attributes)), steps[1:]
    domain = str(keys[1])
    if len(steps) > 2 and type(keys[2]) is str and not steps[2].optional:
        name, test = str(keys[2]), steps[2].test
        return (_capacity if capacity else _attribute)(domain, name, test), steps[3:]
    if capacity:
        return (lambda frame: string_map(frame[DEVICE_SLOT].capacity.get(domain, {}))), steps[2:]
    return (lambda frame: string_map(frame[DEVICE_SLOT].attributes.get(domain, {}))), steps[2:]


def _attribute(domain: str, name: str, test: bool) -> Run:
    def run(frame: Frame) -> Value:
        try:
            return frame[DEVICE_SLOT].attributes[domain][name]
        except KeyError:
            raise EvaluationError(f"the device has no attribute {name} of domain {domain}") from None

    if test:
        return lambda frame: name in frame[DEVICE_SLOT].attributes.get(domain, ())
    return run


def _capacity(domain: str, name: str, test: bool) -> Run:
    def run(frame: Frame) -> Value:
        try:
            return frame[DEVICE_SLOT].capacity[domain][name]
        except KeyError:
            raise EvaluationError(f"the device has no capacity {name} of domain {domain}") from None

    if test:
        return lambda frame: name in frame[DEVICE_SLOT].capacity.get(domain, ())
    return run


def chain(operand: Run, steps: Sequence[Step]) -> Run:
    """Return the steps of a chain, applied to an operand."""
    if not steps:
        return operand
    only = steps[0]
    if len(steps) == 1 and not only.optional and not only.test:
        key = only.key.run

        def run_one(frame: Frame) -> Value:
            value = operand(frame)
            if type(value) is Optional:
                return _walk(frame, value, steps)
            return _select(value, key(frame))

        return run_one
    return lambda frame: _walk(frame, operand(frame), steps)


def resolved(run: Run) -> Run:
    """Return a variable, or a branch of a conditional expression, as upstream resolves it if no steps follow.

    It converts the value of an optional again: one within another vanishes, and Kubernetes' own types are lost.
    """

    def resolve(frame: Frame) -> Value:
        value = run(frame)
        if type(value) is not Optional or not value.present:
            return value
        inner = value.value
        while isinstance(inner, Optional):
            inner = inner.value
        if isinstance(inner, _NOT_CONVERTED):
            kind = type_name(inner)
            raise ExpressionNotUnderstoodError(
                f"an optional {kind} as a variable or behind ? is not supported: take its value with orValue() first"
            )
        return Optional(CelMap(inner.entries) if isinstance(inner, DomainMap) else inner)

    return resolve


def _walk(frame: Frame, value: Value, steps: Sequence[Step]) -> Value:
    optional = type(value) is Optional
    test = steps[-1].test
    if isinstance(value, Optional):
        if not value.present:
            return False if test else value
        while isinstance(value, Optional):
            value = value.value
        if isinstance(value, _WITHOUT_FIELDS):
            raise EvaluationError(f"a {type_name(value)} has no fields")
        if isinstance(value, DomainMap):
            value = CelMap(value.entries)  # upstream unwraps the map, and with it the empty map of unknown domains
    for step in steps:
        key = step.key.run(frame)
        optional = optional or step.optional
        if not optional and not step.test:
            value = _select(value, key)
            continue
        value = _find(value, key)
        if step.test:
            return value is not MISSING
        if value is MISSING:
            return False if test else NONE
    return Optional(value) if optional else value


def _select(value: Value, key: Value) -> Value:
    selected = _find(value, key)
    if selected is MISSING:
        raise EvaluationError(f"no such key: {quoted(key)} in a {type_name(value)}")
    return selected


def _find(value: Value, key: Value) -> Value:
    """Return what stands under a key, or `MISSING`."""
    if type(key) not in KEY_TYPES:
        raise EvaluationError(f"a {type_name(key)} is no key")
    if isinstance(value, CelMap):
        return value.find(key)
    if isinstance(value, list):
        index = _index(key)
        return value[index] if 0 <= index < len(value) else MISSING
    return MISSING


def _index(key: Value) -> int:
    if type(key) is int or type(key) is Uint:
        return int(key)
    if type(key) is float and key == key and key not in (float("inf"), float("-inf")) and key == int(key):
        return int(key)
    raise EvaluationError(f"a {type_name(key)} is no index of a list")
