"""Refresh many unwatched owners concurrently, so that a slow one does not delay the others."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from topo_scheduler.kube.reading.owner_chains import Key


class Refreshes:
    """Runs ``refresh`` for due keys: at most ``per_namespace`` at once per namespace, in order of arrival.

    ``refresh`` bounds the requests of all namespaces together, and ends by itself. A key is not queued again until
    its refresh has ended.
    """

    def __init__(self, refresh: Callable[[Key], Awaitable[None]], per_namespace: int) -> None:
        self._refresh = refresh
        self._per_namespace = per_namespace
        self._due: dict[str, deque[Key]] = {}
        self._queued: set[Key] = set()
        self._workers: dict[str, set[asyncio.Task[None]]] = {}

    def __len__(self) -> int:
        return len(self._queued)

    def start(self, key: Key, group: asyncio.TaskGroup) -> None:
        """Refresh a key as a task of ``group``, unless it is queued already."""
        if key in self._queued:
            return
        namespace = key[0]
        self._queued.add(key)
        self._due.setdefault(namespace, deque()).append(key)
        workers = self._workers.setdefault(namespace, set())
        if len(workers) < self._per_namespace:
            workers.add(group.create_task(self._work(namespace), name=f"owners of namespace {namespace}"))

    async def _work(self, namespace: str) -> None:
        due, workers = self._due[namespace], self._workers[namespace]
        try:
            while due:
                key = due.popleft()
                try:
                    await self._refresh(key)
                finally:
                    self._queued.discard(key)
        finally:
            task = asyncio.current_task()
            assert task is not None
            workers.discard(task)
            if not workers:
                self._workers.pop(namespace, None)
                self._queued.difference_update(self._due.pop(namespace, ()))
