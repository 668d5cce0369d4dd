"""Finds unfinished Migrations by what they do, so that no step looks at all of them: tenants create thousands."""

from collections.abc import Collection, Iterable

from topo_scheduler.api.migrations import Migration
from topo_scheduler.recovery.model.migration_state import Tracked


class MigrationIndex:
    """Unfinished Migrations by phase, by the pods that they move, and by the Migration for which they make room."""

    def __init__(self) -> None:
        self.running: dict[str, Tracked] = {}
        """Those for which places are held, by namespace and name. Read only."""
        self.moves_ended = 0
        """Counts changes by which Migrations stopped moving pods, so that others may move these. Read only."""
        self._indexed: dict[str, tuple[Migration, dict[str, None]]] = {}
        """The version of each Migration by which it is found, with the uids of the pods that it moves."""
        self._movers: dict[str, tuple[Tracked, ...]] = {}
        """By the uid of a pod that they move: hardly ever more than one."""
        self._helpers: dict[str, dict[str, Tracked]] = {}
        """By namespace and name of the Migration for which they make room."""
        self._readers: dict[str, dict[str, Tracked]] = {}
        """Those that wait until a pod was read, by its uid."""
        self._unreadable: set[str] = set()
        """Uids of the pods of `_readers` whose last read failed."""

    def put(self, tracked: Tracked) -> None:
        """Index a Migration by its current version, and by the write that is on its way.

        Otherwise another Migration would be planned with the same pods before the answer.
        """
        migration = tracked.migration
        key, moved = migration.key, tracked.intended_moves
        self._drop_version(key, moved)
        self._indexed[key] = migration, moved
        if migration.running:
            self.running[key] = tracked
        for uid in moved:
            self._movers[uid] = (*self._movers.get(uid, ()), tracked)
        if beneficiary := migration.spec.makes_room_for:
            self._helpers.setdefault(beneficiary, {})[key] = tracked

    def remove(self, tracked: Tracked) -> None:
        """Remove a Migration that is over, or gone."""
        self._drop_version(tracked.migration.key)
        self.stop_reading(tracked)

    def movers(self, uid: str) -> tuple[Tracked, ...]:
        """Return the Migrations that move a pod."""
        return self._movers.get(uid, ())

    def moved(self) -> Collection[str]:
        """Return the uids of all pods that Migrations move."""
        return self._movers.keys()

    def helpers(self, key: str) -> Collection[Tracked]:
        """Return the Migrations that make room for another, given its namespace and name."""
        return self._helpers.get(key, {}).values()

    # ------------------------------------------------------------ pods that are being read

    def reads(self, tracked: Tracked, uids: Iterable[str]) -> None:
        """Record that a Migration waits until these pods were read, and for no others."""
        self.stop_reading(tracked)
        tracked.learning = frozenset(uids)
        for uid in tracked.learning:
            self._readers.setdefault(uid, {})[tracked.migration.key] = tracked

    def stop_reading(self, tracked: Tracked) -> None:
        """Record that a Migration waits for no pod."""
        for uid in tracked.learning:
            self.goes_on_without(tracked, uid)
        tracked.learning = frozenset()

    def readers(self, uid: str, key: str = "") -> list[Tracked]:
        """Return the Migrations that wait until a pod was read; of these only ``key`` unless it is empty."""
        readers = self._readers.get(uid, {})
        if not key:
            return list(readers.values())
        return [readers[key]] if key in readers else []

    def was_read(self, uid: str) -> list[Tracked]:
        """Record that a pod was read; return the Migrations that waited for it."""
        self._unreadable.discard(uid)
        return list(self._readers.pop(uid, {}).values())

    def read_failed(self, uid: str) -> None:
        """Record that a pod can't be read."""
        if uid in self._readers:
            self._unreadable.add(uid)

    def goes_on_without(self, tracked: Tracked, uid: str) -> None:
        """Record that a Migration does not wait any more until a pod was read."""
        readers = self._readers.get(uid, {})
        if readers.pop(tracked.migration.key, None) is not None and not readers:
            del self._readers[uid]
            self._unreadable.discard(uid)

    def is_read(self, uid: str) -> bool:
        """Return whether any Migration waits until a pod was read."""
        return uid in self._readers

    def is_readable(self, uid: str) -> bool:
        """Return whether any Migration waits until a pod was read, and its last read has not failed."""
        return uid in self._readers and uid not in self._unreadable

    # ------------------------------------------------------------ helpers

    def _drop_version(self, key: str, moved: Collection[str] = ()) -> None:
        """Drop a version of a Migration; ``moved`` are uids of the pods that the next one moves."""
        if key not in self._indexed:
            return
        migration, before = self._indexed.pop(key)
        self.running.pop(key, None)
        self.moves_ended += any(uid not in moved for uid in before)
        for uid in before:
            if others := tuple(mover for mover in self._movers[uid] if mover.migration.key != key):
                self._movers[uid] = others
            else:
                del self._movers[uid]
        if beneficiary := migration.spec.makes_room_for:
            helpers = self._helpers[beneficiary]
            del helpers[key]
            if not helpers:
                del self._helpers[beneficiary]
