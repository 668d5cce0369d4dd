"""Binds that wait for a worker: namespaces take turns, and none can hold all workers.

A webhook that does not answer keeps a worker for as long as a bind may take. Whoever owns such a webhook must not hold
up the binds of others, so a namespace may hold only so many workers as leave some idle, and few once its binds hang.
The rule of shares is that of dynamic thresholds for shared buffers (Choudhury and Hahne, 1998).
"""

import asyncio
from collections import Counter, OrderedDict, deque
from typing import Final

from topo_scheduler.scheduling.instructions import Bind, Rehearse

Work = Bind | Rehearse

PER_IDLE: Final = 5
"""Workers that a namespace may hold for each that is idle: 40 of 48 where no other namespace binds."""
HANGING: Final = 4
"""Workers that a namespace may hold while its binds hang."""
SOON_SECONDS: Final = 1.0
"""A bind that ends within this time shows that those of its namespace hang no more."""


def namespace_of(work: Work) -> str:
    """Return the namespace of the pod that is to be bound."""
    return (work if isinstance(work, Bind) else work.bind).pod.namespace


class BindQueue:
    """All methods are called on one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[Work]] = OrderedDict()
        self._idle: deque[asyncio.Future[Work]] = deque()
        self._held: Counter[str] = Counter()
        self._hanging: set[str] = set()

    @property
    def busy(self) -> bool:
        """Whether binds wait or are under way, other than of namespaces whose binds hang."""
        return any(namespace not in self._hanging for names in (self._waiting, self._held) for namespace in names)

    def put(self, work: Work) -> None:
        """Let a bind wait for its turn."""
        self._waiting.setdefault(namespace_of(work), deque()).append(work)
        self._grant()

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting.clear()

    async def take(self) -> Work:
        """Return the next bind for a worker, which calls `done` when it has ended."""
        worker: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
        self._idle.append(worker)
        self._grant()
        return await worker

    def done(self, work: Work, seconds: float) -> None:
        """Note that a bind ended, and after how many seconds."""
        namespace = namespace_of(work)
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        if seconds < SOON_SECONDS or (namespace not in self._held and namespace not in self._waiting):
            self._hanging.discard(namespace)
        self._grant()

    def hangs(self, namespace: str) -> None:
        """Note that the API server answers, but not to a bind of a namespace."""
        if namespace in self._held:
            self._hanging.add(namespace)

    def _grant(self) -> None:
        self._forget_cancelled()
        while self._idle and (namespace := self._next()) is not None:
            waiting = self._waiting[namespace]
            work = waiting.popleft()
            if waiting:
                self._waiting.move_to_end(namespace)
            else:
                del self._waiting[namespace]
            self._held[namespace] += 1
            self._idle.popleft().set_result(work)
            self._forget_cancelled()

    def _forget_cancelled(self) -> None:
        while self._idle and self._idle[0].cancelled():
            self._idle.popleft()

    def _next(self) -> str | None:
        """Return the namespace that waits longest for its turn and may hold one more worker."""
        share = PER_IDLE * len(self._idle)
        for namespace in self._waiting:
            if self._held.get(namespace, 0) < (HANGING if namespace in self._hanging else share):
                return namespace
        return None
