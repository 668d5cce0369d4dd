"""Operators as closures."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from .conversions import arithmetic, negate
from .errors import EvaluationError, ExpressionNotUnderstoodError
from .frames import Code, Frame, Run, both, charge, charge_weight, constant, size, traversal
from .lists import contains
from .values import MISSING, CelMap, Optional, Value, compare, equals, no_such_overload
from .versions import Version

_COMPARISONS: Final[Mapping[str, Callable[[int], bool]]] = {
    "_<_": lambda order: order < 0,
    "_<=_": lambda order: order <= 0,
    "_>_": lambda order: order > 0,
    "_>=_": lambda order: order >= 0,
}
_INT_COMPARISONS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "_<_": int.__lt__,
    "_<=_": int.__le__,
    "_>_": int.__gt__,
    "_>=_": int.__ge__,
}
_ARITHMETIC: Final = {
    "_+_": arithmetic("add"),
    "_-_": arithmetic("subtract"),
    "_*_": arithmetic("multiply"),
    "_/_": arithmetic("divide"),
    "_%_": arithmetic("modulo"),
}
BINARY_OPERATORS: Final = frozenset({*_COMPARISONS, *_ARITHMETIC, "_==_", "_!=_", "@in"})


def logical(function: str, terms: Sequence[Run]) -> Run:
    """Return ``&&`` or ``||``: the deciding value wins over errors, wherever they are."""
    deciding = function == "_||_"

    def run(frame: Frame) -> Value:
        error: EvaluationError | None = None
        for term in terms:
            try:
                value = term(frame)
            except EvaluationError as failed:
                error = error or failed
                continue
            if value is deciding:
                return deciding
            if value is not True and value is not False:
                error = error or no_such_overload(function, value)
        if error is not None:
            raise error
        return not deciding

    return run


def conditional(condition: Run, if_true: Run, if_false: Run) -> Run:
    """Return ``condition ? if_true : if_false``."""

    def run(frame: Frame) -> Value:
        value = condition(frame)
        if value is True:
            return if_true(frame)
        if value is False:
            return if_false(frame)
        raise no_such_overload("_?_:_", value)

    return run


def negation(function: str, operand: Run) -> Run:
    """Return ``!operand`` or ``-operand``."""

    def invert(frame: Frame) -> Value:
        value = operand(frame)
        if value is True or value is False:
            return not value
        raise no_such_overload(function, value)

    return invert if function == "!_" else lambda frame: negate(operand(frame))


def binary(function: str, left: Code, right: Code, in_list: bool) -> Code:
    """Return the code of an operator with two operands; ``in_list``: the right one is statically a list."""
    if function == "@in":
        if in_list and right.constant == []:
            return constant(False)
        return Code(_membership(both(left, right), right))
    if function in ("_==_", "_!=_"):
        return Code(_equality(function == "_==_", left, right))
    if function in _COMPARISONS:
        return Code(_comparison(function, both(left, right), right.run))
    return Code(_arithmetic_operator(function, both(left, right), right.run))


def _comparison(function: str, left: Run, right: Run) -> Run:
    holds, of_ints = _COMPARISONS[function], _INT_COMPARISONS[function]

    def run(frame: Frame) -> Value:
        first, second = left(frame), right(frame)
        if type(first) is int and type(second) is int:
            return of_ints(first, second)
        charge(frame, traversal(min(size(first), size(second))))
        return holds(compare(first, second))

    return run


def _arithmetic_operator(function: str, left: Run, right: Run) -> Run:
    apply = _ARITHMETIC[function]

    def run(frame: Frame) -> Value:
        first, second = left(frame), right(frame)
        if type(first) is not int and type(first) is not float:
            total = size(first) + size(second)
            charge(frame, total if isinstance(first, list) else traversal(total))
        return apply(first, second)

    return run


def _equality(wanted: bool, left: Code, right: Code) -> Run:
    for side, other in ((left, right), (right, left)):
        if type(side.constant) is str and len(str(side.constant)) <= 100:
            return _string_equality(wanted, str(side.constant), other.run, constant_first=side is left)

    first_run, second_run = both(left, right), right.run

    def run(frame: Frame) -> Value:
        first, second = first_run(frame), second_run(frame)
        kind = type(first)
        if kind is type(second) and (kind is int or kind is bool):
            return (first == second) is wanted
        charge_weight(frame, first)
        charge_weight(frame, second)
        return _answer(first, second, wanted)

    return run


def _string_equality(wanted: bool, text: str, other: Run, constant_first: bool) -> Run:
    def run(frame: Frame) -> Value:
        value = other(frame)
        if type(value) is str:
            return (value == text) is wanted
        return _answer(text, value, wanted) if constant_first else _answer(value, text, wanted)

    return run


def _answer(first: Value, second: Value, wanted: bool) -> bool:
    if wanted:
        return equals(first, second)
    try:
        return not equals(first, second)
    except EvaluationError:
        return True  # upstream: what has no answer differs


def _refuse_unhashable(value: Value) -> None:
    if type(value) is Version or type(value) is bytes:  # upstream panics, which nothing absorbs
        raise ExpressionNotUnderstoodError(
            "a version or bytes as key or in a constant list is not supported: compare with =="
        )


def _membership(left: Run, right: Code) -> Run:
    values = right.constant
    if isinstance(values, list) and all(type(value) is str for value in values) and len(values) <= 1_000:
        strings = frozenset(values)

        def run_strings(frame: Frame) -> Value:
            value = left(frame)
            _refuse_unhashable(value)
            return type(value) is str and value in strings

        return run_strings

    collection, is_constant = right.run, values is not MISSING

    def run(frame: Frame) -> Value:
        value, container = left(frame), collection(frame)
        if isinstance(container, CelMap):
            _refuse_unhashable(value)
            return container.contains(value)
        if is_constant:
            _refuse_unhashable(value)
        if isinstance(container, list):
            charge_weight(frame, container)
            if isinstance(value, list | CelMap | Optional):
                for _ in container:
                    charge_weight(frame, value)
            return contains(container, value)
        raise no_such_overload("in", value, container)

    return run
