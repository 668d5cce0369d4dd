"""Limits of Migrations in progress: at once, in a namespace, and begun within an hour.

Tenants create Migrations too, and their disruption budgets may keep them from ever ending. So `RecoveryMigrationLimits`
counts those that leave failed or cordoned nodes by themselves: only they delay one another. Of these, too, a tenant can
have any number, and keep each under way for as long as it holds seats. So beyond the limit at once and the limit of an
hour, a namespace still begins as many as an equal share of it.
"""

from collections import Counter
from collections.abc import Iterable
from math import inf
from typing import Final

from topo_scheduler.api.migrations import Migration, Phase
from topo_scheduler.api.recovery import RecoveryLimits
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.limit_shares import is_within_share

HOUR_SECONDS: Final = 3600.0


class MigrationLimits:
    """Migrations that hold seats, and when each began; read from the objects, so that a restart forgets nothing."""

    def __init__(self) -> None:
        self.running: dict[str, str] = {}
        """Namespaces of the Migrations with seats, by key. Read only."""
        self._begun: dict[str, float] = {}
        self._first = inf
        """A lower bound of the earliest start, in seconds since the epoch."""

    def note(self, migration: Migration, wall: float) -> None:
        """Record the progress of a Migration. ``wall`` is in seconds since the epoch."""
        begun = seconds_of(migration.status.times.get(Phase.RESERVING, ""))
        if begun is not None and wall - begun < HOUR_SECONDS:
            self._began(migration.key, min(begun, wall))  # another clock may be ahead
        self.forget(migration.key)
        if migration.running:
            self.running[migration.key] = migration.metadata.namespace

    def begin(self, migration: Migration, wall: float) -> None:
        """Record that a Migration begins now."""
        self.running[migration.key] = migration.metadata.namespace
        self._began(migration.key, wall)

    def forget(self, key: str) -> None:
        """Remove a Migration that was deleted, or is over. It still counts for the hour in which it began."""
        self.running.pop(key, None)

    def _began(self, key: str, begun: float) -> None:
        self._begun[key] = begun
        self._first = min(self._first, begun)

    def lacking(self, migration: Migration, limits: RecoveryLimits, wall: float) -> str:
        """Return why a Migration can't begin now, or an empty string. ``wall`` is in seconds since the epoch."""
        namespace, others = migration.metadata.namespace, _by_namespace(migration, self.running)
        running, in_namespace = others.total(), others[namespace]
        if running >= limits.at_once and not is_within_share(namespace, others, 1, limits.at_once):
            return f"{running} are under way: limits.atOnce is {limits.at_once}"
        if in_namespace >= limits.per_namespace:
            return f"{in_namespace} are under way in this namespace: limits.perNamespace is {limits.per_namespace}"
        if wall - self._first >= HOUR_SECONDS:
            self._begun = {key: begun for key, begun in self._begun.items() if wall - begun < HOUR_SECONDS}
            self._first = min(self._begun.values(), default=inf)
        recent = len(self._begun) - (migration.key in self._begun)
        if recent < limits.per_hour or is_within_share(
            namespace, _by_namespace(migration, self._begun), 1, limits.per_hour
        ):
            return ""
        return f"{recent} began within the last hour: limits.perHour is {limits.per_hour}"


def _by_namespace(migration: Migration, others: Iterable[str]) -> Counter[str]:
    """Return how many Migrations other than one count, by namespace. ``others`` are their keys."""
    return Counter(key.partition("/")[0] for key in others if key != migration.key)


class RecoveryMigrationLimits:
    """The limits of all Migrations, and those of Migrations that leave failed or cordoned nodes."""

    def __init__(self) -> None:
        self._all = MigrationLimits()
        self._warranted = MigrationLimits()

    def note(self, migration: Migration, wall: float, *, warranted: bool) -> None:
        """Record the progress of a Migration.

        Args:
            migration: the Migration.
            wall: time in seconds since the epoch.
            warranted: whether it leaves failed or cordoned nodes only.
        """
        self._all.note(migration, wall)
        if not warranted:
            self._warranted.forget(migration.key)
            return
        self._warranted.note(migration, wall)
        if not migration.shrinks and not any(move.to for move in migration.status.moves):
            self._warranted.forget(migration.key)  # its seats have expired

    def others_running(self) -> list[str]:
        """Return the keys of Migrations with seats that do not count as leaving failed or cordoned nodes only."""
        return [key for key in self._all.running if key not in self._warranted.running]

    def begin(self, migration: Migration, wall: float, *, warranted: bool) -> None:
        """Record that a Migration begins now. Arguments are as for `note`."""
        self._all.begin(migration, wall)
        if warranted:
            self._warranted.begin(migration, wall)

    def forget(self, key: str) -> None:
        """Remove a Migration that was deleted, or is over."""
        self._all.forget(key)
        self._warranted.forget(key)

    def lacking(self, migration: Migration, limits: RecoveryLimits, wall: float, *, warranted: bool) -> str:
        """Return why a Migration can't begin now, or an empty string. Arguments are as for `note`."""
        return (self._warranted if warranted else self._all).lacking(migration, limits, wall)
