"""Slots for requests, shared fairly: namespaces take turns, however many requests one of them has.

A bound per namespace is not enough where requests hang: a few namespaces together would hold all slots. So a request
that is not over in time lends its slot to others until it ends. Its namespace still pays for it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

PATIENCE_SECONDS: Final = 1.0
"""Seconds after which a request lends its slot to others."""


class FairSlots:
    """Bounds concurrent requests, in all and per namespace; namespaces with pending requests take turns.

    Args:
        slots: concurrent requests.
        each: concurrent requests of one namespace; fewer than ``slots``, so that no namespace can hold all of them.
        lendable: slots that requests which hang may lend at once: as many more requests may be under way.
    """

    def __init__(self, slots: int, each: int, *, lendable: int = 0) -> None:
        self._free = slots
        self._each = each
        self._lendable = lendable
        self._overdue: dict[object, None] = {}
        """Requests that would lend their slots if more were lendable; the oldest first."""
        self._lent: set[object] = set()
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot for one request on behalf of a namespace."""
        await self._take(namespace)
        holder = object()
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._lend, holder) if self._lendable else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._overdue.pop(holder, None)
            self._give_back(namespace, holder)

    def _lend(self, holder: object) -> None:
        """Let others use the slot of a request that hangs, as far as slots are lendable."""
        if len(self._lent) < self._lendable:
            self._lent.add(holder)
            self._free += 1
            self._grant_free()
        else:
            self._overdue[holder] = None

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

    def _give_back(self, namespace: str, holder: object = None) -> None:
        if holder in self._lent:
            self._lent.remove(holder)
            if self._overdue:
                oldest = next(iter(self._overdue))
                del self._overdue[oldest]
                self._lend(oldest)
        else:
            self._free += 1
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        self._grant_free()

    def _grant_free(self) -> None:
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
