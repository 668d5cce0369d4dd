"""Searches for possible voluntary moves, in slices between other work.

Unlike the search for room, they keep no copy of the state between slices: each slice works on the current state, and
checks candidates of earlier slices again.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from topo_scheduler.recovery.model.instructions import Instruction
from topo_scheduler.scheduling.time_slicing import Parts

SLICE: Final = 0.005
"""Seconds that a step may search; one slice of work may take longer."""
NEXT: Final = 0.02
"""Seconds until the search continues."""

Look = Iterator[Sequence[Instruction] | None]
"""Yields after each slice of the work: instructions, or None."""


class Looking:
    """One search at a time, run by ``parts``.

    ``clock`` measures how long a step has searched; if it stands still, one step does all.
    """

    def __init__(self, parts: Parts[Sequence[Instruction]], clock: Callable[[], float]) -> None:
        self._parts = parts
        self._clock = clock
        self._stepped = -inf

    @property
    def going(self) -> bool:
        """Whether a search is in progress."""
        return self._parts.going

    def begin(self, look: Look) -> None:
        """Begin a search."""
        self._parts.begin(look)

    def drop(self) -> None:
        """Drop the search."""
        self._parts.drop()

    def step(self, now: float) -> list[Instruction]:
        """Do the next slice of work, and more while there is time; return the instructions."""
        if self._stepped == now or not self.going:
            return []
        self._stepped = now
        began = self._clock()
        results = self._parts.work(lambda: self._clock() - began < SLICE)
        return [instruction for instructions in results for instruction in instructions]

    def next_due(self) -> float:
        """Return when `step` must be called next, while a search is in progress."""
        return self._stepped + NEXT
