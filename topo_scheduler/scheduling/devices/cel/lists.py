"""Functions of lists, sets and optionals, by the names of their overloads."""

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final

from .conversions import Implementation, arithmetic
from .errors import EvaluationError, ExpressionNotUnderstoodError
from .quantities import Quantity
from .values import NONE, CelMap, DomainMap, Optional, Uint, Value, compare, equal, type_name
from .versions import Version

_ADD: Final = arithmetic("add")
_COMPARABLE: Final = ("int", "uint", "double", "bool", "string", "bytes")
_MAX_RANGE: Final = 10_000


def _is_sorted(values: list[Value]) -> bool:
    for value in values[:1]:
        _comparable(value)
    for first, second in pairwise(values):
        _comparable(second)
        try:
            if compare(first, second) > 0:
                return False
        except EvaluationError:
            continue
    return True


def _comparable(value: Value) -> None:
    if type_name(value) not in _COMPARABLE:
        raise EvaluationError(f"a {type_name(value)} has no order")


def _sum(start: Value, values: list[Value]) -> Value:
    total = start
    for value in values:
        total = _ADD(total, value)
    return total


def _extreme(wanted: int, values: list[Value]) -> Value:
    if not values:
        raise EvaluationError("min() or max() called on an empty list")
    best = values[0]
    _comparable(best)
    for value in values[1:]:
        _comparable(value)
        try:
            if compare(best, value) == wanted:
                best = value
        except EvaluationError:
            continue
    return best


def _index_of(values: list[Value], wanted: Value) -> int:
    return next((index for index, value in enumerate(values) if _same(value, wanted)), -1)


def _last_index_of(values: list[Value], wanted: Value) -> int:
    return next((index for index in reversed(range(len(values))) if _same(values[index], wanted)), -1)


def _same(first: Value, second: Value) -> bool:
    return equal(first, second) is True


def contains(values: list[Value], wanted: Value) -> bool:
    """Return whether ``wanted in values``."""
    return any(_same(wanted, value) for value in values)


def _slice(values: list[Value], start: int, end: int) -> list[Value]:
    if not 0 <= start <= end <= len(values):
        raise EvaluationError(f"cannot slice({start}, {end}) a list of length {len(values)}")
    return values[start:end]


def _flatten(values: list[Value], depth: int = 1) -> list[Value]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    flat: list[Value] = []
    for value in values:
        if type(value) is list and depth > 0:
            flat += _flatten(value, depth - 1)
        else:
            flat.append(value)
        if len(flat) > _MAX_RANGE:
            raise ExpressionNotUnderstoodError("flatten() to more than 10,000 elements is not supported")
    return flat


def _distinct(values: list[Value]) -> list[Value]:
    distinct: list[Value] = []
    for value in values:
        if not any(_same(value, other) for other in distinct):
            distinct.append(value)
    return distinct


def _range(end: int) -> list[int]:
    if end > _MAX_RANGE:
        raise ExpressionNotUnderstoodError("lists.range() of more than 10,000 is not supported")
    return list(range(end))


def _sort(values: list[Value]) -> list[Value]:
    if not values:
        return values
    _comparable(values[0])
    if len({type(value) for value in values}) > 1:
        raise EvaluationError("list elements must have the same type")
    if any(value != value for value in values):
        raise ExpressionNotUnderstoodError("sort() of NaN is not supported")
    return sorted(values)  # type: ignore[type-var]


def _sets_contain(values: list[Value], wanted: list[Value]) -> bool:
    return all(contains(values, value) for value in wanted)


def _sets_intersect(values: list[Value], others: list[Value]) -> bool:
    return any(contains(others, value) for value in values)


def _optional_value(optional: Optional) -> Value:
    if not optional.present:
        raise EvaluationError("optional.none() has no value")
    return optional.value


def _non_zero(value: Value) -> Optional:
    if isinstance(value, Quantity | Version | DomainMap):  # upstream never takes these for zero
        return Optional(value)
    if isinstance(value, str | bytes | list | CelMap):
        return Optional(value) if len(value) else NONE
    if value is None or (isinstance(value, bool | int | float) and not value):
        return NONE
    return Optional(value)


def _unwrap(values: list[Value]) -> list[Value]:
    if not all(isinstance(value, Optional) for value in values):
        raise EvaluationError("unwrapOpt() takes a list of optionals")
    return [value.value for value in values if isinstance(value, Optional) and value.present]


def _typed(operation: str, implementation: Callable[[list[Value]], Value], suffix: str) -> dict[str, Implementation]:
    return {f"list_{kind}_{operation}_{suffix or kind}": implementation for kind in _COMPARABLE}


LISTS: Final[Mapping[str, Implementation]] = {
    **_typed("is_sorted", _is_sorted, "bool"),
    **_typed("max", partial(_extreme, -1), ""),
    **_typed("min", partial(_extreme, 1), ""),
    "list_int_sum_int": partial(_sum, 0),
    "list_uint_sum_uint": partial(_sum, Uint(0)),
    "list_double_sum_double": partial(_sum, 0.0),
    **{f"list_{kind}_sort": _sort for kind in _COMPARABLE},
    "list_a_index_of_int": _index_of,
    "list_a_last_index_of_int": _last_index_of,
    "list_slice": _slice,
    "list_flatten": _flatten,
    "list_flatten_int": _flatten,
    "list_distinct": _distinct,
    "list_reverse": lambda values: values[::-1],
    "lists_range": _range,
    "list_sets_contains_list": _sets_contain,
    "list_sets_equivalent_list": lambda a, b: _sets_contain(a, b) and _sets_contain(b, a),
    "list_sets_intersects_list": _sets_intersect,
    "list_first": lambda values: Optional(values[0]) if values else NONE,
    "list_last": lambda values: Optional(values[-1]) if values else NONE,
    "optional_of": Optional,
    "optional_ofNonZeroValue": _non_zero,
    "optional_none": lambda: NONE,
    "optional_value": _optional_value,
    "optional_hasValue": lambda optional: optional.present,
    "optional_unwrap": _unwrap,
    "optional_unwrapOpt": _unwrap,
}
