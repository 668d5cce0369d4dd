"""Low-priority writes: binds go first, but the delay is bounded.

Reporting to users costs the API server as much as a bind does. During a burst of binds the writer pauses until its
oldest item has waited for ``patience`` seconds. From then on it runs at its own bounded concurrency. Each namespace
gets only a part of that concurrency, because its webhooks may not answer. See `NamespaceShares`. After writes about
large objects a namespace rests. See `WritePace`.

If the API server answers slowly, it has too much to do, and binds wait as well. So the part of a namespace that a slow
write took rests for a multiple of that time. A namespace then writes less often, the slower the answers are.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import Final, Generic, NoReturn

from topo_scheduler.kube.connection.fair_slots import LENDABLE_SLOTS, Loans
from topo_scheduler.kube.connection.retrying import Slot
from topo_scheduler.kube.writing.fair_queue import FairQueue, K, T
from topo_scheduler.kube.writing.write_pace import USUAL_ANSWER_BYTES

logger = logging.getLogger(__name__)

POLL_SECONDS = 0.05
"""Interval, in seconds, at which a paused writer checks whether it may continue."""

PROMPT_SECONDS: Final = 0.025
"""A write that takes longer than this was answered slowly: usual ones take a fifth of it."""
SLOW_REST_FACTOR: Final = 4.0
"""Rest after a slow write, as a multiple of the time beyond `PROMPT_SECONDS`."""
LONGEST_SLOW_REST_SECONDS: Final = 2.0

CONCURRENT_WRITES: Final = 16
WRITES_OF_NAMESPACE: Final = 6
"""Concurrent writes of one kind, in all and per namespace."""


@dataclass(slots=True)
class WriteSlot:
    """A `Slot` for the attempts at one write, which counts the bytes of the answers."""

    attempt: Slot
    received: int = 0

    def __call__(self) -> AbstractAsyncContextManager[None]:
        """Hold the slot for one attempt."""
        return self.attempt()


class LowPriorityWriter(Generic[K, T]):
    """Processes an owner's queue. The queue stays with the owner, which may reorder, merge or drop items."""

    def __init__(
        self,
        *,
        queue: FairQueue[K, T],
        do: Callable[[T, WriteSlot], Awaitable[None]],
        busy: Callable[[], bool],
        concurrency: int = CONCURRENT_WRITES,
        patience: float,
        settle: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``do`` makes each attempt in the context that it gets, counts the bytes of answers, and must not raise.

        The writer does not take items younger than ``settle`` seconds, since the owner may replace them.
        """
        self._queue = queue
        self._do = do
        self._busy = busy
        self._idle = concurrency
        self._loans = Loans(LENDABLE_SLOTS, self._release, queue.hangs)
        self._patience = patience
        self._settle = settle
        self._clock = clock
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._hurried = asyncio.Event()
        """Set while `flush` waits: no write rests meanwhile."""
        self._doing = 0
        self._flushing = 0

    def wake(self) -> None:
        """Notify the writer that the queue has changed."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Work until cancelled; that also cancels items in progress, so call ``flush`` first."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._turn()
                key, item = self._queue.take(self._idle)
                self._idle -= 1
                self._doing += 1
                group.create_task(self._process(key, item))
        raise AssertionError("a writer ends by being cancelled")

    async def flush(self, timeout: float) -> bool:
        """Stop waiting for binds; return whether all items were done within ``timeout`` seconds."""
        if self._nothing_left:
            return True
        self._flushing += 1
        self._hurried.set()
        self._settled.clear()
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait()
        except TimeoutError:
            return False
        finally:
            self._flushing -= 1
            if not self._flushing:
                self._hurried.clear()
        return True

    @property
    def _nothing_left(self) -> bool:
        return not self._doing and not len(self._queue)

    async def _turn(self) -> None:
        while True:
            self._wake.clear()
            since = self._queue.oldest(self._idle)
            if since is None:
                if self._nothing_left:
                    self._settled.set()
                await self._wake.wait()
            elif not self._flushing and self._clock() - since < self._settle:
                await asyncio.sleep(min(POLL_SECONDS, self._settle))
            elif self._flushing or not self._busy() or self._clock() - since >= self._patience:
                return
            else:
                await asyncio.sleep(POLL_SECONDS)

    def _release(self) -> None:
        self._idle += 1
        self._wake.set()

    async def _process(self, key: K, item: T) -> None:
        loop = asyncio.get_running_loop()
        namespace, received, took, began = self._queue.namespace_of(key), 0, 0.0, loop.time()
        try:
            try:
                with self._loans.request(namespace) as attempt:
                    slot = WriteSlot(attempt)
                    await self._do(item, slot)
                    received = slot.received
            except Exception:  # a fault in one write must stop no other
                logger.exception("internal error in a write, please report it: %s", key)
            took = loop.time() - began
            if received <= USUAL_ANSWER_BYTES:  # otherwise the whole namespace rests
                await self._rest(took)
        finally:
            if rest := self._queue.done(key, received, took):
                loop.call_later(rest, self._end_rest, namespace)
            self._doing -= 1
            self._wake.set()  # items of the same key or namespace may be available now

    async def _rest(self, took: float) -> None:
        """Keep the namespace's part of the concurrency for a while after a slow write, unless `flush` waits."""
        rest = min(LONGEST_SLOW_REST_SECONDS, SLOW_REST_FACTOR * (took - PROMPT_SECONDS))
        if rest > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await self._hurried.wait()

    def _end_rest(self, namespace: str) -> None:
        self._queue.rested(namespace)
        self._wake.set()
