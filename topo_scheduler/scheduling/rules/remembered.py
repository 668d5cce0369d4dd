"""Neighbours counted once for a whole search: each look adds only the pods that were seated since the look before."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.residents import Profile, Tally

Seated = tuple[int, Profile]
"""Row and profile of a pod that a search has seated."""


class Remembered:
    """Pods that are there, summed over the domains of a label, and those that a search has seated.

    A search seats pods as on a stack: what is below one that is still there is there too. So from look to look only
    those above the uppermost that both know are taken off and put on.
    """

    __slots__ = ("_counted", "_now", "_owner", "_seen", "_tally", "column", "domains", "sums")

    def __init__(
        self, column: Int64, sums: Int64, tally: Tally | None, counted: Bool | None, domains: Int64, owner: object
    ) -> None:
        """Start with nobody seated.

        Args:
            column: int64[rows], the value of each row.
            sums: int64[values + 1], pods by value: the last one, which is that of rows without the label, is 0.
            tally: tells which further pods count.
            counted: bool[rows], where they do; None for everywhere.
            domains: the values that a spread counts.
            owner: what this is remembered by, kept alive.
        """
        self.column, self.sums, self.domains = column, sums, domains
        self._tally, self._counted, self._owner = tally, counted, owner
        self._now: Int64 | None = None
        self._seen: list[Seated] = []
        """Those seated at the last look."""

    def with_further(self, further: Sequence[Seated]) -> Int64:
        """Return the sums with further pods; not to be written to, and to be read before the next look."""
        if not further:
            return self.sums
        if self._now is None:
            self._now = self.sums.copy()
        seen, now = self._seen, self._now
        common = min(len(seen), len(further))
        while common and seen[common - 1] is not further[common - 1]:
            common -= 1
        charge(1 + len(seen) - common + len(further) - common)
        while len(seen) > common:
            self._count(now, seen.pop(), -1)
        for pod in further[common:]:
            self._count(now, pod, 1)
            seen.append(pod)
        return now

    def _count(self, sums: Int64, pod: Seated, change: int) -> None:
        row, profile = pod
        if self._tally is None or not self._tally.matches(profile):
            return
        if (self._counted is None or self._counted[row]) and (value := int(self.column[row])) != UNKNOWN:
            sums[value] += change

    def beside(self, rows: Int64, further: Sequence[Seated]) -> Int64:
        """Return for some rows the pods in their domains, further ones included."""
        charge(5)
        charge_rows(len(rows))
        found: Int64 = self.with_further(further)[self.column[rows]]
        return found

    def beside_rows(self, rows: Int64, further: Sequence[int]) -> Int64:
        """Return for some rows the pods in their domains, with one more on each of the rows ``further``."""
        charge(5 + len(further) // 16)
        charge_rows(len(rows))
        sums = self.sums
        if further:
            values = self.column[np.asarray(further, np.int64)]
            sums = sums + np.bincount(values[values != UNKNOWN], minlength=len(sums))
        found: Int64 = sums[self.column[rows]]
        return found
