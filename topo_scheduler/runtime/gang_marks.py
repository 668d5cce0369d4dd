"""Writes the condition that a gang ran complete: after binds, and again if a write failed.

Without that condition, the next leader cannot tell a gang that lost a member from one that was never complete. It
would roll the gang back. So if a webhook or a policy refuses the condition, the scheduler retries it. The pauses grow,
and the retries go on for as long as the pod is known.

A pending mark is an entry of a queue, not a task, and namespaces share the writes under way. A namespace whose webhook
refuses marks or does not answer delays only its own marks. From the first mark that is not written until one is, they
are pending in a separate lane. All such namespaces share that lane, however many they are. There a namespace pauses
after each mark that is not written. So a namespace with one failed mark does not wait for thousands of marks of others.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.runtime.bind_queue import BindQueue
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.pauses import doubled

log = logging.getLogger(__name__)

DELAY_SECONDS: Final = 1.0
"""Minimum delay of marks of complete gangs, because more binds may follow."""
PATIENCE_SECONDS: Final = 8.0
"""Maximum additional delay while binds go on."""
FIRST_PAUSE_SECONDS: Final = 5.0
LONGEST_PAUSE_SECONDS: Final = 300.0
"""Pause between a mark that could not be written and the next attempt: it doubles each time."""
MARKS_IN_FLIGHT: Final = 9
MARKS_IN_FLIGHT_OF_NAMESPACE: Final = 3
"""Marks at once, in all and of one namespace, in the lane of namespaces whose marks are written."""
FAILING_MARKS_IN_FLIGHT: Final = 3
"""Marks at once of namespaces whose last mark was not written, one of each namespace.

