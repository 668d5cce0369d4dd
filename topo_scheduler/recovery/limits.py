"""How many Migrations may be under way: at once, in a namespace, begun within an hour."""

from collections import Counter
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.moments import seconds_of
from topo_scheduler.api.recovery import RecoveryLimits

HOUR: Final = 3600.0


class MigrationLimits:
    """Migrations that hold seats, and when each began; read from the objects, so that a restart forgets nothing."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self._in: Counter[str] = Counter()
        """How many of them each namespace has."""
        self._begun: dict[str, float] = {}
        self._first = inf
        """No later than the first of them began."""

    def note(self, migration: Migration, wall: float) -> None:
        """Take over how far a Migration is. ``wall`` seconds since the epoch."""
        begun = seconds_of(migration.status.times.get(Phase.RESERVING, ""))
        if begun is not None and wall - begun < HOUR:
            self._began(migration.key, min(begun, wall))  # another clock may be ahead
        self.forget(migration.key)
        if migration.phase is not None and migration.phase.running:
            self._run(migration)

    def begin(self, migration: Migration, wall: float) -> None:
        """A Migration is about to begin."""
        self.forget(migration.key)
        self._run(migration)
        self._began(migration.key, wall)

    def forget(self, key: str) -> None:
        """A Migration was deleted, or is over. That it began within the hour is not forgotten."""
        namespace = self._running.pop(key, None)
        if namespace is not None:
            self._in[namespace] -= 1
            if not self._in[namespace]:
                del self._in[namespace]

    def _run(self, migration: Migration) -> None:
        namespace = migration.metadata.namespace
        self._running[migration.key] = namespace
        self._in[namespace] += 1

    def _began(self, key: str, at: float) -> None:
        self._begun[key] = at
        self._first = min(self._first, at)

    def lacking(self, migration: Migration, limits: RecoveryLimits, wall: float) -> str:
        """Return why a Migration may not begin now, or an empty string."""
        if migration.spec.makes_room_for in self._running:
            return ""  # who waits for it has begun
        own = self._running.get(migration.key)
        others = len(self._running) - (own is not None)
        if others >= limits.at_once:
            return f"{others} are under way: limits.atOnce is {limits.at_once}"
        here = self._in[migration.metadata.namespace] - (own == migration.metadata.namespace)
        if here >= limits.per_namespace:
            return f"{here} are under way in this namespace: limits.perNamespace is {limits.per_namespace}"
        if wall - self._first >= HOUR:
            self._begun = {key: at for key, at in self._begun.items() if wall - at < HOUR}
            self._first = min(self._begun.values(), default=inf)
        lately = len(self._begun) - (migration.key in self._begun)
        if lately >= limits.per_hour:
            return f"{lately} began within the last hour: limits.perHour is {limits.per_hour}"
        return ""
