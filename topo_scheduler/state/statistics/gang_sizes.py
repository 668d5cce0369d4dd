"""Sizes of recently placed gangs, with higher weights for more recent ones.

A new leader starts without a history.
"""

from typing import Final

MAX_SIZES: Final = 8
"""Maximum number of sizes that are kept."""
_UNIT_WEIGHT: Final = 1 << 20
_FADE_BITS: Final = 6
"""A gang's weight falls by one part in 2**6 with each gang after it."""


class GangSizeHistory:
    """Sizes of placed gangs with decaying integer weights: the same gangs give the same weights."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int], int] = {}

    def note(self, column: int, size: int) -> None:
        """Record a placed gang and its total request ``size`` of a resource."""
        if size <= 0:
            return
        self._weights = {key: weight - (weight >> _FADE_BITS) for key, weight in self._weights.items()}
        self._weights[column, size] = self._weights.get((column, size), 0) + _UNIT_WEIGHT
        if len(self._weights) > MAX_SIZES:
            del self._weights[min(self._weights, key=lambda key: (self._weights[key], -key[1], key[0]))]

    def sizes(self, column: int) -> list[tuple[int, int]]:
        """Return (size, weight) of the gangs that requested a resource, ascending."""
        return sorted(
            (size, weight) for (other_column, size), weight in self._weights.items() if other_column == column
        )
