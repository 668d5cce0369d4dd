"""Kubernetes quantities as integers.

The scheduler compares integers only, so it converts each quantity on input. Quantities are rounded up as Kubernetes
rounds requests: CPU in milli-CPU, all others in whole units (bytes, GPUs, pods).
"""

import math
import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

MAX_VALUE: Final = 2**53
"""Largest accepted value: sums over a whole cluster stay far below the 2**63 at which int64 wraps."""

_PATTERN: Final = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)(?:([eE][+-]?\d{1,3})|(n|u|m|k|Ki|[MGTPE]i?))?", re.ASCII)
_LONGEST_CHARACTERS: Final = 64
"""Maximum characters of a value: more than any real one has, and few enough to quote in a message."""
_SCALE: Final[dict[str | None, Fraction]] = {
    None: Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    "k": Fraction(1000),
    **{suffix: Fraction(1000 ** (power + 2)) for power, suffix in enumerate("MGTPE")},
    **{f"{suffix}i": Fraction(1024 ** (power + 1)) for power, suffix in enumerate("KMGTPE")},
}


class QuantityError(ValueError):
    """A quantity that is malformed, negative or absurdly large."""


def _exact(value: str | int | float) -> Fraction:
    text = str(value).strip()
    match = _PATTERN.fullmatch(text) if len(text) <= _LONGEST_CHARACTERS else None
    if match is None:
        raise QuantityError(f"{text[:_LONGEST_CHARACTERS]!r} is not a quantity such as 500m, 2, 1.5 or 16Gi")
    sign, number, exponent, suffix = match.groups()
    exact = Fraction(number + exponent) if exponent else Fraction(number) * _SCALE[suffix]
    if sign == "-" and exact:
        raise QuantityError(f"{text!r} is negative")
    return exact


@lru_cache(maxsize=8192)
def parse_exact(value: str | int | float, scale: int = 1) -> int | Fraction:
    """Return a quantity times ``scale``, as a fraction if it is no whole number.

    Args:
        value: the quantity as written in the manifest (``"500m"``, ``"16Gi"``, ``2``).
        scale: 1 for whole units, 1000 for milli-units.

    Raises:
        QuantityError: malformed, negative, or above ``MAX_VALUE`` after scaling.
    """
    exact = _exact(value) * scale
    if exact > MAX_VALUE:
        raise QuantityError(f"{value!r} is larger than any node can be")
    return int(exact) if exact.denominator == 1 else exact


@lru_cache(maxsize=8192)
def parse_unbounded(value: str | int | float) -> int | Fraction:
    """Return a quantity of any size, as a fraction if it is no whole number.

    Raises:
        QuantityError: malformed or negative.
    """
    exact = _exact(value)
    return int(exact) if exact.denominator == 1 else exact


def parse_quantity(value: str | int | float, scale: int = 1) -> int:
    """Return the same as `parse_exact`, rounded up."""
    return math.ceil(parse_exact(value, scale))


_BANDWIDTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KkMmGgTt])(?:b|bps|(?i:bit|bit/s|bits))", re.ASCII)
_BYTES_PER_SECOND: Final = re.compile(r"[\d.]+\s*[KkMmGgTt]i?B(?:ps|/s)?", re.ASCII)
_MBITS: Final = {"K": Fraction(1, 1000), "M": Fraction(1), "G": Fraction(1000), "T": Fraction(1000_000)}
MAX_BANDWIDTH_MBITS: Final = 1_000_000_000
"""1,000 Tbit/s: more than any existing link; larger values are typing errors."""


@lru_cache(maxsize=1024)
def parse_bandwidth(text: str) -> int:
    """Return a bandwidth such as ``100Gb``, ``200Gbps`` or ``400Gbit`` in Mbit/s, rounded up.

    Raises:
        QuantityError: malformed, zero, or above 1,000 Tbit/s.
    """
    text = text.strip()
    match = _BANDWIDTH.fullmatch(text) if len(text) <= _LONGEST_CHARACTERS else None
    if match is None:
        unit = "; B stands for bytes: write bits" if _BYTES_PER_SECOND.fullmatch(text[:_LONGEST_CHARACTERS]) else ""
        raise QuantityError(
            f"{text[:_LONGEST_CHARACTERS]!r} is not a bandwidth such as 100Gb, 200Gbps or 400Gbit{unit}"
        )
    exact = Fraction(match[1]) * _MBITS[match[2].upper()]
    mbits = -(-exact.numerator // exact.denominator)
    if not 0 < mbits <= MAX_BANDWIDTH_MBITS:
        raise QuantityError(f"{text!r} is not between 1 Mbit/s and 1000 Tbit/s")
    return mbits
