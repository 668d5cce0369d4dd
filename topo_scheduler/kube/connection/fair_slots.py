"""Slots for requests, shared fairly: namespaces take turns, however many requests one of them has.

A bound per namespace is not enough where requests hang: a few namespaces together would hold all slots. So a request
that is not over in time lends its slot to others until it ends. Its namespace still pays for it. And `NamespaceShares`
keeps slots idle for namespaces that hold none, and marks namespaces whose requests hang.

A request hangs if it is still not answered after `HANGS_AFTER_SECONDS`, when one of another namespace, which began
later, is answered within `PATIENCE_SECONDS`. So while the whole API server is slow, no namespace is marked. Only an
attempt counts: a write that pauses between two attempts does not hang, and one that fails proves no answer.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import inf
from typing import Final

from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, NamespaceShares
from topo_scheduler.kube.connection.retrying import Slot

PATIENCE_SECONDS: Final = 1.0
"""Seconds after which a request lends its slot to others."""
LENDABLE_SLOTS: Final = 24
"""Slots that requests which hang lend at once, of each kind: so many additional requests may be in progress."""
SLOTS_PER_RESERVED: Final = 4
"""Of so many slots, one is reserved for namespaces that hold none."""
MARKED_SECONDS: Final = 60.0
"""Seconds for which a namespace stays marked after the last time that one of its requests hung."""
HANGING_SLOTS: Final = 2
"""Slots that a namespace may hold while it is marked because its requests hang."""


def reserved_of(slots: int) -> int:
    """Return how many of ``slots`` are reserved for namespaces that hold none: a quarter, at least one, never all."""
    return min(max(1, slots // SLOTS_PER_RESERVED), slots - 1)


@dataclass(slots=True, eq=False)
class _SlotRequest:
    namespace: str
    began: float = inf
    """When the attempt in progress began, in seconds; infinity if there is none."""


class Loans:
    """Lends slots of requests that are not over in time, up to a limit. Each request holds one slot of its owner."""

    def __init__(self, lendable: int, release: Callable[[], None], hangs: Callable[[str], None]) -> None:
        """Create loans, of which none is given yet.

        Args:
            lendable: slots that are lent at once.
            release: gives a slot back to its owner.
            hangs: called with the namespace of a request that hangs.
        """
        self._lendable = lendable
        self._release = release
        self._hangs = hangs
        self._lent: dict[_SlotRequest, None] = {}
        self._overdue: dict[_SlotRequest, None] = {}
        """Requests that would lend their slots if more were lendable; the oldest first."""

    @contextmanager
    def request(self, namespace: str) -> Iterator[Slot]:
        """Give the slot of a request back when it ends, or earlier if it takes long.

        The request makes each of its attempts in the yielded context.
        """
        request = _SlotRequest(namespace)
        timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._lend, request)
        try:
            yield partial(self._attempt, request)
        finally:
            timer.cancel()
            self._end(request)

    @asynccontextmanager
    async def _attempt(self, request: _SlotRequest) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        began = request.began = loop.time()
        try:
            yield
            if loop.time() - began < PATIENCE_SECONDS:
                self._note_hanging(request)
        finally:
            request.began = inf

    def _note_hanging(self, answered: _SlotRequest) -> None:
        """Report the requests of other namespaces that hang, as one that began after them was answered in time."""
        latest = asyncio.get_running_loop().time() - HANGS_AFTER_SECONDS
        for request in chain(self._lent, self._overdue):
            if request.began <= latest and request.namespace != answered.namespace:
                self._hangs(request.namespace)

    def _lend(self, request: _SlotRequest) -> None:
        if len(self._lent) < self._lendable:
            self._lent[request] = None
            self._release()
        else:
            self._overdue[request] = None

    def _end(self, request: _SlotRequest) -> None:
        self._overdue.pop(request, None)
        if request not in self._lent:
            self._release()
            return
        del self._lent[request]
        if self._overdue:
            oldest = next(iter(self._overdue))
            del self._overdue[oldest]
            self._lend(oldest)


class FairSlots:
    """Slots for requests. No namespace holds more than its share at once, however many it wants.

    Args:
        slots: concurrent requests.
        per_namespace: concurrent requests of one namespace; fewer than ``slots``, so that none can hold all of them.
            None if only the reserve bounds them: then a namespace may have all slots but the reserve.
        lendable: slots that requests which hang may lend at once: as many additional requests may be in progress.
    """

    def __init__(self, slots: int, per_namespace: int | None, *, lendable: int = LENDABLE_SLOTS) -> None:
        self._free = slots
        self._shares = NamespaceShares(
            reserved=reserved_of(slots),
            per_namespace=per_namespace,
            hanging=HANGING_SLOTS,
            marked_seconds=MARKED_SECONDS,
        )
        self._loans = Loans(lendable, self._release, self._shares.hangs)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(len(waiting) for waiting in self._waiting.values())

    @asynccontextmanager
    async def slot(self, namespace: str) -> AsyncIterator[None]:
        """Hold a slot for one attempt at a request on behalf of a namespace."""
        async with self.held(namespace) as attempt, attempt():
            yield

    @asynccontextmanager
    async def held(self, namespace: str) -> AsyncIterator[Slot]:
        """Hold a slot on behalf of a namespace. Only what is done in the yielded context counts as its request."""
        await self._take(namespace)
        with self._loans.request(namespace) as attempt:
            try:
                yield attempt
            finally:
                self._unhold(namespace)

    def _release(self) -> None:
        self._free += 1
        self._grant_free()

    async def _take(self, namespace: str) -> None:
        self._shares.end_marks()
        if namespace not in self._waiting and self._shares.may_take(namespace, self._free):
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
        self._shares.take(namespace)

    def _unhold(self, namespace: str) -> None:
        """Note that a request of a namespace ended. Its slot may be lent, but the namespace may hold one more."""
        self._shares.give_back(namespace)
        self._grant_free()

    def _grant_free(self) -> None:
        self._shares.end_marks()
        while self._free and self._grant():
            pass

    def _grant(self) -> bool:
        """Grant a slot to the namespace that has waited longest; return whether any namespace could have one."""
        for namespace in self._waiting:
            if not self._shares.may_take(namespace, self._free):
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
