"""Queue of binds that are pending for a worker. Namespaces take turns, and none can hold all workers.

A webhook that does not answer keeps a worker busy until the bind times out. The owner of such a webhook must not delay
the binds of other namespaces: `NamespaceShares` leaves them idle workers. Within a namespace, gangs that already have
bound members go first, so that they do not stay half bound.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from topo_scheduler.api.annotations import GANG_ID
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, NamespaceShares, loop_time
from topo_scheduler.scheduling.instructions import Bind, DryRunBind

Work = Bind | DryRunBind

WORKERS_PER_RESERVED: Final = 6
"""Of so many workers, one is reserved for namespaces that hold none: 8 of 48."""
HANGING_WORKERS: Final = 4
"""Workers that a namespace may hold while it is marked because its binds hang."""
PROMPT_SECONDS: Final = 1.0
"""A bind that ends within this time was answered promptly."""


def _bind_of(work: Work) -> Bind:
    return work if isinstance(work, Bind) else work.bind


def namespace_of(work: Work) -> str:
    """Return the namespace of the pod to bind."""
    return _bind_of(work).pod.namespace


def gang_of(work: Work) -> str:
    """Return the gang id of the pod to bind; the uid of the pod if it has no gang."""
    bind = _bind_of(work)
    return bind.annotations.get(GANG_ID) or bind.pod.uid


class _NamespaceQueue:
    """Binds of one namespace, by gang and by uid of the pod.

    The binds of a gang stay together. Gangs with bound members go first.
    """

    def __init__(self) -> None:
        self._first: OrderedDict[str, dict[str, Work]] = OrderedDict()
        self._others: OrderedDict[str, dict[str, Work]] = OrderedDict()
        self._unreported: dict[str, str] = {}
        """Gang by uid of the pod, for binds that go first and that `take_unreported` has not returned yet."""

    def __bool__(self) -> bool:
        return bool(self._first or self._others)

    def put(self, work: Work, *, first: bool) -> None:
        gang, uid = gang_of(work), _bind_of(work).pod.uid
        if first:
            self.begins(gang)
        ahead = first or gang in self._first
        (self._first if ahead else self._others).setdefault(gang, {})[uid] = work
        if ahead:
            self._unreported[uid] = gang

    def begins(self, gang: str) -> None:
        """Let the pending binds of a gang go first."""
        if (others := self._others.pop(gang, None)) is not None:
            self._first[gang] = others
            self._unreported |= dict.fromkeys(others, gang)

    def take(self) -> Work:
        """Take the next bind."""
        gang, works = next(iter((self._first or self._others).items()))
        return self._take(gang, next(iter(works)))

    def recall(self, gang: str, uid: str) -> bool:
        """Remove the bind of a pod; return whether it was pending."""
        waits = uid in self._first.get(gang, ()) or uid in self._others.get(gang, ())
        if waits:
            self._take(gang, uid)
        return waits

    def take_unreported(self) -> list[str]:
        """Return the uids of pending pods whose gangs have bound members; each uid only once."""
        unreported, self._unreported = self._unreported, {}
        return list(unreported)

    def _take(self, gang: str, uid: str) -> Work:
        lane = self._first if gang in self._first else self._others
        work = lane[gang].pop(uid)
        if not lane[gang]:
            del lane[gang]
        self._unreported.pop(uid, None)
        return work


class BindQueue:
    """Queue of binds of all namespaces. All methods are called on one event loop.

    Args:
        workers: how many workers take binds, without those that replace workers whose binds hang.
        clock: seconds.
    """

    def __init__(self, workers: int, clock: Callable[[], float] = loop_time) -> None:
        self._waiting: OrderedDict[str, _NamespaceQueue] = OrderedDict()
        self._idle: deque[asyncio.Future[Work]] = deque()
        self._shares = NamespaceShares(
            reserved=workers // WORKERS_PER_RESERVED, per_namespace=None, hanging=HANGING_WORKERS, clock=clock
        )
        self._clock = clock
        self._suspected: dict[str, float] = {}
        """Marked namespaces, and since when: writes may be slow for all. A prompt bind of theirs ends the mark."""
        self._calm = asyncio.Event()
        self._hurried = False

    @property
    def busy(self) -> bool:
        """Whether binds are pending or under way, not counting namespaces that are marked because their binds hang."""
        return any(
            not self._shares.is_marked(namespace)
            for names in (self._waiting, self._shares.holders)
            for namespace in names
        )

    async def calm(self, patience: float) -> None:
        """Wait until the queue is not `busy`, but at most ``patience`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while self.busy and not self._hurried:
                    self._calm.clear()
                    await self._calm.wait()

    def hurry(self) -> None:
        """End every wait of `calm`, from now on: other writes no longer wait for binds."""
        self._hurried = True
        self._calm.set()

    def put(self, work: Work, *, first: bool = False) -> None:
        """Queue a bind. ``first``: ahead of others of its namespace, because members of its gang are bound."""
        namespace = namespace_of(work)
        if namespace not in self._waiting:
            self._waiting[namespace] = _NamespaceQueue()
        self._waiting[namespace].put(work, first=first)
        self._grant()

    def begins(self, work: Work) -> None:
        """Let the other binds of a gang go ahead of others of its namespace, because a member is bound."""
        if (waiting := self._waiting.get(namespace_of(work))) is not None:
            waiting.begins(gang_of(work))

    def recall(self, namespace: str, gang: str, uid: str) -> bool:
        """Drop the pending bind of a pod of a gang; return whether there was one."""
        waiting = self._waiting.get(namespace)
        waited = waiting is not None and waiting.recall(gang, uid)
        if not waiting:
            self._waiting.pop(namespace, None)
        self._note_calm()
        return waited

    def take_stuck(self, namespace: str) -> list[str]:
        """Return the uids of pending pods whose gangs have bound members; each uid only once."""
        waiting = self._waiting.get(namespace)
        return waiting.take_unreported() if waiting is not None else []

    def clear(self) -> None:
        """Forget all pending binds."""
        self._waiting.clear()
        self._note_calm()

    async def take(self) -> Work:
        """Return the next bind for a worker. The worker calls `done` when the bind has ended."""
        worker: asyncio.Future[Work] = asyncio.get_running_loop().create_future()
        self._idle.append(worker)
        self._grant()
        return await worker

    def done(self, work: Work, seconds: float) -> None:
        """Note that a bind ended after ``seconds``."""
        namespace = namespace_of(work)
        self._shares.give_back(namespace)
        idle = namespace not in self._shares.holders and namespace not in self._waiting
        if namespace in self._suspected and (seconds < PROMPT_SECONDS or idle):
            del self._suspected[namespace]
            self._shares.forgive(namespace)
        if seconds < PROMPT_SECONDS:
            self._note_prompt(namespace, self._clock() - seconds)
        self._grant()
        self._note_calm()

    def _note_prompt(self, namespace: str, began: float) -> None:
        """Keep the marks of other namespaces whose binds hang, although a bind that began later was answered."""
        later = began - HANGS_AFTER_SECONDS
        for other in [other for other, since in self._suspected.items() if other != namespace and since <= later]:
            del self._suspected[other]

    def hangs(self, namespace: str) -> None:
        """Note that a bind of a namespace gets no answer while the API server answers other requests."""
        if namespace in self._shares.holders:
            if not self._shares.is_marked(namespace):
                self._suspected[namespace] = self._clock()
            self._shares.hangs(namespace)
            self._note_calm()

    def _note_calm(self) -> None:
        """Wake tasks in `calm` if the queue is not busy."""
        if not self.busy:
            self._calm.set()

    def _grant(self) -> None:
        for ended in self._shares.end_marks():
            self._suspected.pop(ended, None)
        self._forget_cancelled()
        while self._idle and (namespace := self._next()) is not None:
            waiting = self._waiting[namespace]
            work = waiting.take()
            if waiting:
                self._waiting.move_to_end(namespace)
            else:
                del self._waiting[namespace]
            self._shares.take(namespace)
            self._idle.popleft().set_result(work)
            self._forget_cancelled()

    def _forget_cancelled(self) -> None:
        while self._idle and self._idle[0].cancelled():
            self._idle.popleft()

    def _next(self) -> str | None:
        """Return the namespace whose turn is next, among those that may hold one more worker."""
        idle = len(self._idle)
        return next((namespace for namespace in self._waiting if self._shares.may_take(namespace, idle)), None)
