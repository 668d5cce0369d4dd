"""A log of changed rows, read by any number of caches, each from where it stopped."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class ChangeLog:
    """Rows in the order in which they changed. A reader that fell too far behind is told to start over."""

    def __init__(self, keep: int = 65536) -> None:
        self._rows: list[int] = []
        self._base = 0
        self._keep = keep
        self._told: tuple[int, int, Rows] = (-1, -1, np.empty(0, np.int64))
        """What was answered last, and between which positions: readers come in turn, often from the same one."""

    @property
    def position(self) -> int:
        """Where a reader that is up to date stands."""
        return self._base + len(self._rows)

    def append(self, row: int) -> None:
        """Note that a row changed."""
        self._rows.append(row)
        if len(self._rows) > 2 * self._keep:
            del self._rows[: self._keep]
            self._base += self._keep

    def extend(self, rows: list[int]) -> None:
        """Note that rows changed."""
        if len(rows) > self._keep:
            self.restart()
            return
        self._rows += rows
        if len(self._rows) > 2 * self._keep:
            dropped = len(self._rows) - self._keep
            del self._rows[:dropped]
            self._base += dropped

    def restart(self) -> None:
        """Note that everything changed: every reader starts over."""
        self._base = self.position + 1
        self._rows.clear()

    def since(self, position: int) -> Rows | None:
        """Return the distinct rows changed since a position, ascending; None means all of them.

        Not to be written to.
        """
        start = position - self._base
        if start < 0:
            return None
        after, until, told = self._told
        if after == position and until == self.position:
            return told
        fresh = self._rows[start:]
        rows = np.array(fresh if len(fresh) == 1 else sorted(set(fresh)), np.int64)
        self._told = position, self.position, rows
        return rows
