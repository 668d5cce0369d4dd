"""A log of changed rows, read by any number of caches, each from where it stopped."""

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int64]


class ChangeLog:
    """Rows in the order in which they changed. A reader that is too far behind must start over."""

    def __init__(self, keep: int = 65536) -> None:
        self.position = 0
        """Position of a reader that is up to date. An attribute: each decision reads it a dozen times."""
        self._rows: list[int] = []
        self._keep = keep
        self._last_answer: tuple[int, int, Rows] = (-1, -1, np.empty(0, np.int64))
        """The last answer with its start and end position: several readers often ask from the same position."""

    def append(self, row: int) -> None:
        """Record that a row changed."""
        self._rows.append(row)
        self.position += 1
        if len(self._rows) > 2 * self._keep:
            del self._rows[: self._keep]

    def extend(self, rows: list[int]) -> None:
        """Record that rows changed."""
        if len(rows) > self._keep:
            self.restart()
            return
        self._rows += rows
        self.position += len(rows)
        if len(self._rows) > 2 * self._keep:
            del self._rows[: len(self._rows) - self._keep]

    def restart(self) -> None:
        """Record that every row changed: all readers start over."""
        self.position += 1
        self._rows.clear()

    def since(self, position: int) -> Rows | None:
        """Return the distinct rows changed since a position, ascending; None means all of them.

        The caller must not write to the array.
        """
        start = len(self._rows) - (self.position - position)
        if start < 0:
            return None
        start_position, end_position, answer = self._last_answer
        if start_position == position and end_position == self.position:
            return answer
        changed = self._rows[start:]
        rows = np.array(changed if len(changed) == 1 else sorted(set(changed)), np.int64)
        self._last_answer = position, self.position, rows
        return rows
