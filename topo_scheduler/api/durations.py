"""Durations as Go writes them: ``90s``, ``10m``, ``1h30m``."""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

MAX_SECONDS: Final = 10 * 365 * 86_400
"""Ten years; longer durations are typing errors."""

_UNITS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_PART: Final = re.compile(r"(\d+\.?\d*|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_LONGEST_CHARACTERS: Final = 64
"""Maximum characters of a value: more than any real one has, and few enough to quote in a message."""


class DurationError(ValueError):
    """A duration that is malformed, not positive, or absurdly long."""


@lru_cache(maxsize=4096)
def parse_duration(text: str, max_seconds: int = MAX_SECONDS) -> float:
    """Return a duration such as ``10m`` or ``1h30m`` in seconds: Go's form, without a sign.

    Raises:
        DurationError: malformed, zero, negative, or longer than ``max_seconds``; the message says what to write.
    """
    stripped = text.strip()
    if stripped.startswith("-"):
        raise DurationError(
            f"{stripped[:_LONGEST_CHARACTERS]!r} is negative; write how long it takes, such as 10m or 1h30m"
        )
    if len(stripped) > _LONGEST_CHARACTERS or _WHOLE.fullmatch(stripped.removeprefix("+")) is None:
        raise DurationError(f"{stripped[:_LONGEST_CHARACTERS]!r} is not a duration such as 90s, 10m or 1h30m")
    exact = sum((Fraction(number) * _UNITS[unit] for number, unit in _PART.findall(stripped)), Fraction(0))
    if not 0 < exact <= max_seconds:
        raise DurationError(f"{stripped!r} is not between 1ns and {max_seconds // 3600}h")
    return float(exact)


def format_duration(seconds: float) -> str:
    """Return a duration in at most two parts: ``45s``, ``12m``, ``3h 20m``, ``2d 4h``."""
    remaining = max(0, round(seconds))
    parts: list[str] = []
    for name, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, remaining = divmod(remaining, size)
        if count:
            parts.append(f"{count}{name}")
    return " ".join(parts[:2]) or "0s"


def written_duration(seconds: float) -> str:
    """Return a duration in the form that `parse_duration` reads."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"
