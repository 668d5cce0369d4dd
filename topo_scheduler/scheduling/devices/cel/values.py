"""CEL's values as Python's, with CEL's equality and order.

bool, int, double, string, bytes, null and list are bool, int, float, str, bytes, None and list.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address
from typing import Final, TypeAlias

from .addresses import NetworkPrefix
from .errors import EvaluationError
from .quantities import Quantity
from .versions import Version

MAX_INT: Final = 2**63 - 1
MIN_INT: Final = -(2**63)
MAX_UINT: Final = 2**64 - 1

Value: TypeAlias = object
"""One of the types named above, or `Uint`, `CelMap`, `Optional`, `TypeValue`, `Quantity`, `Version`,
an address of `ipaddress` or `NetworkPrefix`."""


class Uint(int):
    """An unsigned integer: a type of its own in CEL."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TypeValue:
    """What ``type(x)`` returns."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Optional:
    """An optional value; `NONE` has none."""

    value: Value
    present: bool = True


NONE: Final = Optional(None, present=False)


class MissingKey(Enum):
    """Stands for what a map lacks: null is a value."""

    MISSING = "missing"


MISSING: Final = MissingKey.MISSING


_KEY_TYPES: Final = frozenset({str, int, Uint, bool, float, bytes, type(None), TypeValue})


def map_key(key: Value) -> Value:
    """Return what stands for a key in a dictionary: equal numbers of different types are different keys."""
    kind = type(key)
    if kind is str or kind is int:
        return key
    if kind is Uint or kind is bool or kind is float or kind is bytes:
        return (kind, key)
    if key is None or kind is TypeValue:
        return key
    raise EvaluationError(f"a {type_name(key)} cannot be the key of a map")


class CelMap:
    """A map. ``entries`` is by `map_key` and holds the keys with the values."""

    __slots__ = ("entries",)

    def __init__(self, entries: Mapping[Value, tuple[Value, Value]]) -> None:
        self.entries = entries

    def find(self, key: Value) -> Value:
        """Return the value of a key, or `MISSING`; a number is found by an equal number of another type."""
        entries = self.entries
        if not entries:
            return MISSING
        kind = type(key)
        if kind not in _KEY_TYPES:
            return MISSING
        entry = entries.get(map_key(key))
        if entry is not None and key == key:  # not NaN
            return entry[1]
        for other in _equal_numbers(key):
            entry = entries.get(map_key(other))
            if entry is not None:
                return entry[1]
        return MISSING

    def contains(self, key: Value) -> bool:
        """Return whether the map has a key."""
        return CelMap.find(self, key) is not MISSING

    def items(self) -> Iterator[tuple[Value, Value]]:
        """Return the keys with their values."""
        return iter(self.entries.values())

    def __len__(self) -> int:
        return len(self.entries)


class DomainMap(CelMap):
    """The attributes or the capacity of a device by domain: an unknown domain is an empty map."""

    __slots__ = ()

    def find(self, key: Value) -> Value:
        """Return the map of a domain, empty if there is no such domain."""
        value = CelMap.find(self, key)
        return CelMap({}) if value is MISSING else value


def string_map(values: Mapping[str, Value]) -> CelMap:
    """Return a map with strings as keys."""
    return CelMap({key: (key, value) for key, value in values.items()})


def _equal_numbers(key: Value) -> list[Value]:
    kind = type(key)
    if kind is float:
        assert isinstance(key, float)
        if key != key or key in (float("inf"), float("-inf")) or key != int(key):
            return []
        whole = int(key)
        numbers: list[Value] = [whole] if MIN_INT <= whole < MAX_INT else []
        return [*numbers, Uint(whole)] if 0 <= whole < MAX_UINT else numbers
    if kind is int:
        assert isinstance(key, int)
        return [Uint(key)] if key >= 0 else []
    if kind is Uint:
        assert isinstance(key, int)
        return [int(key)] if key <= MAX_INT else []
    return []


_TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    list: "list",
    CelMap: "map",
    DomainMap: "map",
    Optional: "optional_type",
    TypeValue: "type",
    Quantity: "kubernetes.Quantity",
    Version: "kubernetes.Semver",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    NetworkPrefix: "net.CIDR",
}


def type_name(value: Value) -> str:
    """Return the name of a value's type."""
    return _TYPE_NAMES[type(value)]


