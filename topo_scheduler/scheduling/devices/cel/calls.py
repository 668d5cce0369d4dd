"""Calls of functions: the overload is found by the types of the arguments, as upstream's dispatcher does."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address
from typing import Final

from .addresses import NetworkPrefix
from .conversions import CONVERSION_FUNCTIONS, CONVERSIONS, Implementation
from .declarations import FUNCTIONS, Overload
from .errors import CelError, EvaluationError, ExpressionNotUnderstoodError, InvalidExpressionError
from .frames import COST_LIMIT, COST_SLOT, Code, Frame, Run, both, charge, charge_weight, size, traversal
from .lists import LISTS
from .patterns import FIND_ALL_PASSES, pattern
from .quantities import Quantity
from .resources import FRESH_QUANTITIES, NETWORKS, RESOURCES
from .text import TEXT
from .types import DYNAMIC, INT, Type, list_of
from .values import MISSING, CelMap, DomainMap, Optional, TypeValue, Uint, Value, equal, no_such_overload
from .versions import Version

_MAX_INCLUDED: Final = 48
_FLATTENED: Final = (list_of(DYNAMIC), INT)


def _includes(value: Value, wanted: Value) -> bool:
    if not isinstance(value, list):
        return equal(value, wanted) is True
    for index, element in enumerate(value):
        if index >= _MAX_INCLUDED:
            raise EvaluationError("includes() cannot be applied to lists of more than 48 elements")
        if equal(element, wanted) is True:
            return True
    return False


IMPLEMENTATIONS: Final[Mapping[str, Implementation]] = {
    **CONVERSIONS,
    **TEXT,
    **LISTS,
    **RESOURCES,
    **NETWORKS,
    "dra_includes_dyn_dyn": _includes,
}
_KINDS: Final[Mapping[str, frozenset[type]]] = {
    "bool": frozenset({bool}),
    "int": frozenset({int}),
    "uint": frozenset({Uint}),
    "double": frozenset({float}),
    "string": frozenset({str}),
    "bytes": frozenset({bytes}),
    "list": frozenset({list}),
    "map": frozenset({CelMap, DomainMap}),
    "type": frozenset({TypeValue}),
    "optional_type": frozenset({Optional}),
    "kubernetes.Quantity": frozenset({Quantity}),
    "kubernetes.Semver": frozenset({Version}),
    "net.IP": frozenset({IPv4Address, IPv6Address}),
    "net.CIDR": frozenset({NetworkPrefix}),
}
PATTERN_FUNCTIONS: Final = frozenset({"matches", "find", "findAll"})
_PARSERS: Final = frozenset({"quantity", "semver", "ip", "cidr"})
_STEPS_PER_PATTERN_CHARACTER: Final = 6
"""What reading a pattern takes. It is charged each time, though known patterns are not read again."""
_QUADRATIC: Final = frozenset(
    {"distinct", "sort", "sets.contains", "sets.equivalent", "sets.intersects", "indexOf", "lastIndexOf"}
)
_LINEAR: Final = frozenset({"slice", "reverse", "isSorted", "sum", "min", "max", "unwrapOpt"})
_INTEGER_FUNCTIONS: Final = frozenset({"asInteger", "isInteger", "asApproximateFloat"})
_COMPARISON_FUNCTIONS: Final = frozenset({"isGreaterThan", "isLessThan", "compareTo"})


def uses_representation(functions: frozenset[str]) -> bool:
    """Return whether the representation of quantities shows: upstream's comparisons may change it before."""
    return bool(functions & _INTEGER_FUNCTIONS) and bool(functions & _COMPARISON_FUNCTIONS)


