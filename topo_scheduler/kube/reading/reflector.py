"""Follow all objects of a kind: list once, then watch, for as long as the process lives.

Kubernetes does not guarantee delivery: a watch may break, expire or replay. Guarantees in every case:

* The sink's view converges to the server's. A list is the truth at its resourceVersion. An object that it no longer
  contains is reported as deleted. A name that came back with another uid is reported as deleted, then applied.
* A watch moves forward only. Within one kind resourceVersions order the events, so an event that is not after the
  newest seen is a replay and dropped. Where resourceVersions are not integers, the reflector assumes only that equal
  ones are equal.
* An object that does not decode is logged and skipped; the rest of its page or burst is processed.
* No failure of the server ends ``run()``. It ends when cancelled, or when the sink raises, which is a bug.
"""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Generic, NoReturn, TypeVar

import tenacity

from topo_scheduler.api.objects import ListMeta, ObjectMeta, Status
from topo_scheduler.kube.connection.client import SILENCE_SECONDS, Client
from topo_scheduler.kube.connection.errors import (
    Forbidden,
    Gone,
    KubeError,
    NotFound,
    TooLarge,
    Undecodable,
    Unreachable,
    api_error,
    passes,
    pause,
)
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.connection.resources import Object, Resource
from topo_scheduler.kube.connection.retrying import retried
from topo_scheduler.kube.reading.decoding import Bad, Codec, Unchanged
from topo_scheduler.kube.reading.sinks import Batch, Deleted, Sink
from topo_scheduler.kube.reading.slimming import slim_item

logger = logging.getLogger(__name__)

T = TypeVar("T", bound=Object)
Key = tuple[str, str]

LIST_SECONDS = 30.0
"""Timeout of one page, in seconds."""

WATCH_SECONDS = (300, 600)
"""Watch timeout range requested from the server, in seconds: new watches rebalance across restarted API servers."""

PAGE_BYTES = 24 * 1024 * 1024
"""Most bytes of a page. If a page of large objects has more, the reflector requests pages of fewer objects."""

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 30.0
"""Bounds of the backoff window after a failure, in seconds; the delay is random within it (full jitter)."""

HURRY_SECONDS, HURRIED_PAUSE_SECONDS = 10.0, 2.0
"""How long after the start, until the first list, the backoff window stays small, and that window; both in seconds.
A server that has just started answers 403 until it has loaded its roles. The slowest of twenty lists delays the
first decision.
"""

BURST_BYTES = 64 * 1024
"""Bytes of events handed over at once: pods that take long to interpret are large and must not delay other work."""

HEALTHY_SECONDS = 10.0
"""A watch that lived this many seconds, or delivered anything, resets the backoff."""