def no_such_overload(function: str, *values: Value) -> EvaluationError:
    """Return the error of a function that does not take values of these types."""
    kinds = ", ".join(map(type_name, values))
    return EvaluationError(f"no such overload: {function} of {kinds}")


def compare_numbers(first: float, second: float) -> int:
    """Return -1, 0 or 1 as CEL orders int, uint and double: doubles against the nearest double of a whole number."""
    if type(first) is float or type(second) is float:
        if first != first or second != second:
            raise EvaluationError("NaN values cannot be ordered")
        low, high = (MIN_INT, MAX_INT) if int in (type(first), type(second)) else (0, MAX_UINT)
        if type(first) is float and type(second) is not float:
            if first < low or first > float(high):
                return -1 if first < low else 1
            second = float(second)
        elif type(second) is float and type(first) is not float:
            if second < low or second > float(high):
                return 1 if second < low else -1
            first = float(first)
    return (first > second) - (first < second)


_NUMBERS: Final = frozenset({int, Uint, float})
_ORDERED: Final = frozenset({str, bytes, bool})


def compare(first: Value, second: Value) -> int:
    """Return -1, 0 or 1.

    Raises:
        EvaluationError: the values have no common order.
    """
    kind, other = type(first), type(second)
    if kind in _NUMBERS and other in _NUMBERS:
        return compare_numbers(first, second)  # type: ignore[arg-type]
    if kind is other and kind in _ORDERED:
        less: bool = first < second  # type: ignore[operator]
        return -1 if less else int(first != second)
    raise no_such_overload("comparison", first, second)


def equal(first: Value, second: Value) -> bool | None:
    """Return whether two values are equal; None if upstream finds no answer, which is an error to ``==`` only."""
    kind, other = type(first), type(second)
    if first is None or second is None:
        return first is second
    if kind is other and (kind is str or kind is int or kind is bool):
        return first == second
    if kind in _NUMBERS:
        return other in _NUMBERS and _equal_as_numbers(first, second)
    return _EQUALITY.get(kind, _equal_plain)(first, second)


def equals(first: Value, second: Value) -> bool:
    """Return whether ``first == second``.

    Raises:
        EvaluationError: a quantity or a version is compared with something else.
    """
    answer = equal(first, second)
    if answer is None:
        raise no_such_overload("_==_", first, second)
    return answer


def _equal_as_numbers(first: Value, second: Value) -> bool:
    assert isinstance(first, int | float)
    assert isinstance(second, int | float)
    return first == first and second == second and compare_numbers(first, second) == 0


def _equal_plain(first: Value, second: Value) -> bool:
    return type(first) is type(second) and first == second


def _equal_lists(first: Value, second: Value) -> bool:
    assert isinstance(first, list)
    if type(second) is not list or len(first) != len(second):
        return False
    return all(equal(mine, theirs) is not False for mine, theirs in zip(first, second, strict=True))


def _equal_maps(first: Value, second: Value) -> bool:
    assert isinstance(first, CelMap)
    if not isinstance(second, CelMap) or len(first) != len(second):
        return False
    for key, value in first.items():
        other = second.find(key)
        if other is MISSING or equal(value, other) is False:
            return False
    return True


def _equal_optionals(first: Value, second: Value) -> bool | None:
    assert isinstance(first, Optional)
    if type(second) is not Optional:
        return False
    if not first.present or not second.present:
        return first.present == second.present
    if first.value is None:
        return second.value is None
    return equal(first.value, second.value)


def _equal_quantities(first: Value, second: Value) -> bool | None:
    assert isinstance(first, Quantity)
    if type(second) is not Quantity or second.derived:
        return None
    return first.compare(second) == 0


def _equal_versions(first: Value, second: Value) -> bool | None:
    assert isinstance(first, Version)
    return first.precedence == second.precedence if type(second) is Version else None


def _equal_addresses(first: Value, second: Value) -> bool | None:
    return first == second if type_name(first) == type_name(second) else None


_EQUALITY: Final[Mapping[type, Callable[[Value, Value], bool | None]]] = {
    list: _equal_lists,
    CelMap: _equal_maps,
    DomainMap: _equal_maps,
    Optional: _equal_optionals,
    Quantity: _equal_quantities,
    Version: _equal_versions,
    IPv4Address: _equal_addresses,
    IPv6Address: _equal_addresses,
    NetworkPrefix: _equal_addresses,
}
