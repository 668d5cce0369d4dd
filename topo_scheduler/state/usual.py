"""The gangs that a cluster usually sees: how much they ask for, the more recent the weightier.

Nothing is kept over a change of leader.
"""

from typing import Final

KEEP: Final = 8
"""Sizes that are remembered at most."""
_ONE: Final = 1 << 20
_FADE: Final = 6
"""A gang's weight falls by one part in 2**6 with each gang after it."""


class UsualGangs:
    """Sizes of gangs that were placed, with weights that fade by integers: the same gangs, the same weights."""

    def __init__(self) -> None:
        self._weights: dict[tuple[int, int], int] = {}

    def note(self, column: int, size: int) -> None:
        """Record a gang that was placed: so much of a resource in all."""
        if size <= 0:
            return
        self._weights = {key: weight - (weight >> _FADE) for key, weight in self._weights.items()}
        self._weights[column, size] = self._weights.get((column, size), 0) + _ONE
        if len(self._weights) > KEEP:
            del self._weights[min(self._weights, key=lambda key: (self._weights[key], -key[1], key[0]))]

    def sizes(self, column: int) -> list[tuple[int, int]]:
        """Return (size, weight) of the gangs that asked for a resource, ascending."""
        return sorted((size, weight) for (at, size), weight in self._weights.items() if at == column)
