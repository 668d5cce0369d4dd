"""Writes the condition that a gang ran complete: behind binds, and again where it could not be written.

Without that condition the next leader takes a gang that lost a member for one that was never complete, and rolls it
back. So a refusal (a webhook's, or a policy's) is not the end: the condition is tried again with growing pauses for as
long as the pod is known. What waits is an entry of a queue, not a task, and namespaces share what is under way: those
whose webhooks refuse or do not answer hold up only themselves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from topo_scheduler.bind_queue import BindQueue
from topo_scheduler.kube.fair_queue import FairQueue
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.pauses import doubled

log = logging.getLogger(__name__)

DELAY_SECONDS: Final = 1.0
"""How long marks of complete gangs stand back in any case: more binds may follow."""
PATIENCE_SECONDS: Final = 8.0
"""How much longer they stand back while binds go on."""
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 300.0
"""From a mark that could not be written to the next attempt: twice as long each time."""
IN_FLIGHT: Final = 12
IN_FLIGHT_OF_NAMESPACE: Final = 3
"""Marks at once, in all and of one namespace: fewer than statuses of pods are written at once."""
WAITING_OF_NAMESPACE: Final = 10_000
"""Marks of one namespace that wait: one that can't be written beyond these is not tried again."""
LAST_SECONDS: Final = 3.0
"""Longest wait for marks at the end of a term."""

Write = Callable[[PodRef, bool], Awaitable[bool]]
"""Writes a mark; ``False`` where it may be written later. Told whether this is the first attempt."""


@dataclass(frozen=True, slots=True)
class _WaitingMark:
    pod: PodRef
    failures: int = 0


class GangMarks:
    """Marks that wait, and those under way.

    Args:
        binds: behind which marks stand back.
        write: writes one.
        known: whether the pod of a uid is still known: marks of others are dropped.
        start: runs something that ends by itself as part of the term.
    """

    def __init__(
        self,
        binds: BindQueue,
        write: Write,
        known: Callable[[str], bool],
        start: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._binds = binds
        self._write = write
        self._known = known
        self._start = start
        self._queue: FairQueue[str, _WaitingMark] = FairQueue(IN_FLIGHT_OF_NAMESPACE)
        """By uid of the pod; ``since`` is when the mark is due, by the clock of the event loop."""
        self._under_way = 0
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._ending = False

    def __len__(self) -> int:
        """Return how many wait or are under way."""
        return len(self._queue) + self._under_way

    def put(self, pod: PodRef) -> None:
        """Let a pod be marked before long."""
        self._put(_WaitingMark(pod), DELAY_SECONDS)
        if self._done.is_set():
            self._done.clear()
            self._start(self._run(), "marks of complete gangs")

    def hurry(self) -> None:
        """Write what waits at once, each once more: the term ends."""
        self._ending = True
        self._binds.hurry()
        self._changed.set()

    async def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Write what waits at once, for so many seconds at most."""
        self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        """Write marks until none waits."""
        async with asyncio.TaskGroup() as group:
            while await self._turn():
                uid, mark = self._queue.take()
                self._under_way += 1
                group.create_task(self._one(uid, mark), name=f"complete {uid}")
            self._done.set()  # before anything is awaited: what is put from here on starts this anew

    async def _turn(self) -> bool:
        """Wait until the next mark is to be written; return whether there is one."""
        loop = asyncio.get_running_loop()
        while len(self):
            self._changed.clear()
            due = self._queue.oldest() if self._under_way < IN_FLIGHT else None
            if due is None:
                await self._changed.wait()
            elif not self._ending and due > loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
            elif self._ending or not self._binds.busy or due + PATIENCE_SECONDS <= loop.time():
                return True
            else:
                await self._binds.calm(due + PATIENCE_SECONDS - loop.time())
        return False

    async def _one(self, uid: str, mark: _WaitingMark) -> None:
        written = False
        try:
            gone = mark.failures and not self._known(uid)
            written = bool(gone) or await self._write(mark.pod, not mark.failures)
        finally:
            self._queue.done(uid)
            self._under_way -= 1
            self._changed.set()
        if not written and not self._ending:
            self._again(_WaitingMark(mark.pod, mark.failures + 1))

    def _again(self, mark: _WaitingMark) -> None:
        if self._queue.count(mark.pod.namespace) >= WAITING_OF_NAMESPACE:
            log.warning("pod %s/%s is not marked: too many of its namespace wait", mark.pod.namespace, mark.pod.name)
            return
        self._put(mark, doubled(FIRST_PAUSE_SECONDS, mark.failures, LONGEST_PAUSE_SECONDS))

    def _put(self, mark: _WaitingMark, seconds: float) -> None:
        due = asyncio.get_running_loop().time() + seconds
        self._queue.put(mark.pod.uid, mark.pod.namespace, due, mark)
        self._changed.set()
