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
        """Return the distinct rows changed since a position, ascending; None means all of them."""
        start = position - self._base
        if start < 0:
            return None
        fresh = self._rows[start:]
        if len(fresh) == 1:
            return np.array(fresh, dtype=np.int64)
        return np.array(sorted(set(fresh)), dtype=np.int64)
