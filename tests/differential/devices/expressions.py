"""CEL selectors that users write, each beside a Python function that says the same, errors included.

A test compares all of them with kube-scheduler's own CEL, so that what judges an allocation need not evaluate CEL.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from .inventory import AttributeValue, Device, Version, quantity

GPU: Final = "gpu.example.com"
NIC: Final = "nic.example.com"
SHARED_DOMAIN: Final = "resource.kubernetes.io"
"""Of attributes that devices of several drivers have."""

Predicate = Callable[[Device], bool]


class ExpressionError(Exception):
    """The expression ends with an error for this device."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A selector, and what it says."""

    text: str
    predicate: Predicate


def _attribute(device: Device, domain: str, name: str) -> AttributeValue:
    """An unknown domain has no attributes; an attribute that is not there is an error."""
    try:
        return device.attributes[f"{domain}/{name}"]
    except KeyError:
        raise ExpressionError(f"no such key: {name}") from None


def _capacity(device: Device, domain: str, name: str) -> Fraction:
    try:
        return device.capacity[f"{domain}/{name}"]
    except KeyError:
        raise ExpressionError(f"no such key: {name}") from None


def _equal(value: AttributeValue, other: AttributeValue) -> bool:
    """Values of two types are unequal."""
    return type(value) is type(other) and value == other


def _both(first: Predicate, second: Predicate) -> Predicate:
    """The operator ``&&``: what is false on one side hides an error on the other."""
    return lambda device: _combined(first, second, device, decisive=False)


def _either(first: Predicate, second: Predicate) -> Predicate:
    """The operator ``||``: what is true on one side hides an error on the other."""
    return lambda device: _combined(first, second, device, decisive=True)


def _combined(first: Predicate, second: Predicate, device: Device, *, decisive: bool) -> bool:
    failed: ExpressionError | None = None
    for predicate in (first, second):
        try:
            if predicate(device) is decisive:
                return decisive
        except ExpressionError as error:
            failed = error
    if failed is not None:
        raise failed
    return not decisive


def _driver_is(name: str) -> Predicate:
    return lambda device: device.driver == name


def _is(domain: str, name: str, value: AttributeValue) -> Predicate:
    return lambda device: _equal(_attribute(device, domain, name), value)


def _at_least(domain: str, name: str, amount: str) -> Predicate:
    return lambda device: _capacity(device, domain, name) >= quantity(amount)


def _has(domain: str, name: str) -> Predicate:
    return lambda device: f"{domain}/{name}" in device.attributes


def _integer(device: Device, domain: str, name: str) -> int:
    value = _attribute(device, domain, name)
    if type(value) is not int:
        raise ExpressionError("no such overload")
    return value


def _string(device: Device, domain: str, name: str) -> str:
    value = _attribute(device, domain, name)
    if not isinstance(value, str):
        raise ExpressionError("no such overload")
    return value


def _boolean(domain: str, name: str) -> Predicate:
    def predicate(device: Device) -> bool:
        value = _attribute(device, domain, name)
        if type(value) is not bool:
            raise ExpressionError("the result is no boolean")
        return value

    return predicate


def _version(device: Device, domain: str, name: str) -> tuple[int, ...]:
    value = _attribute(device, domain, name)
    if not isinstance(value, Version):
        raise ExpressionError("no such overload")
    return tuple(map(int, value.text.split(".")))


def _raises(device: Device) -> bool:
    raise ExpressionError("always")


CLASS_EXPRESSIONS: Final[dict[str, tuple[Expression, ...]]] = {
    "any": (),
    "gpu": (
        Expression(
            f"device.driver == '{GPU}' && device.attributes['{GPU}'].type == 'gpu'",
            _both(_driver_is(GPU), _is(GPU, "type", "gpu")),
        ),
    ),
    "mig": (
        Expression(f"device.driver == '{GPU}'", _driver_is(GPU)),
        Expression(f"device.attributes['{GPU}'].type == 'mig'", _is(GPU, "type", "mig")),
    ),
    "every-gpu": (Expression(f'device.driver == "{GPU}"', _driver_is(GPU)),),
    "nic": (Expression(f'device.driver == "{NIC}"', _driver_is(NIC)),),
    "shared": (
        Expression(
            "has(device.allowMultipleAllocations) && device.allowMultipleAllocations", lambda device: device.shareable
        ),
    ),
    "broken": (Expression(f"device.attributes['{GPU}'].rack == 'r1'", _is(GPU, "rack", "r1")),),
}
"""The selectors of the device classes; those of the last one fail for devices without a rack."""

