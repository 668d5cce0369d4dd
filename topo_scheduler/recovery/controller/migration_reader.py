"""Reads the Migrations that changed: kopf receives only their metadata, not what a tenant wrote into them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.kube.connection.errors import KubeError, is_missing, with_remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.writing.migrations import MigrationWriter, Unreadable

log = logging.getLogger(__name__)

CONCURRENT_READS: Final = 4
"""Migrations that are read at once: each may have 1.5 MiB. Namespaces take turns, and of one are read 3 at most."""
AGAIN_SECONDS: Final = 5.0
"""Seconds after which a failed read is retried."""


@dataclass(slots=True)
class MigrationReader:
    """Migrations to read, by namespace and name; each once, however often it changed meanwhile.

    Args:
        writer: reads from the API server.
        start: starts a task that ends by itself, as part of the term.
        handle: called with each Migration that was read, unless it was deleted meanwhile.
        missing: called with namespace, name and uid of a Migration that does not exist any more.
    """

    writer: MigrationWriter
    start: Callable[[Coroutine[Any, Any, None], str], None]
    handle: Callable[[Migration | Unreadable], None]
    missing: Callable[[str, str, str], None]
    _slots: FairSlots = field(default_factory=lambda: FairSlots(CONCURRENT_READS, None, lendable=0))
    """It lends none: what a slow answer holds takes memory too."""
    _changed: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """Uid and version of the latest change."""
    _reading: set[tuple[str, str]] = field(default_factory=set)

    def __len__(self) -> int:
        return len(self._changed)

    def changed(self, namespace: str, name: str, uid: str, version: str) -> None:
        """Read a Migration that appeared or changed."""
        key = namespace, name
        self._changed[key] = uid, version
        if key not in self._reading:
            self._reading.add(key)
            self.start(self._read(key), f"read migration {name}")

    def gone(self, namespace: str, name: str) -> None:
        """Cancel the read of a Migration that was deleted."""
        self._changed.pop((namespace, name), None)

    def clear(self) -> None:
        """Cancel all reads."""
        self._changed.clear()

    async def _read(self, key: tuple[str, str]) -> None:
        try:
            while (latest := self._changed.get(key)) is not None:
                try:
                    async with self._slots.slot(key[0]):
                        migration = await self.writer.read(*key)
                        # Handled while the slot is held, so that at most `CONCURRENT_READS` exist at a time.
                        if self._changed.get(key) == latest:
                            del self._changed[key]
                            self.handle(migration)
                        del migration
                except KubeError as error:
                    if is_missing(error, key[1]):
                        if self._changed.get(key) == latest:
                            del self._changed[key]
                            self.missing(*key, latest[0])
                        continue
                    where = {"namespace": key[0]}
                    log.warning(
                        "Migration %s/%s is not continued, as it can't be read: %s",
                        *key,
                        with_remedy(error),
                        extra=where,
                    )
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._reading.discard(key)
