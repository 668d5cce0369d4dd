"""Looks for what might move by choice, in parts, between which everything else goes on.

Unlike the search for room they keep no copy of the state from part to part: each part looks at things as they are then,
and whoever was noted in an earlier one is looked at again.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from topo_scheduler.recovery.instructions import Instruction
from topo_scheduler.scheduling.parts import Parts
from topo_scheduler.scheduling.world import World

SLICE: Final = 0.005
"""Seconds a step may look; one part may take longer."""
NEXT: Final = 0.02
"""Seconds until the look goes on."""

Look = Iterator[Sequence[Instruction] | None]
"""Yields after each part: what is to be done, or None."""


class Looking:
    """One look at a time. ``clock`` tells how long a step has looked; if it stands still, all is done in one."""

    def __init__(self, world: World, clock: Callable[[], float]) -> None:
        self._parts: Parts[Sequence[Instruction]] = Parts(world)
        self._clock = clock
        self._stepped = -inf

    @property
    def going(self) -> bool:
        """Whether a look was begun and not ended."""
        return self._parts.going

    def begin(self, look: Look) -> None:
        """Look at this from now on."""
        self._parts.begin(look)

    def drop(self) -> None:
        """Look no further."""
        self._parts.drop()

    def step(self, now: float) -> list[Instruction]:
        """Do the next part, and others as long as there is time; return what is to be done."""
        if self._stepped == now or not self.going:
            return []
        self._stepped = now
        began = self._clock()
        found = self._parts.work(lambda: self._clock() - began < SLICE)
        return [one for some in found for one in some]

    def next_due(self) -> float:
        """Return when `step` must be called next, while a look goes on."""
        return self._stepped + NEXT
