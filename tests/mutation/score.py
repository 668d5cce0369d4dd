"""What came of mutants: the share that tests notice, with its interval."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Final

from tests.mutation.targets import TARGETS

Z: Final = 1.96
"""Standard deviations of a 95 % interval."""


@dataclass(frozen=True)
class Mutant:
    """One change of one line, and what came of it: ``killed``, ``survived`` or ``timeout``, which counts as noticed.

    ``asked`` is the number of tests that run the line, as far as time allows, and ``by`` the first that failed.
    """

    target: str
    file: str
    line: int
    operator: str
    outcome: str
    diff: str
    asked: int
    by: str


def interval(noticed: int, tried: int) -> tuple[float, float]:
    """Return the 95 % interval of a share, by Wilson."""
    if not tried:
        return 0.0, 1.0
    share, square = noticed / tried, Z * Z / tried
    middle = share + square / 2
    spread = Z * sqrt(share * (1 - share) / tried + square / (4 * tried))
    return max(0.0, (middle - spread) / (1 + square)), min(1.0, (middle + spread) / (1 + square))


def table(mutants: Sequence[Mutant]) -> list[str]:
    """Return what came of each target, as rows of a Markdown table."""
    rows = ["| part | mutants | noticed | survived | score | 95 % interval |", "|---|---:|---:|---:|---:|---|"]
    names = [target.name for target in TARGETS if any(mutant.target == target.name for mutant in mutants)]
    for name in (*names, "all"):
        of_it = [mutant for mutant in mutants if name in (mutant.target, "all")]
        noticed = sum(mutant.outcome != "survived" for mutant in of_it)
        low, high = interval(noticed, len(of_it))
        share = noticed / len(of_it) if of_it else 0.0
        rows.append(
            f"| {name} | {len(of_it)} | {noticed} | {len(of_it) - noticed} | {share:.0%} | {low:.0%} to {high:.0%} |"
        )
    return rows
