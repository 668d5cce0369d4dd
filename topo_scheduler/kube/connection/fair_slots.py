"""Slots for requests, shared fairly: namespaces take turns, however many requests one of them has."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairSlots:
    """Bounds concurrent requests, in all and per namespace; namespaces with pending requests take turns.

    Args:
        slots: concurrent requests.
        each: concurrent requests of one namespace; fewer than ``slots``, so that no namespace can hold all of them.
    """

    def __init__(self, slots: int, each: int) -> None:
        self._free = slots
        self._each = each
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot for one request on behalf of a namespace."""
        await self._take(namespace)
        try:
            yield
        finally:
            self._give_back(namespace)

    async def _take(self, namespace: str) -> None:
        if self._free and self._held.get(namespace, 0) < self._each and namespace not in self._waiting:
            self._hold(namespace)
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(namespace, deque()).append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._give_back(namespace)  # granted at the moment of the cancellation
            else:
                self._leave(namespace, granted)
            raise

    def _leave(self, namespace: str, granted: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(namespace)
        if waiting is not None and granted in waiting:
            waiting.remove(granted)
            if not waiting:
                del self._waiting[namespace]

    def _hold(self, namespace: str) -> None:
        self._free -= 1
        self._held[namespace] = self._held.get(namespace, 0) + 1

    def _give_back(self, namespace: str) -> None:
        self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        while self._free and self._grant():
            pass

    def _grant(self) -> bool:
        """Grant a slot to the namespace that has waited longest; return whether any namespace could have one."""
        for namespace in list(self._waiting):
            if self._held.get(namespace, 0) >= self._each:
                continue
            waiting = self._waiting[namespace]
            granted = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(namespace)
            else:
                del self._waiting[namespace]
            if granted.cancelled():
                return True
            self._hold(namespace)
            granted.set_result(None)
            return True
        return False
