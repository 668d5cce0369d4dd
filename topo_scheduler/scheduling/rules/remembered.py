"""Neighbours counted once for a whole search: each look adds only the pods that the search has seated so far."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.residents import Profile, Tally


@dataclass(frozen=True, slots=True)
class Remembered:
    """Pods that are there, summed over the domains of a label.

    ``column`` int64[rows] the value of each row, ``sums`` int64[values + 1] pods by value: the last one, which is that
    of rows without the label, is 0. ``tally`` tells which further pods count, ``counted`` bool[rows] where they do.
    ``domains`` the values that a spread counts. ``owner`` keeps alive what this is remembered by.
    """

    column: Int64
    sums: Int64
    tally: Tally | None
    counted: Bool | None
    domains: Int64
    owner: object

    def of(self, further: Sequence[tuple[int, Profile]]) -> list[int]:
        """Return the rows of those further pods that count."""
        charge(len(further) // 4)
        if self.tally is None:
            return []
        matches = self.tally.matches
        return [row for row, profile in further if matches(profile)]

    def with_further(self, further: Sequence[int]) -> Int64:
        """Return the sums with one more pod on each of some rows."""
        if not further:
            return self.sums
        rows = np.asarray(further, np.int64)
        if self.counted is not None:
            rows = rows[self.counted[rows]]
        values = self.column[rows]
        return self.sums + np.bincount(values[values != UNKNOWN], minlength=len(self.sums))

    def beside(self, rows: Int64, further: Sequence[int]) -> Int64:
        """Return for some rows the pods in their domains, with one more on each of the rows ``further``."""
        charge(5 + len(further) // 16)
        charge_rows(len(rows))
        found: Int64 = self.with_further(further)[self.column[rows]]
        return found