_NUMA: Final = f"device.attributes['{GPU}'].numa"
_MODEL: Final = f"device.attributes['{GPU}'].model"
_RACK: Final = f"device.attributes['{GPU}'].rack"
_DRIVER_VERSION: Final = f"device.attributes['{GPU}'].driverVersion"
_MEMORY: Final = f"device.capacity['{GPU}'].memory"

GPU_EXPRESSIONS: Final = (
    *(Expression(f"{_NUMA} == {number}", _is(GPU, "numa", number)) for number in (0, 1)),
    Expression(f"{_NUMA} <= 0", lambda device: _integer(device, GPU, "numa") <= 0),
    *(Expression(f"{_MODEL} == '{model}'", _is(GPU, "model", model)) for model in ("a100", "h100")),
    Expression(f"{_MODEL} != 'a100'", lambda device: not _is(GPU, "model", "a100")(device)),
    Expression(f"{_MODEL} in ['h100', 'h200']", lambda device: _attribute(device, GPU, "model") in ("h100", "h200")),
    Expression(f"{_MODEL}.startsWith('h')", lambda device: _string(device, GPU, "model").startswith("h")),
    Expression(
        f"{_MODEL}.matches('^[ah]100$')", lambda device: bool(re.search("^[ah]100$", _string(device, GPU, "model")))
    ),
    Expression(
        f"['a100', 'h200'].exists(model, model == {_MODEL})",
        lambda device: _attribute(device, GPU, "model") in ("a100", "h200"),
    ),
    Expression(f"device.attributes['{GPU}'].healthy", _boolean(GPU, "healthy")),
    Expression(
        f"!device.attributes['{GPU}'].healthy || {_NUMA} == 0",
        _either(lambda device: not _boolean(GPU, "healthy")(device), _is(GPU, "numa", 0)),
    ),
    Expression(
        f"{_DRIVER_VERSION}.isGreaterThan(semver('1.5.0'))",
        lambda device: _version(device, GPU, "driverVersion") > (1, 5, 0),
    ),
    Expression(
        f"{_DRIVER_VERSION}.compareTo(semver('2.1.0')) < 0",
        lambda device: _version(device, GPU, "driverVersion") < (2, 1, 0),
    ),
    *(
        Expression(f"{_MEMORY}.compareTo(quantity('{amount}')) >= 0", _at_least(GPU, "memory", amount))
        for amount in ("20Gi", "40Gi", "80Gi")
    ),
    Expression(f"{_MEMORY}.isLessThan(quantity('80Gi'))", lambda device: not _at_least(GPU, "memory", "80Gi")(device)),
    Expression(f"has({_RACK}) && {_RACK} == 'r1'", _both(_has(GPU, "rack"), _is(GPU, "rack", "r1"))),
    Expression(
        f"cel.bind(gpu, device.attributes['{GPU}'], gpu.model == 'h100' || gpu.numa == 1)",
        _either(_is(GPU, "model", "h100"), _is(GPU, "numa", 1)),
    ),
    Expression(
        f"device.attributes['{SHARED_DOMAIN}'].pcieRoot == 'pci0000:00'", _is(SHARED_DOMAIN, "pcieRoot", "pci0000:00")
    ),
    Expression(f"'{GPU}' in device.attributes", lambda device: device.driver == GPU),
)
"""Those that hold for some GPUs, and end with no error for any GPU."""

NIC_EXPRESSIONS: Final = (
    Expression(f"device.attributes['{NIC}'].speed >= 200", lambda device: _integer(device, NIC, "speed") >= 200),
    Expression(f"device.attributes['{NIC}'].rdma", _boolean(NIC, "rdma")),
    Expression(f"device.attributes['{NIC}'].numa == 0", _is(NIC, "numa", 0)),
    Expression(
        f"device.attributes['{SHARED_DOMAIN}'].pcieRoot == 'pci0000:00'", _is(SHARED_DOMAIN, "pcieRoot", "pci0000:00")
    ),
)

