"""What DaemonSet pods held on the nodes where they came or went since all gangs were checked for it.

The size rule takes nodes as empty except for DaemonSet pods. Tenants may create and delete such pods many times a
second, and a rollout replaces one on each node. Only gangs of which another number of pods fits are tried again.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]


class DaemonChanges:
    """The least and the most that DaemonSet pods held on each changed row: a gang may have been tried in between."""

    def __init__(self) -> None:
        self._lowest: dict[int, Int64] = {}
        self._highest: dict[int, Int64] = {}
        self.is_new = False
        """Whether anything changed since gangs were last queued for a check."""
        self._stacked: tuple[Int64, Int64, Int64] | None = None

    def put(self, row: int, before: Int64, after: Int64) -> None:
        """Record a change of the amounts of a row (int64[resources] each)."""
        self.is_new, self._stacked = True, None
        columns = len(before)
        for limits, pick in ((self._lowest, np.minimum), (self._highest, np.maximum)):
            known = limits.get(row, before)
            known = np.pad(known, (0, columns - len(known)))
            limits[row] = pick(pick(known, before), after)

    def clear(self) -> None:
        """Forget all changes, as all gangs were checked."""
        self._lowest, self._highest, self._stacked = {}, {}, None

    def concern(self, columns: Sequence[int], amounts: Sequence[int], allocatable: Int64, *, alone: bool) -> bool:
        """Return whether another number of pods may fit on a node that is empty except for DaemonSet pods.

        Args:
            columns: the resources that a pod requests.
            amounts: its request for each.
            allocatable: int64[rows, resources].
            alone: all pods request the same. Otherwise any change of their resources counts.
        """
        if not self._lowest or max(columns, default=0) >= allocatable.shape[1]:
            return False  # nothing changed, or no node offers one of the resources
        if self._stacked is None:
            rows, width = np.array(sorted(self._lowest), np.int64), allocatable.shape[1]
            lowest, highest = (
                np.stack([np.pad(limits[row], (0, width - len(limits[row]))) for row in rows.tolist()])
                for limits in (self._lowest, self._highest)
            )
            self._stacked = rows, lowest, highest
        rows, lowest, highest = self._stacked
        index = np.array(columns, np.int64)
        if not alone:
            return bool((lowest[:, index] != highest[:, index]).any())
        offered, requests = allocatable[rows[:, None], index], np.array(amounts, np.int64)
        fits = [np.maximum(0, (offered - held[:, index]) // requests).min(axis=1) for held in (lowest, highest)]
        return bool((fits[0] != fits[1]).any())
