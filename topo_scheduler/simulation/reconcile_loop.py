"""The reconcile loop of kubelets and controllers: a task that handles all existing objects, then each change."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable
from typing import Generic, Self, TypeVar

from topo_scheduler.simulation.apiserver import Store, StoreEvent

Turn = TypeVar("Turn", bound=Hashable)


class ReconcileLoop(ABC, Generic[Turn]):
    """Reconciles objects of a store from ``start`` to ``stop``, on the running event loop.

    ``tables`` are the tables that it watches, empty for all. Work that is due later has a timer.
    """

    def __init__(self, store: Store, name: str, tables: Collection[str] = ()) -> None:
        self._store = store
        self._name = name
        self._tables = tables
        self._due: dict[Turn, None] = {}
        self._wake = asyncio.Event()
        self._timers: dict[Turn, asyncio.TimerHandle] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Enqueue work for all existing objects, and from then on for each change."""
        self._store.observe(self._notice)
        for kind in {kind.table: kind for kind in self._store.kinds}.values():
            if not self._tables or kind.table in self._tables:
                for record in self._store.list(kind):
                    self._notice(kind.table, StoreEvent(None, record, record.revision))
        self._task = asyncio.create_task(self._run(), name=self._name)

    async def stop(self) -> None:
        """Stop the loop and its timers; the objects stay unchanged."""
        self._store.ignore(self._notice)
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def _enqueue(self, turn: Turn) -> None:
        self._due[turn] = None
        self._wake.set()

    def _cancel_timer(self, turn: Turn) -> None:
        if timer := self._timers.pop(turn, None):
            timer.cancel()

    @abstractmethod
    def _notice(self, table: str, event: StoreEvent) -> None:
        """Enqueue the work that a change requires. It must not write, since it runs within another write."""

    @abstractmethod
    async def _run(self) -> None:
        """Process the queue for ever."""
