"""Integer programs for HiGHS, written down by the names of their variables."""

from collections.abc import Hashable, Mapping
from math import inf

import numpy as np


class Model:
    """Integer variables of at least 0, linear limits, and a sum to be made small."""

    def __init__(self) -> None:
        self._columns: dict[Hashable, int] = {}
        self._most: list[float] = []
        self._rows: list[tuple[Mapping[Hashable, float], float, float]] = []

    def variable(self, name: Hashable, upper: float = inf) -> None:
        """Add a variable."""
        self._columns[name] = len(self._most)
        self._most.append(upper)

    def limit(self, terms: Mapping[Hashable, float], least: float = -inf, upper: float = inf) -> None:
        """Keep a sum of factor x variable between two bounds."""
        self._rows.append((terms, least, upper))

    def least(self, goal: Mapping[Hashable, float]) -> int | None:
        """Return the least that a sum of factor x variable can be, None where nothing keeps all limits."""
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped,import-not-found,unused-ignore]

        table = np.zeros((len(self._rows), len(self._most)))
        for number, (terms, _, _) in enumerate(self._rows):
            for name, factor in terms.items():
                table[number, self._columns[name]] += factor
        costs = np.zeros(len(self._most))
        for name, factor in goal.items():
            costs[self._columns[name]] = factor
        limits = LinearConstraint(table, [low for _, low, _ in self._rows], [high for _, _, high in self._rows])
        solution = milp(costs, constraints=limits, integrality=np.ones(len(costs)), bounds=Bounds(0, self._most))
        if solution.status == 2:
            return None
        assert solution.status == 0, solution.message
        least: float = solution.fun
        return round(least)
