"""Migrations that are over: kept for a while to be looked at, then deleted.

The oldest go first, a few at a time, and each only at the version at which it was over. None goes within the hour in
which it ended, or within ``limits.rest``: by those it is known how many began of late, and who was moved.
"""

from collections.abc import Container
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.recovery.instructions import DeleteMigration, WriteOutcome

LEAST: Final = 3600.0
"""Seconds for which each is kept, however many there are."""
AT_ONCE: Final = 10
"""Deletions in `PACE` seconds at most, and on their way."""
PACE: Final = 1.0
RETRY: Final = 60.0
"""Seconds without any deletion after one that failed, doubled each time."""
RETRY_MOST: Final = 3600.0


@dataclass(frozen=True, slots=True)
class _Over:
    """One that is over. ``at`` seconds since the epoch."""

    namespace: str
    name: str
    uid: str
    version: str
    at: float


class Finished:
    """All Migrations that are over, by namespace and name."""

    def __init__(self) -> None:
        self._over: dict[str, _Over] = {}
        self._ordered: list[_Over] | None = None
        self._flying: set[str] = set()
        self._not_before = 0.0
        self._failures = 0

    def __len__(self) -> int:
        return len(self._over)

    def note(self, migration: Migration, wall: float) -> None:
        """Take over a Migration as it is. ``wall`` seconds since the epoch."""
        phase, meta = migration.phase, migration.metadata
        if phase is None or not phase.over:
            self.forget(migration.key)
            return
        at = seconds_of(migration.status.times.get(phase, "")) or seconds_of(meta.creation_timestamp or "")
        over = _Over(meta.namespace, meta.name, meta.uid, meta.resource_version, wall if at is None else at)
        self._over[migration.key] = over
        self._ordered = None

    def forget(self, key: str) -> None:
        """A Migration was deleted, or is not over after all."""
        if self._over.pop(key, None) is not None:
            self._ordered = None

    def fresh_name(self, namespace: str, name: str, taken: Container[str] = ()) -> str:
        """Return a name that no finished Migration has, nor any of ``taken``: this one, or this one with a number."""
        found, number = name, 1
        while f"{namespace}/{found}" in self._over or f"{namespace}/{found}" in taken:
            number += 1
            found = f"{name}-{number}"
        return found

    # ------------------------------------------------------------ deleting

    def due(self, spec: RecoverySpec, now: float, wall: float) -> list[DeleteMigration]:
        """Return which to delete now. ``now`` seconds, ``wall`` the same since the epoch."""
        if now < self._not_before or self._flying:
            return []
        ripe = takewhile(lambda item: wall >= self._until(*item, spec), enumerate(self._oldest_first()))
        chosen = [one for _, one in islice(ripe, AT_ONCE)]
        self._flying = {f"{one.namespace}/{one.name}" for one in chosen}
        return [DeleteMigration(one.namespace, one.name, one.uid, one.version) for one in chosen]

    def deleted(self, key: str, outcome: WriteOutcome, now: float) -> bool:
        """Take over how a deletion ended; return whether that is to be told: the first failure of several."""
        self._flying.discard(key)
        self._not_before = max(self._not_before, now + PACE)
        if outcome in (WriteOutcome.WRITTEN, WriteOutcome.STALE):
            self._failures = 0
            self.forget(key)  # if it is there after all, or was changed, the watch tells it
            return False
        self._failures += 1
        pause = min(RETRY_MOST, RETRY * 2 ** min(self._failures - 1, 9))
        self._not_before = max(self._not_before, now + pause)
        return self._failures == 1

    def next_due(self, spec: RecoverySpec, now: float, wall: float) -> float | None:
        """Return when `due` must be asked next, in seconds as ``now``."""
        if self._flying or not self._over:
            return None
        return max(self._not_before, now + self._until(0, self._oldest_first()[0], spec) - wall)

    # ------------------------------------------------------------ inside

    def _oldest_first(self) -> list[_Over]:
        if self._ordered is None:
            self._ordered = sorted(self._over.values(), key=lambda one: (one.at, one.namespace, one.name))
        return self._ordered

    def _until(self, place: int, one: _Over, spec: RecoverySpec) -> float:
        """Return until when the one at a place in the order is kept, in seconds since the epoch."""
        too_many = place < len(self._over) - spec.keep_finished.most
        least = max(LEAST, spec.limits.rest)
        return one.at + (least if too_many else max(least, spec.keep_finished.time))