def call(
    function: str, overloads: Sequence[str], arguments: Sequence[Code], strict_quantities: bool, fresh: bool
) -> Code:
    """Return the code of a call.

    Args:
        function: its name.
        overloads: those that the static types allow.
        arguments: the target, if there is one, comes first.
        strict_quantities: refuse quantities that Go does not keep as an int64.
        fresh: the target is a value that was just made.

    Raises:
        ExpressionNotUnderstoodError: none of the overloads is supported.
        InvalidExpressionError: upstream notices an error while compiling.
    """
    candidates = [each for each in FUNCTIONS[function] if len(each.arguments) == len(arguments)]
    if len(overloads) == 1:
        candidates = [each for each in candidates if each.identifier in overloads]
    if function == "flatten":  # upstream leaves its arguments unchecked
        candidates = [replace(each, arguments=_FLATTENED[: len(arguments)]) for each in candidates]
    if not any(each.identifier in IMPLEMENTATIONS for each in candidates if each.identifier in overloads):
        raise ExpressionNotUnderstoodError(f"the function {function}() is not supported")
    runs = [argument.run for argument in arguments]
    if len(arguments) == 2:
        runs[0] = both(arguments[0], arguments[1])
    run = _dispatch(function, candidates, runs, fresh)
    if strict_quantities:
        run = _strict(run)
    if function in _PARSERS and all(argument.constant is not MISSING for argument in arguments):
        return _remembered(run)
    if function in CONVERSION_FUNCTIONS and len(arguments) == 1 and arguments[0].constant is not MISSING:
        return _folded(run)
    return Code(run)


def _folded(run: Run) -> Code:
    try:
        value = run([None, COST_LIMIT])
    except EvaluationError as error:
        raise InvalidExpressionError(str(error)) from None
    return Code(lambda frame: value, value)


def _remembered(run: Run) -> Code:
    """Return the code of a call with constant arguments: the value is computed once, and its cost charged each time."""
    frame: Frame = [None, COST_LIMIT]
    try:
        value = run(frame)
    except CelError:
        return Code(run)  # fails again where it is evaluated
    cost = COST_LIMIT - frame[COST_SLOT]

    def again(frame: Frame) -> Value:
        charge(frame, cost)
        return value

    return Code(again)


def _strict(run: Run) -> Run:
    def checked(frame: Frame) -> Value:
        value = run(frame)
        if type(value) is Quantity and value.decimal:
            raise ExpressionNotUnderstoodError(
                "a quantity this large or this fine is not supported together with asInteger()"
            )
        return value

    return checked


def _accepts(kind: Type, value: Value) -> bool:
    """Return whether an overload takes a value: of lists and maps, upstream looks at the first element only."""
    if kind.kind in ("dyn", "any", "parameter"):
        return True
    if type(value) not in _KINDS.get(kind.name or kind.kind, ()):
        return False
    if isinstance(value, list) and value:
        return _accepts(kind.parameters[0], value[0])
    if isinstance(value, CelMap) and len(value):
        return all(map(_accepts, kind.parameters, next(value.items())))
    return True


def _unsupported(function: str) -> Implementation:
    def refuse(*values: Value) -> Value:
        raise ExpressionNotUnderstoodError(f"the function {function}() is not supported for such values")

    return refuse


def _dispatch(function: str, candidates: Sequence[Overload], arguments: Sequence[Run], fresh: bool) -> Run:
    implementations = {**IMPLEMENTATIONS, **FRESH_QUANTITIES} if fresh else IMPLEMENTATIONS
    known = [
        (
            overload.arguments,
            implementations.get(overload.identifier) or _unsupported(function),
        )
        for overload in candidates
    ]
    cost = _COSTS.get(function, _no_cost)

    def run(frame: Frame) -> Value:
        values = [argument(frame) for argument in arguments]
        for kinds, implementation in known:
            for kind, value in zip(kinds, values, strict=True):
                if not _accepts(kind, value):
                    break
            else:
                cost(frame, values)
                return implementation(*values)
        charge(frame, 12 + 2 * sum(map(size, values)))  # upstream charges for calls that fail, too
        raise no_such_overload(function, *values)

    return run


# -- costs, never below upstream's


def _no_cost(frame: Frame, values: Sequence[Value]) -> None:
    pass


def _first_text(frame: Frame, values: Sequence[Value]) -> None:
    charge(frame, 2 * traversal(size(values[0])) + 1)


