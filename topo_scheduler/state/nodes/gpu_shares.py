"""Individual GPUs on nodes that share GPUs: the free part of each.

On all other nodes GPUs are only a count. Here each GPU has an index, and every pod with GPUs holds the indexes recorded
on its Binding. A pod without a record, which another scheduler bound, counts as holding the lowest unrecorded indexes,
in order of uid. So the free GPUs follow from the pods on the node, in whatever order they arrived.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.fractions import WHOLE_GPU

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

_FEW_ROWS: Final = 4
"""Rows up to which a loop is faster than arrays."""


class Holding(NamedTuple):
    """GPUs of a node that a pod holds: ``gpus`` whole ones, or ``share`` thousandths of one; recorded ``indexes``."""

    uid: str
    gpus: int
    share: int
    indexes: tuple[int, ...] = ()


class Devices:
    """GPUs by row of the node table.

    ``sharing`` bool[rows]: whether shares may be placed on the node. ``count`` int64[rows]: GPUs that are tracked
    individually, 0 on nodes where they are only a count. ``free`` int64[rows, d]: free thousandths of each, 0 beyond
    ``count``. ``shared`` int64[rows]: GPUs that pods hold in shares, which are not free for pods with whole GPUs.
    """

    def __init__(self, rows: int) -> None:
        self.sharing: Bool = np.zeros(rows, np.bool_)
        self.count: Int64 = np.zeros(rows, np.int64)
        self.free: Int64 = np.zeros((rows, 1), np.int64)
        self.shared: Int64 = np.zeros(rows, np.int64)

    def grow(self, rows: int) -> None:
        """Lengthen the arrays."""
        added = rows - len(self.count)
        self.sharing = np.pad(self.sharing, (0, added))
        self.count = np.pad(self.count, (0, added))
        self.free = np.pad(self.free, ((0, added), (0, 0)))
        self.shared = np.pad(self.shared, (0, added))

    def clear(self, row: int) -> None:
        """Clear a row."""
        self.sharing[row] = False
        self.count[row] = self.shared[row] = 0
        self.free[row] = 0

    def concerns(self, row: int, share: int = 0) -> bool:
        """Return whether the GPUs of a row are tracked individually, or must be because a pod holds a share there."""
        return bool(self.sharing[row] or self.count[row] or share)

    def recount(self, row: int, gpus: int, holdings: Iterable[Holding]) -> int:
        """Recompute a row with ``gpus`` GPUs from all holdings; return the change of ``shared``."""
        free, unrecorded = [WHOLE_GPU] * gpus, []
        whole_gpus: set[int] = set()
        tracked = bool(self.sharing[row])
        for holding in holdings:
            tracked |= holding.share > 0
            if not self._recorded(holding, gpus):
                unrecorded.append(holding)
            elif holding.share:
                free[holding.indexes[0]] -= holding.share
            else:
                whole_gpus.update(holding.indexes)
        for holding in sorted(unrecorded, key=lambda holding: (holding.share, holding.uid)):
            candidates = [
                index
                for index in range(gpus)
                if index not in whole_gpus and free[index] >= (holding.share or WHOLE_GPU)
            ]
            if not holding.share:
                whole_gpus.update(candidates[: holding.gpus])
            elif candidates:
                free[candidates[0]] -= holding.share
        if not tracked:
            free, whole_gpus = [], set()
        free = [0 if index in whole_gpus else max(0, thousandths) for index, thousandths in enumerate(free)]
        if len(free) > self.free.shape[1]:
            self.free = np.pad(self.free, ((0, 0), (0, len(free) - self.free.shape[1])))
        self.free[row] = 0
        self.free[row, : len(free)] = free
        shared = sum(thousandths < WHOLE_GPU for thousandths in free) - len(whole_gpus)
        change = shared - int(self.shared[row])
        self.shared[row], self.count[row] = shared, len(free)
        return change

    @staticmethod
    def _recorded(holding: Holding, gpus: int) -> bool:
        indexes = holding.indexes
        if holding.share or holding.gpus == 1:
            return len(indexes) == 1 and 0 <= indexes[0] < gpus
        return len(indexes) == holding.gpus == len(set(indexes)) and min(indexes) >= 0 and max(indexes) < gpus

    def fit(self, rows: Int64, share: int, whole: Int64) -> Int64:
        """Return how many additional shares of this size fit on each of the rows (int64[n]).

        ``whole`` int64[n]: free GPUs by count. It may be less than the untouched GPUs, as some are kept for pods that
        are about to be bound. If it is negative, the node is overbooked and nothing fits.
        """
        if len(rows) <= _FEW_ROWS:
            return np.array(
                [
                    self._fit_of(*row_and_whole, share)
                    for row_and_whole in zip(rows.tolist(), whole.tolist(), strict=True)
                ],
                np.int64,
            )
        free = self.free[rows]
        partial_fit = (np.where(free < WHOLE_GPU, free, 0) // share).sum(axis=1)
        untouched = np.minimum((free == WHOLE_GPU).sum(axis=1), np.maximum(whole, 0))
        fit: Int64 = (partial_fit + untouched * (WHOLE_GPU // share)) * (self.sharing[rows] & (whole >= 0))
        return fit

    def _fit_of(self, row: int, whole: int, share: int) -> int:
        """Return the same as `fit`, for one row."""
        if whole < 0 or not self.sharing[row]:
            return 0
        partial_fit = untouched = 0
        for free in self.free[row].tolist():
            if free == WHOLE_GPU:
                untouched += 1
            else:
                partial_fit += free // share
        return partial_fit + min(untouched, whole) * (WHOLE_GPU // share)

    def fit_empty(self, rows: Int64, share: int) -> Int64:
        """Return the same as `fit`, for nodes without pods."""
        fit: Int64 = self.count[rows] * (WHOLE_GPU // share) * self.sharing[rows]
        return fit
