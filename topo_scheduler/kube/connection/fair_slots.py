"""Slots for requests, shared fairly: namespaces take turns, however many requests one of them has.

A bound per namespace is not enough where requests hang: a few namespaces together would hold all slots. So a request
that is not over in time lends its slot to others until it ends. Its namespace still pays for it.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

PATIENCE_SECONDS: Final = 1.0
"""Seconds after which a request lends its slot to others."""
LENDABLE: Final = 24
"""Slots that requests which hang lend at once, of each kind: so many additional requests may be in progress."""


class Loans:
    """Lends slots of requests that are not over in time, up to a limit. Each request holds one slot of its owner."""

    def __init__(self, lendable: int, release: Callable[[], None]) -> None:
        """``lendable``: slots that are lent at once; ``release`` gives a slot back to its owner."""
        self._lendable = lendable
        self._release = release
        self._lent: set[object] = set()
        self._overdue: dict[object, None] = {}
        """Requests that would lend their slots if more were lendable; the oldest first."""

    @contextmanager
    def request(self) -> Iterator[None]:
        """Give the slot of a request back when it ends, or earlier if it hangs."""
        request = object()
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._lend, request) if self._lendable else None
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            self._end(request)

    def _lend(self, request: object) -> None:
        if len(self._lent) < self._lendable:
            self._lent.add(request)
            self._release()
        else:
            self._overdue[request] = None

    def _end(self, request: object) -> None:
        self._overdue.pop(request, None)
        if request not in self._lent:
            self._release()
            return
        self._lent.remove(request)
        if self._overdue:
            oldest = next(iter(self._overdue))
            del self._overdue[oldest]
            self._lend(oldest)


class FairSlots:
    """Slots for requests. No namespace holds more than a few at once, however many it wants.

    Args:
        slots: concurrent requests.
        each: concurrent requests of one namespace; fewer than ``slots``, so that no namespace can hold all of them.
        lendable: slots that requests which hang may lend at once: as many additional requests may be in progress.
    """

    def __init__(self, slots: int, each: int, *, lendable: int = LENDABLE) -> None:
        self._free = slots
        self._each = each
        self._loans = Loans(lendable, self._release)
        self._held: dict[str, int] = {}
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot for one request on behalf of a namespace."""
        await self._take(namespace)
        with self._loans.request():
            try:
                yield
            finally:
                self._unhold(namespace)

    def _release(self) -> None:
        self._free += 1
        self._grant_free()

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
                self._unhold(namespace)  # granted at the moment of the cancellation
                self._release()
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

    def _unhold(self, namespace: str) -> None:
        """Note that a request of a namespace ended. Its slot may be lent, but the namespace may hold one more."""
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
