"""Counts of pods by topology domain for a whole search: each look adds only the pods seated since the last look."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.pod_index import Tally
from topo_scheduler.state.pods.profiles import Profile

Seated = tuple[int, Profile]
"""Row and profile of a pod that a search has seated."""


class Remembered:
    """Current pods by domain of a label, plus the pods that a search has seated.

    A search seats pods as on a stack, so the pods below a seated pod don't change. Each look removes and adds only pods
    above the part of the stack that it has in common with the last look.
    """

    __slots__ = ("_counted", "_counted_pods", "_current_sums", "_owner", "_tally", "column", "domains", "sums")

    def __init__(
        self, column: Int64, sums: Int64, tally: Tally | None, counted: Bool | None, domains: Int64, owner: object
    ) -> None:
        """Start without seated pods.

        Args:
            column: int64[rows], the label value of each row.
            sums: int64[values + 1], pods by label value; the last entry, for rows without the label, is 0.
            tally: decides which further pods count.
            counted: bool[rows], rows where they count; None for all rows.
            domains: label values that a spread counts.
            owner: object that is part of the cache key, kept alive.
        """
        self.column, self.sums, self.domains = column, sums, domains
        self._tally, self._counted, self._owner = tally, counted, owner
        self._current_sums: Int64 | None = None
        self._counted_pods: list[Seated] = []
        """The pods that were seated at the last look."""

    def with_further(self, further: Sequence[Seated]) -> Int64:
        """Return the sums with further pods; read-only, and valid only until the next look."""
        if not further:
            return self.sums
        if self._current_sums is None:
            self._current_sums = self.sums.copy()
        counted_pods, sums = self._counted_pods, self._current_sums
        common = min(len(counted_pods), len(further))
        while common and counted_pods[common - 1] is not further[common - 1]:
            common -= 1
        charge(1 + len(counted_pods) - common + len(further) - common)
        while len(counted_pods) > common:
            self._count(sums, counted_pods.pop(), -1)
        for pod in further[common:]:
            self._count(sums, pod, 1)
            counted_pods.append(pod)
        return sums

    def _count(self, sums: Int64, pod: Seated, change: int) -> None:
        row, profile = pod
        if self._tally is None or not self._tally.matches(profile):
            return
        if (self._counted is None or self._counted[row]) and (value := int(self.column[row])) != UNKNOWN:
            sums[value] += change

    def beside(self, rows: Int64, further: Sequence[Seated]) -> Int64:
        """Return the pods in the domains of the rows, including further pods."""
        charge(5)
        charge_rows(len(rows))
        counts: Int64 = self.with_further(further)[self.column[rows]]
        return counts

    def beside_rows(self, rows: Int64, further: Sequence[int]) -> Int64:
        """Return the pods in the domains of the rows, plus one pod on each of the rows ``further``."""
        charge(5 + len(further) // 16)
        charge_rows(len(rows))
        sums = self.sums
        if further:
            values = self.column[np.asarray(further, np.int64)]
            sums = sums + np.bincount(values[values != UNKNOWN], minlength=len(sums))
        counts: Int64 = sums[self.column[rows]]
        return counts
