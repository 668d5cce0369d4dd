"""Single GPUs of the nodes on which GPUs are shared: how much of each is free.

Everywhere else GPUs are a number. Here each has an index, and every pod that asks for GPUs holds some of them: those
that were recorded on its Binding. Who holds GPUs without a record (a pod that another scheduler bound) is taken to hold
those that nobody recorded, from the lowest up, in order of uid. So what is free follows from the pods that are there,
in whatever order they came.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]

WHOLE: Final = 1000
"""A whole GPU, in thousandths."""
_FEW: Final = 4
"""Rows up to which a loop is faster than arrays."""


class Holding(NamedTuple):
    """What a pod holds of a node's GPUs: ``gpus`` whole ones, or ``share`` thousandths of one; ``indexes`` recorded."""

    uid: str
    gpus: int
    share: int
    indexes: tuple[int, ...] = ()


class Devices:
    """GPUs by row of the node table.

    ``sharing`` bool[rows]: whether shares may be placed there. ``count`` int64[rows]: GPUs that are told apart, 0 where
    they are a number only. ``free`` int64[rows, d]: free thousandths of each, 0 beyond ``count``. ``shared``
    int64[rows]: GPUs of which pods hold shares and no pod the whole; they are used up for pods that want whole ones.
    """

    def __init__(self, rows: int) -> None:
        self.sharing: Bool = np.zeros(rows, np.bool_)
        self.count: Int64 = np.zeros(rows, np.int64)
        self.free: Int64 = np.zeros((rows, 1), np.int64)
        self.shared: Int64 = np.zeros(rows, np.int64)

    def grow(self, rows: int) -> None:
        """Lengthen the arrays."""
        more = rows - len(self.count)
        self.sharing = np.pad(self.sharing, (0, more))
        self.count = np.pad(self.count, (0, more))
        self.free = np.pad(self.free, ((0, more), (0, 0)))
        self.shared = np.pad(self.shared, (0, more))

    def clear(self, row: int) -> None:
        """Forget a row."""
        self.sharing[row] = False
        self.count[row] = self.shared[row] = 0
        self.free[row] = 0

    def concerns(self, row: int, share: int = 0) -> bool:
        """Return whether GPUs of a row are told apart, or are from now on as a pod holds a share there."""
        return bool(self.sharing[row] or self.count[row] or share)

    def recount(self, row: int, gpus: int, holdings: Iterable[Holding]) -> int:
        """Take over all that is held of a row with so many GPUs; return by how much ``shared`` changed."""
        free, unrecorded = [WHOLE] * gpus, []
        whole: set[int] = set()
        told_apart = bool(self.sharing[row])
        for one in holdings:
            told_apart |= one.share > 0
            if not self._recorded(one, gpus):
                unrecorded.append(one)
            elif one.share:
                free[one.indexes[0]] -= one.share
            else:
                whole.update(one.indexes)
        for one in sorted(unrecorded, key=lambda one: (one.share, one.uid)):
            room = [at for at in range(gpus) if at not in whole and free[at] >= (one.share or WHOLE)]
            if not one.share:
                whole.update(room[: one.gpus])
            elif room:
                free[room[0]] -= one.share
        if not told_apart:
            free, whole = [], set()
        return self._write(row, [0 if at in whole else max(0, left) for at, left in enumerate(free)], len(whole))

    def _write(self, row: int, free: list[int], whole: int) -> int:
        """Write what is free of each GPU, so many of them held whole; return by how much ``shared`` changed."""
        if len(free) > self.free.shape[1]:
            self.free = np.pad(self.free, ((0, 0), (0, len(free) - self.free.shape[1])))
        self.free[row] = 0
        self.free[row, : len(free)] = free
        shared = sum(left < WHOLE for left in free) - whole
        change = shared - int(self.shared[row])
        self.shared[row], self.count[row] = shared, len(free)
        return change

    @staticmethod
    def _recorded(one: Holding, gpus: int) -> bool:
        indexes = one.indexes
        if one.share or one.gpus == 1:
            return len(indexes) == 1 and 0 <= indexes[0] < gpus
        return len(indexes) == one.gpus == len(set(indexes)) and min(indexes) >= 0 and max(indexes) < gpus

    def fit(self, rows: Int64, share: int, whole: Int64) -> Int64:
        """Return how many more shares of this size each of some rows takes (int64[n]).

        ``whole`` int64[n]: GPUs that are free by their number. It may be less than are untouched here: some are kept
        for pods that are on their way. Where it is negative, others took more than there is, and nothing fits.
        """
        if len(rows) <= _FEW:
            return np.array(
                [self._fit_of(*one, share) for one in zip(rows.tolist(), whole.tolist(), strict=True)], np.int64
            )
        free = self.free[rows]
        parts = (np.where(free < WHOLE, free, 0) // share).sum(axis=1)
        untouched = np.minimum((free == WHOLE).sum(axis=1), np.maximum(whole, 0))
        fit: Int64 = (parts + untouched * (WHOLE // share)) * (self.sharing[rows] & (whole >= 0))
        return fit

    def _fit_of(self, row: int, whole: int, share: int) -> int:
        """Return the same of one row."""
        if whole < 0 or not self.sharing[row]:
            return 0
        parts = untouched = 0
        for left in self.free[row].tolist():
            if left == WHOLE:
                untouched += 1
            else:
                parts += left // share
        return parts + min(untouched, whole) * (WHOLE // share)

    def fit_empty(self, rows: Int64, share: int) -> Int64:
        """Return the same if nobody were there."""
        fit: Int64 = self.count[rows] * (WHOLE // share) * self.sharing[rows]
        return fit
