"""When a search for pods to relocate is repeated although no room was freed."""

from dataclasses import dataclass
from math import inf
from typing import Final

from topo_scheduler.scheduling.pauses import doubled

SEARCH_AGAIN_SECONDS: Final = 60.0
"""Seconds after which a search is repeated if what it depends on has changed.

Other Migrations may have ended that moved these pods, and disruption budgets may allow their eviction by now.
"""
UNCHANGED_AGAIN_SECONDS: Final = 120.0
"""Seconds after which a search is repeated although nothing has changed, doubled each time: pods may be older, say."""
LONGEST_UNCHANGED_SECONDS: Final = 600.0
"""Longest such pause, in seconds."""


@dataclass(slots=True)
class SearchRepetition:
    """The searches of one Migration. ``inputs`` are what a search depends on: equal ones have the same result."""

    _changed_at: float = -inf
    """When the search is repeated if its inputs have changed, in seconds."""
    _unchanged_at: float = -inf
    """When it is repeated in any case, in seconds."""
    _searched: object = None
    _begun: object = None
    _times: int = 0

    def due(self, inputs: object, now: float) -> bool:
        """Return whether to search now."""
        return now >= self._unchanged_at or (now >= self._changed_at and inputs != self._searched)

    def begin(self, inputs: object) -> None:
        """Record the inputs of a search. It may take several steps; what changes meanwhile is a reason for another."""
        if self._begun is None:
            self._begun = inputs

    def pause(self, until: float) -> None:
        """Have a search continue that is not finished."""
        self._changed_at = self._unchanged_at = until

    def fail(self, now: float) -> None:
        """Record the end of a search without result."""
        self._times = self._times + 1 if self._begun == self._searched else 1
        self._searched, self._begun = self._begun, None
        self._changed_at = now + SEARCH_AGAIN_SECONDS
        self._unchanged_at = now + doubled(UNCHANGED_AGAIN_SECONDS, self._times, LONGEST_UNCHANGED_SECONDS)
