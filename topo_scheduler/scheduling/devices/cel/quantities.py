"""Kubernetes quantities, exact, with the two representations of Go's ``resource.Quantity``.

`api.quantity` rounds requests up to whole units and refuses negative ones; selectors compare exact values. The two
representations show in ``isInteger()`` and ``asInteger()`` only: neither ``2000m`` nor ``100Ti`` is an integer there.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

_QUANTITY: Final = re.compile(r"([+-]?)0*([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_SUFFIXES: Final = {
    "": (10, 0),
    "n": (10, -9),
    "u": (10, -6),
    "m": (10, -3),
    "k": (10, 3),
    **{letter: (10, 6 + 3 * power) for power, letter in enumerate("MGTPE")},
    **{f"{letter}i": (2, 10 + 10 * power) for power, letter in enumerate("KMGTPE")},
}
_EXPONENT: Final = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_MAX_INT64: Final = 2**63 - 1
_MAX_DIGITS: Final = 200
_MAX_EXPONENT: Final = 100
_NANO: Final = 9


class QuantityFormatError(ValueError):
    """The text is no quantity."""


class QuantityRangeError(ValueError):
    """The quantity is beyond what is supported here, though Go has an answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantity:
    """``value * 10 ** scale``.

    Attributes:
        decimal: Go keeps it as a decimal of any size, not as an int64 with a scale.
        derived: it comes from ``add`` or ``sub``, which upstream compares with ``==`` only from the left.
    """

    value: int
    scale: int = 0
    decimal: bool = False
    derived: bool = False

    @property
    def exact(self) -> Fraction:
        """The number."""
        return Fraction(self.value) * Fraction(10) ** self.scale

    def compare(self, other: "Quantity") -> int:
        """Return -1, 0 or 1."""
        mine, theirs = self.value, other.value
        if self.scale > other.scale:
            mine *= 10 ** (self.scale - other.scale)
        elif self.scale < other.scale:
            theirs *= 10 ** (other.scale - self.scale)
        return (mine > theirs) - (mine < theirs)

    def as_integer(self) -> int | None:
        """Return the integer that Go's AsInt64 finds."""
        if self.decimal or self.scale < 0:
            return None
        whole = self.value * 10**self.scale
        return whole if -_MAX_INT64 <= whole <= _MAX_INT64 or self.scale == 0 else None

    def plus(self, other: "Quantity", sign: int = 1) -> "Quantity":
        """Return the sum, or with ``sign=-1`` the difference."""
        addend = sign * other.value
        if not self.decimal and not other.decimal:
            if other.value == 0:
                return Quantity(self.value, self.scale, derived=True)
            if self.value == 0:
                return Quantity(addend, other.scale, derived=True)
        scale = min(self.scale, other.scale)
        mine = self.value * 10 ** (self.scale - scale)
        theirs = addend * 10 ** (other.scale - scale)
        total = mine + theirs
        fits = abs(total) <= _MAX_INT64 and all(-_MAX_INT64 - 1 <= each <= _MAX_INT64 for each in (mine, theirs))
        return Quantity(total, scale, self.decimal or other.decimal or not fits, derived=True)

    def approximate(self) -> float:
        """Return Go's AsApproximateFloat64."""
        if self.scale == 0:
            return float(self.value)
        if not -31 <= self.scale <= 31:
            raise QuantityRangeError(f"a quantity with the exponent {self.scale} is not supported here")
        return float(self.value) * (10.0**self.scale if self.scale > 0 else 1.0 / 10.0**-self.scale)


def parse_quantity(text: str) -> Quantity:
    """Return a quantity as Go's ParseQuantity does: rounded up to a nano-unit at most.

    Raises:
        QuantityFormatError: the text is not one.
        QuantityRangeError: it has hundreds of digits.
    """
    if len(text) > _MAX_DIGITS:
        raise QuantityRangeError("a quantity of more than 200 characters is not supported here")
    parsed = _parse(text)
    if isinstance(parsed, Quantity):
        return parsed
    raise type(parsed)(*parsed.args)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Quantity | QuantityFormatError | QuantityRangeError:
    match = _QUANTITY.fullmatch(text) if text else None
    base_and_exponent = _suffix(match[4]) if match else None
    if match is None or base_and_exponent is None:
        return QuantityFormatError(f"{text!r} is not a quantity such as 500m, 1.5 or 16Gi")
    base, exponent = base_and_exponent
    if abs(exponent) > _MAX_EXPONENT:
        return QuantityRangeError(f"the quantity {text} is not supported here")
    whole, fraction = match[2] or "0", match[3] or ""
    negative = match[1] == "-"
    small = _small(negative, whole, fraction, base, exponent)
    if small is not None:
        return small
    if not any(character.isdigit() for character in text[: match.start(4)]):
        return QuantityFormatError(f"{text!r} is a quantity without a number")
    return _large(negative, whole, fraction, base, exponent)


def _suffix(text: str) -> tuple[int, int] | None:
    if text in _SUFFIXES:
        return _SUFFIXES[text]
    match = _EXPONENT.fullmatch(text)
    return (10, int(match[1])) if match else None


def _small(negative: bool, whole: str, fraction: str, base: int, exponent: int) -> Quantity | None:
    """Return the quantity as an int64 with a scale, if Go does."""
    if base == 10:
        scale, mantissa = exponent, 1
        precision = 18 - len(whole) - len(fraction)
    else:
        scale, mantissa = 0, 1 << exponent
        precision = 15 - len(whole) - exponent * 3 // 10 - 1 if not fraction else -1
    scale -= len(fraction)
    if precision < 0 or scale < -_NANO:
        return None
    value = int(whole + fraction) * mantissa
    if value > _MAX_INT64:
        return None
    return Quantity(-value if negative else value, scale)


def _large(negative: bool, whole: str, fraction: str, base: int, exponent: int) -> Quantity:
    value, scale = int(whole + fraction), -len(fraction)
    if base == 10:
        scale += exponent
    else:
        value <<= exponent
    if value:
        shift = scale + _NANO
        value = value * 10**shift if shift >= 0 else -(-value // 10**-shift)
        scale = -_NANO
    if base == 2 and value > _MAX_INT64 * 10**_NANO:
        value, scale = _MAX_INT64, 0
    return Quantity(-value if negative else value, scale, decimal=True)
