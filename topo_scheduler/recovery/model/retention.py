"""Retention of finished Migrations: they are kept for a while, then deleted.

The oldest go first, a few at a time, and each only at the version at which it finished. None goes within an hour of its
end, or within ``limits.cooldown``: limits on the rate of Migrations and moves are computed from them.

A webhook may refuse the deletions in a namespace, or not answer them. Then only that namespace pauses.
"""

from bisect import bisect_left, insort
from collections.abc import Container
from dataclasses import dataclass
from itertools import islice, takewhile
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Migration, MigrationWrite
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.model.instructions import DeleteMigration
from topo_scheduler.scheduling.pauses import doubled

LEAST_SECONDS: Final = 3600.0
"""Seconds for which each is kept, however many there are."""
CONCURRENT_DELETIONS: Final = 10
"""Deletions in flight, and within `PACE_SECONDS`, at most."""
PACE_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 60.0
"""Seconds without deletions in a namespace after a failed one, doubled each time."""
LONGEST_RETRY_SECONDS: Final = 3600.0


_Over = tuple[float, DeleteMigration]
"""The end of a finished Migration, in seconds since the epoch, and its deletion."""


def _age(over: _Over) -> tuple[float, str, str]:
    """Return the sort key: no two Migrations have the same."""
    return over[0], over[1].namespace, over[1].name


@dataclass(slots=True)
class _DeletionPause:
    """Failed deletions of a namespace in a row, and until when it pauses, in seconds."""

    failures: int = 0
    until: float = -inf


class Finished:
    """All finished Migrations, by namespace and name."""

    def __init__(self) -> None:
        self._over: dict[str, _Over] = {}
        self._ordered: list[_Over] = []
        """The oldest first."""
        self._next: tuple[RecoverySpec, float] | None = None
        """When the next deletion is due, in seconds, for a configuration; None if it must be computed again."""
        self._flying: set[str] = set()
        self._not_before = 0.0
        self._pauses: dict[str, _DeletionPause] = {}
        """Namespaces whose last deletion failed."""

    def __len__(self) -> int:
        return len(self._over)

    def note(self, migration: Migration, wall: float) -> None:
        """Record the current state of a Migration. ``wall`` is in seconds since the epoch."""
        phase, meta = migration.phase, migration.metadata
        if phase is None or not phase.over:
            self.forget(migration.key)
            return
        end = seconds_of(migration.status.times.get(phase, "")) or seconds_of(meta.creation_timestamp or "")
        deletion = DeleteMigration(meta.namespace, meta.name, meta.uid, meta.resource_version)
        self.forget(migration.key)
        over = self._over[migration.key] = (wall if end is None else end, deletion)
        insort(self._ordered, over, key=_age)
        self._next = None

    def forget(self, key: str) -> None:
        """Forget a Migration that was deleted, or is not finished after all."""
        if (over := self._over.pop(key, None)) is not None:
            del self._ordered[bisect_left(self._ordered, _age(over), key=_age)]
            self._next = None

    def fresh_name(self, namespace: str, name: str, taken: Container[str] = ()) -> str:
        """Return a name that no finished Migration and none of ``taken`` has: ``name``, if need be with a number."""
        candidate, number = name, 1
        while f"{namespace}/{candidate}" in self._over or f"{namespace}/{candidate}" in taken:
            number += 1
            candidate = f"{name}-{number}"
        return candidate

    # ------------------------------------------------------------ deletions

    def due(self, spec: RecoverySpec, now: float, wall: float) -> list[DeleteMigration]:
        """Return the deletions that are due. ``now`` is in seconds, ``wall`` the same time since the epoch."""
        if now < self._not_before or self._flying:
            return []
        if self._next is not None and self._next[0] is spec and now < self._next[1]:
            return []  # a namespace that pauses may have thousands that are expired
        expired = takewhile(lambda item: wall >= self._until(*item, spec), enumerate(self._ordered))
        ready = (deletion for _, (_, deletion) in expired if now >= self._paused_until(deletion))
        deletions = list(islice(ready, CONCURRENT_DELETIONS))
        self._flying = {deletion.key for deletion in deletions}
        return deletions

    def deleted(self, key: str, outcome: MigrationWrite, now: float) -> bool:
        """Handle the result of a deletion; return whether to log it: only the first failure in a row."""
        namespace = key.partition("/")[0]
        self._flying.discard(key)
        self._next = None
        self._not_before = max(self._not_before, now + PACE_SECONDS)
        if outcome in (MigrationWrite.WRITTEN, MigrationWrite.STALE):
            self._pauses.pop(namespace, None)
            self.forget(key)  # if the object still exists or has changed, the watch reports it
            return False
        self._pauses = {
            name: pause for name, pause in self._pauses.items() if now < pause.until + LONGEST_RETRY_SECONDS
        }
        first = not self._pauses
        pause = self._pauses.setdefault(namespace, _DeletionPause())
        pause.failures += 1
        pause.until = max(pause.until, now + doubled(RETRY_SECONDS, pause.failures, LONGEST_RETRY_SECONDS))
        return first

    def next_due(self, spec: RecoverySpec, now: float, wall: float) -> float | None:
        """Return when `due` must be called next, in seconds as ``now``."""
        if self._flying or not self._over:
            return None
        if self._next is not None and self._next[0] is spec:
            return max(self._not_before, self._next[1])
        earliest = inf
        for position, finished in enumerate(self._ordered):
            paused_until = self._paused_until(finished[1])
            earliest = min(earliest, max(paused_until, now + self._until(position, finished, spec) - wall))
            if paused_until <= now:
                break  # no later one is due before
        self._next = spec, earliest
        return max(self._not_before, earliest)

    # ------------------------------------------------------------ helpers

    def _paused_until(self, deletion: DeleteMigration) -> float:
        pause = self._pauses.get(deletion.namespace)
        return pause.until if pause is not None else -inf

    def _until(self, position: int, finished: _Over, spec: RecoverySpec) -> float:
        """Return the end of the retention of the Migration at a position in the order, in seconds since the epoch."""
        too_many = position < len(self._over) - spec.keep_finished.max_count
        shortest = max(LEAST_SECONDS, spec.limits.cooldown)
        return finished[0] + (shortest if too_many else max(shortest, spec.keep_finished.time))
