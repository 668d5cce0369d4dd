"""Reads the Migrations that changed: kopf hears who changed and that it did, not what a tenant wrote into it."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.kube.errors import KubeError, NotFound
from topo_scheduler.kube.migrations import MigrationWriter, Unreadable

log = logging.getLogger(__name__)

AT_ONCE: Final = 4
"""Migrations that are read at once: each may have 1.5 MiB."""
AGAIN_SECONDS: Final = 5.0
"""Seconds after which one is read again that could not be."""


class MigrationReader:
    """What is to be read, by namespace and name; once for each, however often it changed meanwhile.

    Args:
        writer: who asks the API server.
        start: runs something that ends by itself as part of the term.
        found: called with what was read, unless it was deleted meanwhile.
    """

    def __init__(
        self,
        writer: MigrationWriter,
        start: Callable[[Coroutine[Any, Any, None], str], None],
        found: Callable[[Migration | Unreadable], None],
    ) -> None:
        self._writer = writer
        self._start = start
        self._found = found
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._changed: dict[tuple[str, str], tuple[str, str]] = {}
        """Uid and version that was heard of last."""
        self._reading: set[tuple[str, str]] = set()

    def __len__(self) -> int:
        return len(self._changed)

    def changed(self, namespace: str, name: str, uid: str, version: str) -> None:
        """Read one that appeared or changed."""
        key = namespace, name
        self._changed[key] = uid, version
        if key not in self._reading:
            self._reading.add(key)
            self._start(self._read(key), f"read migration {name}")

    def gone(self, namespace: str, name: str) -> None:
        """Read one no more: it was deleted."""
        self._changed.pop((namespace, name), None)

    def clear(self) -> None:
        """Read none of those that changed so far."""
        self._changed.clear()

    async def _read(self, key: tuple[str, str]) -> None:
        try:
            while (heard := self._changed.get(key)) is not None:
                try:
                    async with self._slots:
                        found = await self._writer.read(*key)
                        # Here, while the slot is held: no more than so many exist at once.
                        if self._changed.get(key) == heard:
                            del self._changed[key]
                            self._found(found)
                        del found
                except NotFound:
                    if self._changed.get(key) == heard:
                        del self._changed[key]
                except KubeError as error:
                    log.warning("Migration %s/%s is not carried on, as it can't be read: %s", *key, error)
                    await asyncio.sleep(AGAIN_SECONDS)
        finally:
            self._reading.discard(key)