Both lanes together write fewer at once than the limit of pod statuses that are written at once.
"""
PENDING_MARKS_OF_NAMESPACE: Final = 10_000
"""Maximum pending marks of one namespace. Further pods are not marked."""
LAST_SECONDS: Final = 3.0
"""Maximum time to write pending marks at the end of a term."""

Write = Callable[[PodRef, bool], Awaitable[bool]]
"""Writes a mark; returns whether it was written. The second argument is whether this is the first attempt."""


@dataclass(frozen=True, slots=True)
class _WaitingMark:
    pod: PodRef
    failures: int = 0


@dataclass(slots=True)
class _MarkLane:
    """Marks by uid of the pod, of which at most ``limit`` are written at once.

    ``since`` of an entry is when the mark is due, by the clock of the event loop.
    """

    queue: FairQueue[str, _WaitingMark]
    limit: int
    under_way: int = 0

    def __len__(self) -> int:
        return len(self.queue) + self.under_way

    def due(self) -> float | None:
        """Return when the next mark that may be written is due; None if there is none."""
        return self.queue.oldest() if self.under_way < self.limit else None


class GangMarks:
    """Pending marks, and those under way.

    Args:
        binds: the queue of binds, after which marks are written.
        write: writes one mark.
        known: whether the pod of a uid is still known and stays; other marks are dropped.
        start: starts a task of the term that ends by itself.
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
        self._usual = _MarkLane(FairQueue(MARKS_IN_FLIGHT_OF_NAMESPACE), MARKS_IN_FLIGHT)
        self._slow = _MarkLane(FairQueue(1), FAILING_MARKS_IN_FLIGHT)
        self._troubled: dict[str, int] = {}
        """Namespaces whose last mark was not written and which have other pending marks; with the number of failures in
        the slow lane since the last success."""
        self._resting: dict[str, tuple[asyncio.TimerHandle, str]] = {}
        """Timers of namespaces that pause, each with the uid of the pod whose mark failed.

        That mark keeps the place of the namespace in the slow lane until the pause is over.
        """
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._ending = False

    def __len__(self) -> int:
        """Return how many marks are pending or under way."""
        return len(self._usual) + len(self._slow)

    def put(self, pod: PodRef) -> None:
        """Queue the mark of a pod."""
        self._put(_WaitingMark(pod), DELAY_SECONDS)
        if self._done.is_set():
            self._done.clear()
            self._start(self._run(), "marks of complete gangs")

    def hurry(self) -> None:
        """Write pending marks at once, each once more: the term ends."""
        self._ending = True
        for namespace in list(self._resting):
            self._rested(namespace)
        self._binds.hurry()
        self._changed.set()

    async def finish(self, seconds: float = LAST_SECONDS) -> None:
        """Write pending marks at once, for ``seconds`` at most."""
        self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._done.wait()

    # ------------------------------------------------------------ inside

    async def _run(self) -> None:
        """Write marks until none is pending."""
        async with asyncio.TaskGroup() as group:
            while (lane := await self._next_lane()) is not None:
                uid, mark = lane.queue.take()
                if not self._known(uid):
                    self._drop(lane, uid, mark)
                elif lane is self._usual and mark.pod.namespace in self._troubled:
                    lane.queue.done(uid)
                    self._slow.queue.put(uid, mark.pod.namespace, asyncio.get_running_loop().time(), mark)
                else:
                    lane.under_way += 1
                    group.create_task(self._write_mark(lane, uid, mark), name=f"complete {uid}")
                    continue
                await asyncio.sleep(0)  # let other tasks run: thousands of marks may follow
            self._done.set()  # before the next await: a mark that is put from here on starts this task again

    async def _next_lane(self) -> _MarkLane | None:
        """Wait until the next mark is due; return its lane, None if there is no mark."""
        loop = asyncio.get_running_loop()
        while len(self):
            self._changed.clear()
            lanes = [(due, lane) for lane in (self._usual, self._slow) if (due := lane.due()) is not None]
            if not lanes:
                await self._changed.wait()
                continue
            due, lane = min(lanes, key=lambda due_lane: due_lane[0])
            if not self._ending and due > loop.time():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._changed.wait()
            elif self._ending or not self._binds.busy or due + PATIENCE_SECONDS <= loop.time():
                return lane
            else:
                await self._binds.calm(due + PATIENCE_SECONDS - loop.time())
        return None

    async def _write_mark(self, lane: _MarkLane, uid: str, mark: _WaitingMark) -> None:
        namespace, written = mark.pod.namespace, True
        try:
            written = await self._write(mark.pod, not mark.failures)
        except Exception:  # a fault in one mark must stop no other
            log.exception("internal error in a write, please report it: mark of pod uid %s", uid)
            written = False
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
            retry = _WaitingMark(mark.pod, mark.failures + 1)
            self._put(retry, doubled(FIRST_PAUSE_SECONDS, retry.failures, LONGEST_PAUSE_SECONDS))
            self._changed.set()

    def _rested(self, namespace: str) -> None:
        """End the pause of a namespace: its next mark may be written."""
        timer, uid = self._resting.pop(namespace)
        timer.cancel()
        self._slow.queue.done(uid)
        self._changed.set()

    def _pending_of(self, namespace: str) -> int:
        return self._usual.queue.count(namespace) + self._slow.queue.count(namespace)

    def _drop(self, lane: _MarkLane, uid: str, mark: _WaitingMark) -> None:
        """End a mark that was taken from a lane."""
        lane.queue.done(uid)
        if not self._pending_of(mark.pod.namespace):
            self._troubled.pop(mark.pod.namespace, None)
        self._changed.set()

    def _put(self, mark: _WaitingMark, seconds: float) -> None:
        namespace, name, uid = mark.pod.namespace, mark.pod.name, mark.pod.uid
        lane = self._slow if namespace in self._troubled else self._usual
        if self._pending_of(namespace) >= PENDING_MARKS_OF_NAMESPACE:
            log.warning(
                "pod %s/%s does not get its condition %s: too many writes of its namespace are pending; a later leader"
                " may roll its gang back if a member is lost",
                namespace,
                name,
                GANG_COMPLETE,
            )
            return
        lane.queue.put(uid, namespace, asyncio.get_running_loop().time() + seconds, mark)
        self._changed.set()
