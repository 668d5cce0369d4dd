"""How many Migrations may be under way: at once, in a namespace, begun within an hour."""

from collections import Counter
from typing import Final

from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.recovery import RecoveryLimits
from topo_scheduler.recovery.tracked import moment

HOUR: Final = 3600.0


class Limits:
    """Migrations that hold seats, and when each began; read from the objects, so that a restart forgets nothing."""

    def __init__(self) -> None:
        self._running: dict[str, str] = {}
        self._begun: dict[str, float] = {}

    def note(self, migration: Migration, wall: float) -> None:
        """Take over how far a Migration is. ``wall`` seconds since the epoch."""
        begun = moment(migration.status.times.get(Phase.RESERVING, ""))
        if begun is not None and wall - begun < HOUR:
            self._begun[migration.key] = min(begun, wall)  # another clock may be ahead
        if migration.phase is not None and migration.phase.running:
            self._running[migration.key] = migration.metadata.namespace
        else:
            self._running.pop(migration.key, None)

    def begin(self, migration: Migration, wall: float) -> None:
        """A Migration is about to begin."""
        self._running[migration.key] = migration.metadata.namespace
        self._begun[migration.key] = wall

    def forget(self, key: str) -> None:
        """A Migration was deleted. That it began within the hour is not forgotten."""
        self._running.pop(key, None)

    def lacking(self, migration: Migration, limits: RecoveryLimits, wall: float) -> str:
        """Return why a Migration may not begin now, or an empty string."""
        if migration.spec.makes_room_for in self._running:
            return ""  # who waits for it has begun
        others = {key: namespace for key, namespace in self._running.items() if key != migration.key}
        if len(others) >= limits.at_once:
            return f"{len(others)} are under way: limits.atOnce is {limits.at_once}"
        here = Counter(others.values())[migration.metadata.namespace]
        if here >= limits.per_namespace:
            return f"{here} are under way in this namespace: limits.perNamespace is {limits.per_namespace}"
        self._begun = {key: at for key, at in self._begun.items() if wall - at < HOUR}
        lately = sum(key != migration.key for key in self._begun)
        if lately >= limits.per_hour:
            return f"{lately} began within the last hour: limits.perHour is {limits.per_hour}"
        return ""