def _replace_cost(frame: Frame, values: Sequence[Value]) -> None:
    _first_text(frame, values)
    text, old, new = values[0], values[1], values[2]
    if isinstance(text, str) and isinstance(old, str):
        charge(frame, traversal(text.count(old) * size(new)))  # upstream does not charge for what is built


def _includes_cost(frame: Frame, values: Sequence[Value]) -> None:
    value, wanted = values
    charge_weight(frame, value)
    if isinstance(wanted, list | CelMap | Optional):  # lists that hold one list twice, and so on, grow as 2**n
        for _ in range(min(size(value), _MAX_INCLUDED)):
            charge_weight(frame, wanted)


def _join_cost(frame: Frame, values: Sequence[Value]) -> None:
    _linear(frame, values)
    if len(values) > 1:
        charge(frame, traversal(size(values[0]) * size(values[1])))


def _last_text(frame: Frame, values: Sequence[Value]) -> None:
    charge(frame, traversal(size(values[-1])) + 10)


def _containment(frame: Frame, values: Sequence[Value]) -> None:
    charge(frame, traversal(size(values[0])) * traversal(size(values[1])))


def _pattern_cost(frame: Frame, values: Sequence[Value]) -> None:
    text, source = str(values[0]), str(values[1])
    charge(frame, traversal(len(text) + 1) * (len(source) // 4 + 1) + _STEPS_PER_PATTERN_CHARACTER * len(source))
    charge(frame, 20 + 2 * (len(text) + 1) * pattern(source).size)


def _find_all_cost(frame: Frame, values: Sequence[Value]) -> None:
    for _ in range(FIND_ALL_PASSES + 1):
        _pattern_cost(frame, values)


def _range_cost(frame: Frame, values: Sequence[Value]) -> None:
    end = values[0]
    charge(frame, max(end, 0) + 11 if isinstance(end, int) else 0)


def _linear(frame: Frame, values: Sequence[Value]) -> None:
    charge(frame, 11 + 2 * size(values[0]))
    charge_weight(frame, values[0])


def _flatten_cost(frame: Frame, values: Sequence[Value]) -> None:
    _linear(frame, values)
    depth = values[1] if len(values) > 1 else 1
    charge(frame, size(values[0]) * max(depth, 1) if isinstance(depth, int) else 0)


def _quadratic(frame: Frame, values: Sequence[Value]) -> None:
    first = values[0]
    other = values[1] if len(values) > 1 else first
    if not isinstance(first, list):
        charge(frame, traversal(size(first)) * (1 + size(other)))
        return
    charge(frame, 12 + 3 * size(first) * (size(other) if isinstance(other, list) else 1))
    for _ in range(size(other) if isinstance(other, list) else 1):
        charge_weight(frame, first)
    for _ in range(size(first)):
        charge_weight(frame, other)


_COSTS: Final[Mapping[str, Callable[[Frame, Sequence[Value]], None]]] = {
    **dict.fromkeys(
        (
            *("lowerAscii", "upperAscii", "substring", "trim", "split", "startsWith", "endsWith", "charAt"),
            *("string", "bytes", "int", "uint", "double", "bool", "strings.quote"),
            *("quantity", "isQuantity", "semver", "isSemver", "ip", "isIP", "ip.isCanonical", "cidr", "isCIDR"),
        ),
        _first_text,
    ),
    **dict.fromkeys(_LINEAR, _linear),
    **dict.fromkeys(_QUADRATIC, _quadratic),
    "flatten": _flatten_cost,
    "replace": _replace_cost,
    "join": _join_cost,
    "includes": _includes_cost,
    "optional.unwrap": _linear,
    "optional.ofNonZeroValue": _no_cost,
    "contains": _containment,
    "containsIP": _last_text,
    "containsCIDR": _last_text,
    "matches": _pattern_cost,
    "find": _pattern_cost,
    "findAll": _find_all_cost,
    "lists.range": _range_cost,
}
