"""Objects whose reading raised: the scheduler reads each again after a backoff that doubles.

The API server need not send them again, so a refused pod or a skipped node would stay that way. Their number is limited
by the number of objects let in, see `pending.PendingPods`.
"""

import heapq
from dataclasses import dataclass, field
from math import inf
from typing import Final, Generic, TypeVar

from topo_scheduler.scheduling.barrier import Backoff

T = TypeVar("T")
OBJECTS_PER_STEP: Final = 32
"""Objects read again in one step at most: a tenant with thousands of them delays no decision for long."""


@dataclass(slots=True)
class _Failed(Generic[T]):
    item: T
    backoff: Backoff = field(default_factory=Backoff)


class Unread(Generic[T]):
    """All failed objects of one type, by uid or name.

    Invariant: each object has an entry in the heap for the time at which it is read again. Entries with any other time
    are void.
    """

    def __init__(self) -> None:
        self._failed: dict[str, _Failed[T]] = {}
        self._due: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._failed)

    def fail(self, key: str, item: T, now: float) -> None:
        """Record that the reading of an object raised, with its present version."""
        failed = self._failed.get(key)
        if failed is None:
            failed = self._failed[key] = _Failed(item)
        failed.item = item
        failed.backoff.fail(now)
        heapq.heappush(self._due, (failed.backoff.until, key))
        if len(self._due) > 2 * len(self._failed) + 64:
            self._due = [(failed.backoff.until, key) for key, failed in self._failed.items()]
            heapq.heapify(self._due)

    def get(self, key: str) -> T | None:
        """Return an object as it was when its reading raised last; None if it was read since."""
        failed = self._failed.get(key)
        return failed.item if failed is not None else None

    def drop(self, key: str) -> None:
        """Forget an object: it was read, or deleted."""
        self._failed.pop(key, None)

    def take_due(self, now: float) -> list[T]:
        """Return at most `OBJECTS_PER_STEP` objects to read again now.

        The caller passes each to `fail` or `drop` before the next call.
        """
        due: list[T] = []
        while len(due) < OBJECTS_PER_STEP and (at := self.next_due()) is not None and at <= now:
            failed = self._failed[heapq.heappop(self._due)[1]]
            failed.backoff.until = inf  # also voids an entry for the same time from before the object was dropped
            due.append(failed.item)
        return due

    def next_due(self) -> float | None:
        """Return when `take_due` has something to return, in seconds; None if nothing failed."""
        while self._due:
            at, key = self._due[0]
            failed = self._failed.get(key)
            if failed is not None and failed.backoff.until == at:
                return at
            heapq.heappop(self._due)
        return None