FAILING_EXPRESSIONS: Final = (
    Expression(f"{_RACK} == 'r1'", _is(GPU, "rack", "r1")),
    Expression(f"device.attributes['{GPU}'].missing == 1", _is(GPU, "missing", 1)),
    Expression(f"{_NUMA} == 0 && {_RACK} == 'r1'", _both(_is(GPU, "numa", 0), _is(GPU, "rack", "r1"))),
    Expression(f"{_RACK} == 'r1' && {_NUMA} == 0", _both(_is(GPU, "rack", "r1"), _is(GPU, "numa", 0))),
    Expression(f"{_RACK} == 'r1' || {_NUMA} == 1", _either(_is(GPU, "rack", "r1"), _is(GPU, "numa", 1))),
    Expression(f"{_MODEL} < 5", _raises),
    Expression(f"{_MODEL} == 5", lambda device: _equal(_attribute(device, GPU, "model"), 5)),
    Expression(f"{_MODEL}", _raises),
    Expression(
        f"device.capacity['{GPU}'].bandwidth.compareTo(quantity('1')) > 0",
        lambda device: _capacity(device, GPU, "bandwidth") > 1,
    ),
    Expression(f"device.attributes['{NIC}'].speed == 100", _is(NIC, "speed", 100)),
)
"""Those that end with an error for some devices, or for all."""


def _other_model(model: str) -> Predicate:
    return lambda device: not _is(GPU, "model", model)(device)


EXCLUDING_EXPRESSIONS: Final = tuple(
    Expression(f"{_MODEL} != 'b{number}'", _other_model(f"b{number}")) for number in range(32)
)
"""As many as a request may have."""

_UPSTREAM: Final = "driver-a"

UPSTREAM_EXPRESSIONS: Final = (
    *(Expression(f'device.driver == "{name}"', _driver_is(name)) for name in (_UPSTREAM, "driver-b")),
    Expression(
        f'device.driver == "{_UPSTREAM}" && device.allowMultipleAllocations == true',
        _both(_driver_is(_UPSTREAM), lambda device: device.shareable),
    ),
    Expression(
        f'device.driver == "{_UPSTREAM}" && device.allowMultipleAllocations == false',
        _both(_driver_is(_UPSTREAM), lambda device: not device.shareable),
    ),
    *(
        Expression(
            f'device.capacity["{_UPSTREAM}"].memory.compareTo(quantity("{amount}")) >= 0',
            _at_least(_UPSTREAM, "memory", amount),
        )
        for amount in ("1Gi", "2Gi", "4Gi", "6Gi", "8Gi")
    ),
    *(
        Expression(
            f'device.capacity["{_UPSTREAM}"]["capacity-0"].compareTo(quantity("{amount}")) >= 0',
            _at_least(_UPSTREAM, "capacity-0", amount),
        )
        for amount in ("2", "4")
    ),
    *(
        Expression(f'device.attributes["{_UPSTREAM}"].{name} == "{value}"', _is(_UPSTREAM, name, value))
        for name, values in {
            "generation": ("v5", "v6"),
            "type": ("X", "Y"),
            "kind": ("shared", "gate", "counteronly"),
            "mode": ("b",),
            "stringAttribute": ("cap", "fb"),
        }.items()
        for value in values
    ),
    *(
        Expression(f'device.attributes["{_UPSTREAM}"].{name}', _boolean(_UPSTREAM, name))
        for name in ("boolAttribute", "special")
    ),
    Expression(
        f'device.attributes["{_UPSTREAM}"].kind == "shared" || device.attributes["{_UPSTREAM}"].kind == "fallback"',
        _either(_is(_UPSTREAM, "kind", "shared"), _is(_UPSTREAM, "kind", "fallback")),
    ),
    Expression(
        f'device.driver == "{_UPSTREAM}" && device.attributes["{_UPSTREAM}"].selected',
        _both(_driver_is(_UPSTREAM), _boolean(_UPSTREAM, "selected")),
    ),
    Expression("noSuchVar", _raises),
)
"""Those of Kubernetes' own table of allocator tests."""

PREDICATES: Final[dict[str, Predicate]] = {
    expression.text: expression.predicate
    for expressions in (
        *CLASS_EXPRESSIONS.values(),
        GPU_EXPRESSIONS,
        NIC_EXPRESSIONS,
        FAILING_EXPRESSIONS,
        EXCLUDING_EXPRESSIONS,
        UPSTREAM_EXPRESSIONS,
    )
    for expression in expressions
}
