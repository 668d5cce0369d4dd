"""What is promised of reservations for large gangs, with its verdict, from the recorded streams."""

from collections.abc import Iterator, Mapping
from typing import Final

from .objects import Json
from .promises import SettledElsewhere

RATIO_BOUND: Final = 0.5
"""The 99th percentile of the pending time of large gangs, with reservations over without, at most."""
LOST_BOUND_POINTS: Final = 1.0
"""Percentage points of the GPUs that are in use, lost by reservations, at most."""
_PAGE: Final = "measurements-reservations.md#what-reservations-cost-and-where-they-do-not-halve-p99"


def reservation_promises(figures: Mapping[str, Json]) -> Iterator[SettledElsewhere]:
    """Yield each promise with the figure that was measured.

    Args:
        figures: of the recorded runs, by the name of the run.
    """
    streams = [row for name in ("full_leaves", "whole_fabric") for row in figures[name]["streams"]]
    ratios = [row["ratio"] for row in streams]
    halved = sum(ratio <= RATIO_BOUND for ratio in ratios)
    yield SettledElsewhere(
        "reservations: pending time of large gangs, 99th percentile, over that without reservations",
        f"at most {RATIO_BOUND:g}",
        f"{min(ratios):g} to {max(ratios):g}; kept on {halved} of {len(ratios)} streams",
        halved == len(ratios),
        _PAGE,
    )
    lost = max(row["in_use_without_percent"] - row["in_use_with_percent"] for row in streams)
    yield SettledElsewhere(
        "reservations: GPUs in use, lost against none, the most of these streams",
        f"at most {LOST_BOUND_POINTS:g} points",
        f"{lost:.2f} points",
        lost <= LOST_BOUND_POINTS,
        _PAGE,
    )
