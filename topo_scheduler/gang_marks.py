"""Writes the condition that a gang ran complete: behind binds, and again where it could not be written.

Without that condition the next leader takes a gang that lost a member for one that was never complete, and rolls it
back. So a refusal (a webhook's, or a policy's) is not the end: the condition is tried again with growing pauses for as
long as the pod is known. What waits is an entry of a queue, not a task, and namespaces share what is under way. Those
whose webhooks refuse or do not answer hold up only themselves: from the first mark that is not written until one is,
their marks wait in a lane of their own, however many such namespaces there are. There a namespace rests after each mark
that is not written: one of which a single mark failed does not wait for thousands of marks of others.
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
IN_FLIGHT: Final = 9
IN_FLIGHT_OF_NAMESPACE: Final = 3
"""Marks at once, in all and of one namespace."""
TROUBLED_IN_FLIGHT: Final = 3
"""Marks at once of namespaces whose last one was not written, one of each: all together are fewer than the statuses of
pods that are written at once."""
WAITING_OF_NAMESPACE: Final = 10_000
"""Marks of one namespace that wait: what comes beyond these is not marked."""
LAST_SECONDS: Final = 3.0
"""Longest wait for marks at the end of a term."""

Write = Callable[[PodRef, bool], Awaitable[bool]]
"""Writes a mark; returns whether it did. Told whether this is the first attempt."""


@dataclass(frozen=True, slots=True)
class _Mark:
    pod: PodRef
    failures: int = 0


@dataclass(slots=True)
class _Lane:
    """Marks by uid of the pod; ``since`` is when one is due, by the clock of the event loop. ``most`` at once."""

    queue: FairQueue[str, _Mark]
    most: int
    under_way: int = 0

    def __len__(self) -> int:
        return len(self.queue) + self.under_way

    def due(self) -> float | None:
        """Return when the next mark is due that may be written; None where there is none."""
        return self.queue.oldest() if self.under_way < self.most else None


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
        self._usual = _Lane(FairQueue(IN_FLIGHT_OF_NAMESPACE), IN_FLIGHT)
        self._slow = _Lane(FairQueue(1), TROUBLED_IN_FLIGHT)
        self._troubled: dict[str, int] = {}
        """Namespaces whose last mark was not written, and of which others wait; with how many were not since then."""
        self._resting: dict[str, tuple[asyncio.TimerHandle, str]] = {}
        """Those that rest: the last mark, by uid of the pod, holds their place in the lane until that is over."""
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._ending = False

    def __len__(self) -> int:
        """Return how many wait or are under way."""
        return len(self._usual) + len(self._slow)

    def put(self, pod: PodRef) -> None:
        """Let a pod be marked before long."""
        self._put(_Mark(pod), DELAY_SECONDS)
        if self._done.is_set():
            self._done.clear()
            self._start(self._run(), "marks of complete gangs")

    def hurry(self) -> None:
        """Write what waits at once, each once more: the term ends."""
        self._ending = True
        for namespace in list(self._resting):
            self._rested(namespace)
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
            while (lane := await self._turn()) is not None:
                uid, mark = lane.queue.take()
                if not self._known(uid):
                    self._drop(lane, uid, mark)
                elif lane is self._usual and mark.pod.namespace in self._troubled:
                    lane.queue.done(uid)
                    self._slow.queue.put(uid, mark.pod.namespace, asyncio.get_running_loop().time(), mark)
                else:
                    lane.under_way += 1
                    group.create_task(self._one(lane, uid, mark), name=f"complete {uid}")
                    continue
                await asyncio.sleep(0)  # thousands may follow
            self._done.set()  # before anything is awaited: what is put from here on starts this anew

    async def _turn(self) -> _Lane | None:
        """Wait until the next mark is to be written; return the lane it is in, None where there is no mark."""
        loop = asyncio.get_running_loop()
        while len(self):
            self._changed.clear()
            lanes = [(due, lane) for lane in (self._usual, self._slow) if (due := lane.due()) is not None]
            if not lanes:
                await self._changed.wait()
                continue
            due, lane = min(lanes, key=lambda one: one[0])
            if not self._ending and due > loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
            elif self._ending or not self._binds.busy or due + PATIENCE_SECONDS <= loop.time():
                return lane
            else:
                await self._binds.calm(due + PATIENCE_SECONDS - loop.time())
        return None

    async def _one(self, lane: _Lane, uid: str, mark: _Mark) -> None:
        namespace, written = mark.pod.namespace, True
        try:
            written = await self._write(mark.pod, not mark.failures)
        finally:
            lane.under_way -= 1
            if written or self._ending or not self._known(uid):
                self._drop(lane, uid, mark)
        if written:
            self._troubled.pop(namespace, None)
        elif not self._ending and self._known(uid):
            failures = self._troubled.setdefault(namespace, 0)
            if lane is self._slow:
                self._troubled[namespace] = failures = failures + 1
                pause = doubled(FIRST_PAUSE_SECONDS, failures, LONGEST_PAUSE_SECONDS)
                self._resting[namespace] = asyncio.get_running_loop().call_later(pause, self._rested, namespace), uid
            else:
                lane.queue.done(uid)
            again = _Mark(mark.pod, mark.failures + 1)
            self._put(again, doubled(FIRST_PAUSE_SECONDS, again.failures, LONGEST_PAUSE_SECONDS))
            self._changed.set()

    def _rested(self, namespace: str) -> None:
        """Let a namespace that rested have its turn."""
        timer, uid = self._resting.pop(namespace)
        timer.cancel()
        self._slow.queue.done(uid)
        self._changed.set()

    def _waiting(self, namespace: str) -> int:
        return self._usual.queue.count(namespace) + self._slow.queue.count(namespace)

    def _drop(self, lane: _Lane, uid: str, mark: _Mark) -> None:
        """Let what was taken from a lane have ended."""
        lane.queue.done(uid)
        if not self._waiting(mark.pod.namespace):
            self._troubled.pop(mark.pod.namespace, None)
        self._changed.set()

    def _put(self, mark: _Mark, seconds: float) -> None:
        namespace, name, uid = mark.pod.namespace, mark.pod.name, mark.pod.uid
        lane = self._slow if namespace in self._troubled else self._usual
        if self._waiting(namespace) >= WAITING_OF_NAMESPACE:
            log.warning("pod %s/%s is not marked: too many of its namespace wait", namespace, name)
            return
        lane.queue.put(uid, namespace, asyncio.get_running_loop().time() + seconds, mark)
        self._changed.set()