class Reflector(Generic[T]):
    """Follows one kind. Of each object it keeps only the uid and the resourceVersion."""

    def __init__(
        self,
        client: Client,
        resource: Resource[T],
        sink: Sink[T],
        *,
        namespace: str | None = None,
        page_size: int = 500,
        field_selector: str | None = None,
        label_selector: str | None = None,
        silence: float = SILENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        refused: Callable[[], None] | None = None,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.tried = asyncio.Event()
        """Set once a list of the kind succeeded or failed for the first time."""
        self.resource_version = ""
        self.lists = 0
        self._client = client
        self._sink = sink
        self._codec = Codec(resource)
        self._namespace = namespace
        self._path = resource.collection(namespace)
        self._page_size = self._limit = page_size
        selectors = {"fieldSelector": field_selector, "labelSelector": label_selector}
        self._selectors = {name: value for name, value in selectors.items() if value}
        self._silence = silence
        self._clock = clock
        self._began = clock()
        self._known: dict[Key, tuple[str, str]] = {}
        self._bad: dict[Key, str] = {}
        self._revision: int | None = None  # resource_version as an integer; None if it is not one
        self._heard = 0
        self._last_heard = clock()
        self._stumbled = False
        self._first_refusal = refused
        self._refusals = Outage()
        """Times in which the API server answers, but refuses the requests for this kind."""
        self._waiting: list[asyncio.Future[None]] = []  # callers of relist() …
        self._interruptible: asyncio.Timeout | None = None  # … and the timeout through which they interrupt

    def __len__(self) -> int:
        return len(self._known)

    @property
    def undecodable(self) -> int:
        """Objects that exist but are skipped, because they do not decode."""
        return len(self._bad)

    def staleness(self, now: float) -> float:
        """Return the seconds since the last page, event or bookmark."""
        return max(0.0, now - self._last_heard)

    async def is_ahead(self) -> bool:
        """Return whether the kind was seen at a resourceVersion that the server has not reached.

        That is so after etcd was restored from a backup. A watch from such a resourceVersion stays open and silent.

        Raises:
            KubeError: no answer, or a refusal.
        """
        seen = self._revision
        answer = await self._client.request(
            "GET",
            self._path,
            query={"limit": "1"},
            accept=self.resource.accept(listing=True),
            timeout=LIST_SECONDS,
            most_bytes=PAGE_BYTES,
        )
        revision = _revision(self._codec.page(answer)[0].resource_version)
        return seen is not None and revision is not None and revision < seen

    async def relist(self) -> None:
        """Return when a list that began after this call has been handed to the sink."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._interruptible is not None:
            self._interruptible.reschedule(0)
            self._interruptible = None
        await waiter

    async def run(self) -> NoReturn:
        """Follow the kind until cancelled."""
        while True:
            policy = tenacity.AsyncRetrying(  # a new one each time, so that its backoff starts over
                retry=tenacity.retry_if_exception_type(KubeError),
                wait=self._wait,
                sleep=self._pause,
                before_sleep=self._warn,
                reraise=True,
            )
            await policy(self._turn)

    # ------------------------------------------------------------ a turn: list if needed, then watch

    async def _turn(self) -> None:
        """Return when the next turn may follow at once; raise when it needs a backoff, longer each time."""
        while not self.resource_version or self._waiting:
            await self._list()
        began, heard, failure = self._clock(), self._heard, None
        try:
            await self._unless_relist(self._watch())
        except KubeError as error:
            failure = error
        if isinstance(failure, Gone) or (isinstance(failure, Undecodable) and self._stumbled):
            self.resource_version = ""
        self._stumbled = isinstance(failure, Undecodable)
        if self._waiting:
            return
        if self._heard == heard and self._clock() - began < HEALTHY_SECONDS:
            raise failure or Unreachable(f"WATCH {self._path}: ended at once, without an event")
        if failure is not None:
            # A watch without events ends by its timeout, and an outage is logged when the next turn fails.
            level = logging.DEBUG if isinstance(failure, Unreachable) else logging.INFO
            logger.log(level, "%s; watching again from %s", failure, self.resource_version or "a new list")
            await self._pause(random.uniform(0, FIRST_PAUSE_SECONDS))

    def _wait(self, state: tenacity.RetryCallState) -> float:
        """Return the seconds until the next turn: few until the first list, because a new leader is waiting for it."""
        hurried = not self.synced.is_set() and self._clock() - self._began < HURRY_SECONDS
        error = state.outcome.exception() if state.outcome else None
        return pause(
            state.attempt_number,
            error,
            FIRST_PAUSE_SECONDS,
            HURRIED_PAUSE_SECONDS if hurried else LONGEST_PAUSE_SECONDS,
        )

    async def _pause(self, seconds: float) -> None:
        await self._unless_relist(asyncio.sleep(seconds))

    async def _unless_relist(self, work: Coroutine[None, None, None]) -> None:
        """Run ``work`` to its end, or until a caller of relist() interrupts it."""
        try:
            async with asyncio.timeout(None) as timeout:
                self._interruptible = timeout
                await work
        except TimeoutError:
            if not timeout.expired():
                raise
        finally:
            self._interruptible = None

    def _warn(self, state: tenacity.RetryCallState) -> None:
        self.tried.set()
        error = state.outcome.exception() if state.outcome else None
        trouble = self._client.outage if isinstance(error, Unreachable) else self._refusals
        level = logging.WARNING if trouble.failed(self._clock()) else logging.DEBUG
        advice = ""
        if self._first_refusal is not None and isinstance(error, Forbidden | NotFound) and not self.synced.is_set():
            self._first_refusal()
            self._first_refusal = None
        if isinstance(error, Forbidden):
            where = f"in namespace {self._namespace}" if self._namespace else "in the cluster"
            advice = f" (grant get, list and watch on {self.resource.described} {where})"
        logger.log(level, "%s%s; trying again in %.1f s", error, advice, state.upcoming_sleep)

    def _answered(self) -> None:
        """Log the end of an outage, once for all kinds, and of refusals of this kind."""
        now = self._clock()
        if (seconds := self._client.outage.over(now)) is not None:
            logger.warning("the API server answers again after %.1f s", seconds)
        if (seconds := self._refusals.over(now)) is not None:
            logger.warning("%s can be followed again after %.0f s", self.resource.described, seconds)

    # ------------------------------------------------------------ list

    async def _list(self) -> None:
        waiting, self._waiting = self._waiting, []
        seen: set[Key] = set()
        try:
            version = await self._pages(seen)
        except BaseException:
            self._waiting[:0] = waiting
            raise
        vanished = [Deleted(*key, uid) for key, (uid, _) in self._known.items() if key not in seen]
        for reference in vanished:
            del self._known[reference[:2]]
        for key in self._bad.keys() - seen:
            del self._bad[key]
        if vanished:
            self._sink.deleted(vanished)
        self.resource_version, self._revision = version, _revision(version)
        self._limit = self._page_size
        self.lists += 1
        self._answered()
        self._sink.synced()
        self.synced.set()
        self.tried.set()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)
        # The first lists of all kinds belong to the startup, which logs one line: "caches filled".
        level = logging.INFO if vanished or (seen and self.lists > 1) else logging.DEBUG
        lost = f", {len(vanished)} were deleted meanwhile" if vanished else ""
        logger.log(level, "listed %d %s%s", len(seen), self.resource.described, lost)

    async def _pages(self, seen: set[Key]) -> str:
        """Hand over all pages and return the resourceVersion of the list.

        The request names no resourceVersion, so it gets the newest.
        """
        token = ""
        while True:
            try:
                page = functools.partial(self._page, token)
                metadata, slices = await retried(page, attempts=4, passing=_passes)
            except Gone:
                if token:  # the pages outlived the server's history: fewer and larger ones next time
                    self._limit *= 2
                raise
            except TooLarge as error:
                if self._limit == 1:
                    raise
                self._limit = max(1, self._limit // 4)
                logger.info("%s; asking for pages of %d", error, self._limit)
                continue
            for objects in slices:
                batch = Batch(self._sink)
                for item in objects:
                    seen.add(_key(item))
                    if not isinstance(item, Unchanged):
                        self._apply(item, batch)
                batch.flush()
                self._last_heard = self._clock()
                await asyncio.sleep(0)
            token = metadata.continue_
            if not token:
                return metadata.resource_version

    async def _page(self, token: str) -> tuple[ListMeta, Iterator[list[T | Bad | Unchanged]]]:
        query = {"limit": str(self._limit), **self._selectors}
        if token:
            query["continue"] = token
        accept = self.resource.accept(listing=True)
        answer = await self._client.request(
            "GET", self._path, query=query, accept=accept, timeout=LIST_SECONDS, most_bytes=PAGE_BYTES
        )
        if self._limit < self._page_size and len(answer) < PAGE_BYTES // 8:
            self._limit = min(self._page_size, 2 * self._limit)
        return self._codec.page(answer, self._is_known if self._known else None)

    # ------------------------------------------------------------ watch

    async def _watch(self) -> None:
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self.resource_version,
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),
            **self._selectors,
        }
        accept = self.resource.accept(listing=False)
        async with self._client.stream(self._path, query=query, accept=accept, silence=self._silence) as burst:
            async for lines in burst:
                self._answered()
                for part in _parts(lines):
                    batch = Batch(self._sink)
                    try:
                        for line in part:
                            self._event(line, batch)
                    finally:
                        batch.flush()  # events before a failed line are valid
                    await asyncio.sleep(0)

    def _event(self, line: bytes, batch: Batch[T]) -> None:
        kind, item = self._codec.event(line)
        if isinstance(item, Status):
            raise api_error(item, request=f"WATCH {self._path}")
        self._heard += 1
        self._last_heard = self._clock()
        version = item.metadata.resource_version
        revision = _revision(version)
        if revision is not None and self._revision is not None and revision <= self._revision:
            return
        if kind == "DELETED":
            self._delete(item, batch)
        elif kind != "BOOKMARK":
            self._apply(item, batch)
        if version:
            self.resource_version, self._revision = version, revision

    # ------------------------------------------------------------ known objects

    def _is_known(self, metadata: ObjectMeta) -> bool:
        return self._known.get((metadata.namespace, metadata.name)) == (metadata.uid, metadata.resource_version)

    def _apply(self, item: T | Bad, batch: Batch[T]) -> None:
        key = _key(item)
        state = (item.metadata.uid, item.metadata.resource_version)
        known = self._known.get(key)
        if known == state:
            return
        if known is not None and known[0] != state[0]:
            del self._known[key]
            batch.delete(Deleted(*key, known[0]))
        if isinstance(item, Bad):
            self._report(key, item)
            return
        self._bad.pop(key, None)
        self._known[key] = state
        slim_item(item)
        batch.apply(item)

    def _delete(self, item: T | Bad, batch: Batch[T]) -> None:
        key = _key(item)
        self._bad.pop(key, None)
        known = self._known.get(key)
        if known is not None and known[0] == item.metadata.uid:
            del self._known[key]
            batch.delete(Deleted(*key, known[0]))

    def _report(self, key: Key, item: Bad) -> None:
        version = item.metadata.resource_version
        if self._bad.get(key) != version:
            self._bad[key] = version
            name = "/".join(part for part in key if part) or "(no name)"
            where = {"namespace": key[0]} if key[0] else None
            text = "%s %s is left out: it does not decode: %s"
            logger.error(text, self.resource.kind, name, item.problem, extra=where)


def _key(item: Object | Bad | Unchanged) -> Key:
    return item.metadata.namespace, item.metadata.name


def _revision(version: str) -> int | None:
    return int(version) if version.isdecimal() and version.isascii() else None


def _passes(error: BaseException) -> bool:
    return passes(error) or isinstance(error, Undecodable)


def _parts(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the non-empty lines in parts of about `BURST_BYTES`."""
    part: list[bytes] = []
    size = 0
    for line in filter(None, lines):
        part.append(line)
        size += len(line)
        if size >= BURST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
