"""A lane for writes that may wait: they go behind the binds, but never wait long.

Telling people what happened costs the API server as much as a bind does. During a burst of binds the lane
stands still, until the oldest thing in it has waited for ``patience``; from then on it moves at its own
bounded concurrency. Of one namespace only a part of that is under way at once: its webhooks may not answer.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, Generic, NoReturn

from topo_scheduler.kube.fair_queue import FairQueue, K, T

POLL_SECONDS = 0.05
"""How often a lane that stands still looks whether it may move."""

CONCURRENCY: Final = 16
OF_NAMESPACE: Final = 6
"""Writes of one kind at once, in all and of one namespace."""


class Lane(Generic[K, T]):
    """Does what an owner's queue holds. The queue stays with the owner, who may reorder, merge or drop."""

    def __init__(
        self,
        *,
        queue: FairQueue[K, T],
        do: Callable[[T], Awaitable[None]],
        busy: Callable[[], bool],
        concurrency: int = CONCURRENCY,
        patience: float,
        settle: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``do`` must not raise.

        What is younger than ``settle`` seconds is left to the owner, who may replace it.
        """
        self._queue = queue
        self._do = do
        self._busy = busy
        self._slots = asyncio.Semaphore(concurrency)
        self._patience = patience
        self._settle = settle
        self._clock = clock
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._doing = 0
        self._flushing = 0

    def wake(self) -> None:
        """The queue has changed."""
        self._wake.set()

    async def run(self) -> NoReturn:
        """Work until cancelled; what is under way then is cancelled too, so ``flush`` first."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._slots.acquire()
                await self._turn()
                self._doing += 1
                group.create_task(self._one(*self._queue.take()))
        raise AssertionError("a lane ends by being cancelled")

    async def flush(self, timeout: float) -> bool:
        """Wait for no bind any more; return whether all was done within ``timeout`` seconds."""
        if not self._doing and self._queue.oldest() is None:
            return True
        self._flushing += 1
        self._settled.clear()
        self._wake.set()
        try:
            async with asyncio.timeout(timeout):
                await self._settled.wait()
        except TimeoutError:
            return False
        finally:
            self._flushing -= 1
        return True

    async def _turn(self) -> None:
        while True:
            self._wake.clear()
            since = self._queue.oldest()
            if since is None:
                if not self._doing:
                    self._settled.set()
                await self._wake.wait()
            elif not self._flushing and self._clock() - since < self._settle:
                await asyncio.sleep(min(POLL_SECONDS, self._settle))
            elif self._flushing or not self._busy() or self._clock() - since >= self._patience:
                return
            else:
                await asyncio.sleep(POLL_SECONDS)

    async def _one(self, key: K, item: T) -> None:
        try:
            await self._do(item)
        finally:
            self._queue.done(key)
            self._doing -= 1
            self._slots.release()
            self._wake.set()  # what could not be taken beside this item may be takeable now
