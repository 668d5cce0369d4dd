"""Conversions between types, arithmetic and ``size``: CEL's standard library, by the names of its overloads."""

import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from .errors import EvaluationError, ExpressionNotUnderstoodError
from .values import MAX_INT, MAX_UINT, MIN_INT, TypeValue, Uint, Value, no_such_overload, type_name

Implementation = Callable[..., Value]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,30}", re.ASCII)
_UNSIGNED: Final = re.compile(r"[0-9]{1,30}", re.ASCII)
_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
"""Each text matches in one way only: with two, the time would grow as the square of its length."""
_INFINITE: Final = re.compile(r"[+-]?(?:inf|infinity|nan)", re.ASCII | re.IGNORECASE)
_SCIENTIFIC_FROM: Final = 6
"""Go's shortest ``%g`` writes this decimal exponent and larger ones behind an ``e``."""
_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}


def integer(value: int) -> int:
    """Return an int that fits 64 bits."""
    if MIN_INT <= value <= MAX_INT:
        return value
    raise EvaluationError("integer overflow")


def unsigned(value: int) -> Uint:
    """Return a uint that fits 64 bits."""
    if 0 <= value <= MAX_UINT:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def _string_to_int(text: str) -> int:
    if _WHOLE.fullmatch(text) and MIN_INT <= int(text) <= MAX_INT:
        return int(text)
    if len(text) > 30 and re.fullmatch(r"[+-]?[0-9]+", text, re.ASCII):
        raise ExpressionNotUnderstoodError("a number of more than 30 digits is not supported")
    raise EvaluationError(f"{text[:64]!r} is not an int")


def _string_to_uint(text: str) -> Uint:
    if _UNSIGNED.fullmatch(text) and int(text) <= MAX_UINT:
        return Uint(text)
    if len(text) > 30 and text.isdigit():
        raise ExpressionNotUnderstoodError("a number of more than 30 digits is not supported")
    raise EvaluationError(f"{text[:64]!r} is not a uint")


def _string_to_double(text: str) -> float:
    if _DECIMAL.fullmatch(text):
        value = float(text)
        if math.isinf(value):
            raise EvaluationError(f"{text[:64]!r} is larger than any double")
        return value
    if _INFINITE.fullmatch(text):
        return float(text)
    if re.search(r"0[xX]|_", text):
        raise ExpressionNotUnderstoodError(f"the double {text[:64]!r} is not supported: write it as a decimal")
    raise EvaluationError(f"{text[:64]!r} is not a double")


def _string_to_bool(text: str) -> bool:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    raise EvaluationError(f"{text[:64]!r} is not a bool")


def _double_to_int(value: float) -> int:
    if not float(MIN_INT) < value < float(MAX_INT):
        raise EvaluationError("integer overflow")
    return int(value)


def _double_to_uint(value: float) -> Uint:
    if not 0 <= value < float(MAX_UINT):
        raise EvaluationError("unsigned integer overflow")
    return Uint(value)


def _bytes_to_string(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise EvaluationError("the bytes are not valid UTF-8") from None


def double_text(value: float) -> str:
    """Return a double as Go's ``%g`` writes it."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    _, digits_tuple, point = Decimal(repr(abs(value))).normalize().as_tuple()
    assert isinstance(point, int)
    digits = "".join(map(str, digits_tuple))
    exponent = len(digits) + point - 1
    if not value:
        return sign + "0"
    if exponent < -4 or exponent >= _SCIENTIFIC_FROM:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        return f"{sign}{digits[0]}{fraction}e{exponent:+03d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole, fraction = digits[: exponent + 1].ljust(exponent + 1, "0"), digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else sign + whole


def _arithmetic(convert: Callable[[int], Value]) -> Mapping[str, Implementation]:
    return {
        "add": lambda a, b: convert(int(a) + int(b)),
        "subtract": lambda a, b: convert(int(a) - int(b)),
        "multiply": lambda a, b: convert(int(a) * int(b)),
        "divide": lambda a, b: convert(_quotient(int(a), int(b))),
        "modulo": lambda a, b: convert(_remainder(int(a), int(b))),
    }


def _quotient(dividend: int, divisor: int) -> int:
    if divisor == 0:
        raise EvaluationError("division by zero")
    quotient = abs(dividend) // abs(divisor)
    return -quotient if (dividend < 0) != (divisor < 0) else quotient


def _remainder(dividend: int, divisor: int) -> int:
    if divisor == 0:
        raise EvaluationError("modulus by zero")
    if dividend == MIN_INT and divisor == -1:
        raise EvaluationError("integer overflow")
    remainder = abs(dividend) % abs(divisor)
    return -remainder if dividend < 0 else remainder


def _divide_doubles(dividend: float, divisor: float) -> float:
    if divisor:
        return dividend / divisor
    if not dividend or math.isnan(dividend):
        return math.nan
    return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


_DOUBLES: Final[Mapping[str, Implementation]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": _divide_doubles,
}
_INTS: Final = _arithmetic(integer)
_UINTS: Final = _arithmetic(unsigned)


def arithmetic(operation: str) -> Callable[[Any, Any], Value]:
    """Return an arithmetic operator: both operands are of one type, and ``add`` joins strings, bytes and lists too."""
    of_ints, of_uints, of_doubles = _INTS[operation], _UINTS[operation], _DOUBLES.get(operation)

    def apply(first: Any, second: Any) -> Value:
        kind = type(first)
        if kind is type(second):
            if kind is int:
                return of_ints(first, second)
            if kind is float and of_doubles is not None:
                return of_doubles(first, second)
            if kind is Uint:
                return of_uints(first, second)
            if operation == "add" and kind in (str, bytes, list):
                return first + second
        raise no_such_overload(operation, first, second)

    return apply


def negate(value: Any) -> Value:
    """Return ``-value``."""
    if type(value) is int:
        return integer(-value)
    if type(value) is float:
        return -value
    raise no_such_overload("-_", value)


CONVERSIONS: Final[Mapping[str, Implementation]] = {
    "bool_to_bool": lambda value: value,
    "string_to_bool": _string_to_bool,
    "bytes_to_bytes": lambda value: value,
    "string_to_bytes": lambda value: value.encode(),
    "double_to_double": lambda value: value,
    "int64_to_double": float,
    "uint64_to_double": float,
    "string_to_double": _string_to_double,
    "int64_to_int64": lambda value: value,
    "double_to_int64": _double_to_int,
    "string_to_int64": _string_to_int,
    "uint64_to_int64": lambda value: integer(int(value)),
    "uint64_to_uint64": lambda value: value,
    "double_to_uint64": _double_to_uint,
    "int64_to_uint64": unsigned,
    "string_to_uint64": _string_to_uint,
    "string_to_string": lambda value: value,
    "bool_to_string": lambda value: "true" if value else "false",
    "bytes_to_string": _bytes_to_string,
    "double_to_string": double_text,
    "int64_to_string": str,
    "uint64_to_string": str,
    "to_dyn": lambda value: value,
    "type": lambda value: TypeValue(type_name(value)),
    **dict.fromkeys(("size_bytes", "bytes_size", "size_list", "list_size", "size_string", "string_size"), len),
    **dict.fromkeys(("size_map", "map_size"), len),
}
CONVERSION_FUNCTIONS: Final = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "type", "uint"})
"""Functions that upstream evaluates while compiling if their argument is constant."""
