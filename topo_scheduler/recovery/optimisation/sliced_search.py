"""Searches for possible voluntary moves, in slices between other work.

Unlike the search for room, they keep no copy of the state between slices: each slice works on the current state, and
checks candidates of earlier slices again.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import ClassVar

from topo_scheduler.recovery.model.instructions import RecoveryInstruction
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.scheduling.time_slicing import NEXT_STEP_SECONDS, SlicedSearch

Look = Iterator[Sequence[RecoveryInstruction] | None]
"""Yields after each slice of the work: instructions, or None."""


@dataclass
class VoluntarySearch(ABC):
    """A search that begins again from time to time; one kind of voluntary moves is a subclass.

    Subclasses may raise ``_next_search``, the time of the next search in seconds. ``_now`` is the time of the step.
    """

    pause: ClassVar[float]
    """Seconds between the starts of two searches, at least."""

    context: MigrationContext
    clock: Callable[[], float]
    """Measures how long a step has searched, in seconds; if it stands still, one step does all."""
    _now: float = -inf
    _stepped: float = -inf
    _next_search: float = -inf

    def __post_init__(self) -> None:
        self._parts: SlicedSearch[Sequence[RecoveryInstruction]] = self.context.view.planning.sliced_search()

    def step(self, now: float) -> list[RecoveryInstruction]:
        """Search for a while, if a search is due; return the Migrations to create, and the pods to read first."""
        self._now = now
        if not self._on:
            self._parts.drop()
            return []
        if not self._parts.going and now >= self._next_search:
            self._next_search = now + self.pause
            if self._may_begin():
                self._parts.begin(self._look())
        if self._stepped == now or not self._parts.going:
            return []
        self._stepped = now
        return [instruction for instructions in self._parts.step(self.clock) for instruction in instructions]

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next, in seconds."""
        if not self._on:
            return None
        return self._stepped + NEXT_STEP_SECONDS if self._parts.going else max(now, self._next_search)

    @property
    @abstractmethod
    def _on(self) -> bool:
        """Whether there is anything to search for."""

    def _may_begin(self) -> bool:
        """Return whether the search that is due may find anything new."""
        return True

    @abstractmethod
    def _look(self) -> Look:
        """Search; yield after each slice of the work, and the instructions."""
