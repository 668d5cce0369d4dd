"""Climb from a pod to the workload its user wrote, whatever its kind.

Users annotate the workload, and Kubernetes copies none of that to the pods. So the directory climbs along the
controller references to find the annotations. It has two sources: reflectors for watched kinds, and a GET for all
others. It keeps the answer to a GET, and refreshes it while the owner is in use.

Guarantees: ``resolve`` never blocks, and returns ``Missing`` until the API server has answered for an owner. A
reference counts only if its object has the kind, name and namespace that the reference says. Uids alone could be
borrowed from another namespace.

``Chain.gone`` reports an owner that was deleted, or is being deleted: the garbage collector deletes its pods next.

* The watch of a watched owner reports its deletion.
* The directory reads an unwatched owner again every ``NEEDED_SECONDS`` while pods below it are pending. It also does
  so at once when a watched owner below it is deleted.
* If the API server no longer serves the kind of a known owner, the owner is gone with its CustomResourceDefinition.
* Every read of an unwatched owner also checks whether it is suspended or scaled to 0: the pods below it are deleted
  next. The directory reads a halted owner again as soon as the scheduler checks a pod below it, as it may have been
  resumed.

``confirm`` reads all owners of an object again, before the scheduler does something for it that can't be undone.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import OWNER_KINDS, Object, Resource
from topo_scheduler.kube.reading.fetched_owners import FetchedOwner, FetchedOwners
from topo_scheduler.kube.reading.owner_chains import (
    Absent,
    Chain,
    ChainLink,
    Key,
    Missing,
    Unconfirmed,
    changed,
    described,
    is_meant,
    key_of,
    named,
    owner_of,
)
from topo_scheduler.kube.reading.owner_reader import OwnerReader
from topo_scheduler.kube.reading.owner_refresh import Refreshes
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.kube.reading.watched_owners import WatchedOwners

logger = logging.getLogger(__name__)

MAX_CHAIN_OWNERS = 8
"""More owners above one another than any workload has; a longer chain ends here."""

REFRESH_SECONDS = 60.0
"""Seconds after which the directory reads an unwatched owner again."""

NEEDED_SECONDS = 15.0
"""The same while pods below it are pending: the scheduler must not place them once the owner is deleted."""

HALTED_SECONDS = 1.0
"""The same for a suspended owner, once the scheduler checks a pod below it: a resumed owner's pods must not wait."""

UNANSWERED_MOST_SECONDS = 120.0
"""The same for owners for which the API server gave no answer: the interval doubles each time, up to this."""

REFRESH_TIMEOUT_SECONDS = 12.0
"""Longest time that one request of a refresh holds its slot, in seconds."""

IDLE_SECONDS = 600.0
"""The directory drops an owner that was neither resolved nor needed for this many seconds, and stops refreshing it."""

TICK_SECONDS = 5.0

ARRIVAL_SECONDS = 0.3
"""Seconds to wait for a watched owner to arrive: the watch of pods is often a little ahead of that of Jobs."""

CONCURRENT_READS = 8
CONCURRENT_CONFIRMATIONS = 16
"""Concurrent requests before evictions, in addition to the other requests."""
CONCURRENT_READS_OF_NAMESPACE = 4
"""Concurrent requests for pods of one namespace, so that no namespace delays all others."""


class OwnerDirectory:
    """Known workloads by uid. The directory calls ``on_change`` with the uid of each owner that changed.

    ``needed`` returns whether any pending pod is below the owner with a given uid. The directory keeps such an owner
    fresh even if no caller resolves it, since a change of it may let the pod be scheduled. ``annotations`` are read
    beside our own.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_change: Callable[[str], None] = lambda uid: None,
        needed: Callable[[str], bool] = lambda uid: False,
        kinds: Sequence[Resource[Any]] = OWNER_KINDS,
        clock: Callable[[], float] = time.monotonic,
        annotations: Collection[str] = (),
    ) -> None:
        self._client = client
        self._annotations = annotations
        self._on_change = on_change
        self._needed = needed
        self._clock = clock
        self._reader = OwnerReader(client, kinds, clock=clock, annotations=annotations)
        self._watched = WatchedOwners()
        self._fetched = FetchedOwners(needed)
        self._arrivals: dict[str, asyncio.Event] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._slots = FairSlots(CONCURRENT_READS, CONCURRENT_READS_OF_NAMESPACE)
        self._confirmations = FairSlots(CONCURRENT_CONFIRMATIONS, CONCURRENT_READS_OF_NAMESPACE)
        self._confirmed: dict[Key, float] = {}
        """When the last confirmation that got an answer was requested."""
        self._refreshes = Refreshes(self._refresh, CONCURRENT_READS_OF_NAMESPACE)
        self._outdated = asyncio.Event()
        self._lost: set[tuple[str, str]] = set()
        """API versions and kinds of owners that were read and can't be read any more."""

    def __len__(self) -> int:
        return len(self._watched) + len(self._fetched)

    def sink(self, resource: Resource[Any]) -> "OwnerSink":
        """Return the sink for the reflector of a watched kind."""
        return OwnerSink(self, resource)

    # ------------------------------------------------------------ lookup

    def resolve(self, metadata: ObjectMeta) -> Chain | Missing:
        """Return the owners of an object from known data; ``Missing`` names the first unknown one."""
        owners: list[ChainLink] = []
        gone_reason = deleted = unread = ""
        namespace, reference = metadata.namespace, metadata.controller
        while reference is not None:
            if len(owners) == MAX_CHAIN_OWNERS or any(owner.uid == reference.uid for owner in owners):
                broken = f"{described(reference)} closes a circle, or is owner {MAX_CHAIN_OWNERS + 1}"
                return Chain(tuple(owners), broken, gone=gone_reason, deleted=deleted, unread=unread)
            link = self._find(namespace, reference)
            if link is None:
                return Missing(namespace, reference)
            if isinstance(link, Absent):
                deleted = deleted or (link.reason if link.gone else "")
                unconfirmed = not (link.gone or link.forbidden)
                return Chain(
                    tuple(owners), link.reason, link.forbidden, gone_reason or deleted, deleted, unconfirmed, unread
                )
            deleted = deleted or (f"{described(reference)} is being deleted" if link.deleting else "")
            gone_reason = gone_reason or deleted or link.stopped
            unread = unread or link.unreadable
            owners.append(link)
            namespace, reference = link.namespace, link.controller
        return Chain(tuple(owners), gone=gone_reason, deleted=deleted, unread=unread)

    def _find(self, namespace: str, reference: OwnerReference) -> ChainLink | Absent | None:
        link: ChainLink | Absent | None = self._watched.get(reference.uid)
        if link is None:
            fetched = self._fetched.get(key_of(namespace, reference))
            if fetched is None:
                return None
            fetched.used = self._clock()
            link = fetched.answer
            if isinstance(link, ChainLink) and link.halted and fetched.used - fetched.asked > HALTED_SECONDS:
                fetched.asked = -inf
                self._outdated.set()
        if isinstance(link, ChainLink) and not is_meant(link, namespace, reference):
            return Absent(f"{described(reference)} is not what its uid belongs to")
        return link

    # ------------------------------------------------------------ requests

    async def complete(self, metadata: ObjectMeta) -> Chain:
        """Return the owners of an object, and fetch missing ones from the server; raises as ``fetch``."""
        while isinstance(known := self.resolve(metadata), Missing):
            await self.fetch(known.namespace, known.reference)
        return known

    async def fetch(self, namespace: str, reference: OwnerReference) -> ChainLink | Absent:
        """Fetch an owner from the server and remember the answer.

        If several callers fetch one owner at once, only the first sends a request.

        Raises:
            KubeError: no answer after some attempts; then nothing is remembered.
        """
        lock = self._locks.setdefault(key_of(namespace, reference), asyncio.Lock())
        async with lock:
            known = self._find(namespace, reference) or await self._arrival(namespace, reference)
            if known is not None:
                return known
            halts, slot = not self._reader.knows(reference), partial(self._slots.slot, namespace)
            answer = await self._reader.read(namespace, reference, halts=halts, slot=slot)
            now = self._clock()
            if reference.uid not in self._watched:
                self._fetched.put(namespace, reference, answer, now)
            return self._find(namespace, reference) or answer

    async def confirm(self, metadata: ObjectMeta, *, age: float, within: float) -> Chain | Unconfirmed:
        """Return the owners of an object, with no answer requested more than ``age`` seconds before this call.

        Concurrent callers share an answer that is on its way, whenever it was requested. It requests watched kinds
        too, since their watch may lag behind. `Unconfirmed` if the server has not answered for all of them ``within``
        this many seconds.
        """
        try:
            async with asyncio.timeout(within):
                known = await self.complete(metadata)
                asking = [self._confirm(*link, age) for link in _links(metadata, known)]
                answers = await asyncio.gather(*asking, return_exceptions=True)
                for failed in answers:
                    if isinstance(failed, BaseException):
                        raise failed
                unread = next((answer for answer in answers if isinstance(answer, str) and answer), "")
        except (TimeoutError, KubeError) as error:
            return self._unconfirmed(metadata, error, within)
        confirmed = self.resolve(metadata)
        if isinstance(confirmed, Missing):
            return self._unconfirmed(metadata, TimeoutError(), within)
        return replace(confirmed, unread=confirmed.unread or unread)

    def _unconfirmed(self, metadata: ObjectMeta, error: Exception, within: float) -> Unconfirmed:
        """Log and return why the owners of an object are not confirmed."""
        known = self.resolve(metadata)
        references = [reference for _, reference in _links(metadata, known)] if isinstance(known, Chain) else []
        if isinstance(known, Missing):
            references.append(known.reference)
        reason = next(filter(None, map(self._reader.refusal, references)), "")
        if not reason:
            owner = described(metadata.controller) if metadata.controller is not None else metadata.name
            reason = f"the API server did not answer within {within:g} s whether {owner} and its owners exist"
        cause = f": {error}" if isinstance(error, KubeError) else ""
        where = {"namespace": metadata.namespace}
        text = "owners of %s/%s are not confirmed: %s%s"
        logger.warning(text, metadata.namespace, metadata.name, reason, cause, extra=where)
        return Unconfirmed(reason)

    async def _confirm(self, namespace: str, reference: OwnerReference, age: float) -> str:
        """Read one owner; return why nothing may be evicted for pods below it, or an empty string.

        The watch of a watched owner reports its other changes, since it may be ahead of this answer.
        """
        key = key_of(namespace, reference)
        known_at, oldest, requested_at = self._confirmed.get(key, -inf), self._clock() - age, -inf

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            nonlocal requested_at
            async with self._confirmations.slot(namespace):
                requested_at = self._clock()
                yield

        async with self._locks.setdefault(key, asyncio.Lock()):
            # All callers that waited for an answer share it, however slow it was.
            latest_at = self._confirmed.get(key, -inf)
            if latest_at > known_at or latest_at >= oldest:
                return ""
            answer = await self._reader.read(namespace, reference, halts=True, slot=slot)
            stopped = answer.stopped if isinstance(answer, ChainLink) else ""
            self._answered(namespace, reference, answer)
            if isinstance(answer, Absent) and answer.forbidden:
                return answer.reason
            if stopped:
                return stopped
            self._confirmed[key] = requested_at
            return ""

    def _answered(self, namespace: str, reference: OwnerReference, answer: ChainLink | Absent) -> None:
        """Apply a newer answer for a known owner."""
        watched, fetched = self._watched.get(reference.uid), self._fetched.get(key_of(namespace, reference))
        if watched is not None and is_meant(watched, namespace, reference):
            # Its watch reports all other changes.
            if isinstance(answer, Absent) and answer.gone:
                self._watched.pop(reference.uid)
                self._fetched.put(namespace, reference, answer, self._clock())
                self._on_change(reference.uid)
            elif isinstance(answer, ChainLink) and answer.deleting and not watched.deleting:
                self._watched.put(answer)
                self._keep_needed()
                self._on_change(reference.uid)
        elif fetched is not None:
            before = fetched.answer
            self._fetched.update(fetched, _after(before, answer))
            self._report_lost(before, fetched.answer)
            if changed(before, fetched.answer):
                self._on_change(reference.uid)

    def _report_lost(self, before: ChainLink | Absent, now: ChainLink | Absent) -> None:
        """Log once per kind, until it can be read again, that owners of it can't be read any more."""
        if not isinstance(before, ChainLink) or not isinstance(now, ChainLink):
            return
        kind = now.api_version, now.kind
        if now.unreadable and not before.unreadable and kind not in self._lost:
            self._lost.add(kind)
            logger.warning("%s", now.unreadable)
        elif before.unreadable and not now.unreadable:
            self._lost.discard(kind)

    # ------------------------------------------------------------ refresh

    async def run(self) -> None:
        """Keep fetched owners fresh while they are in use, and forget the others; until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    async with asyncio.timeout(TICK_SECONDS):
                        await self._outdated.wait()
                except TimeoutError:
                    pass
                self._outdated.clear()
                self._start_refreshes(group)

    def _start_refreshes(self, group: asyncio.TaskGroup) -> None:
        now = self._clock()
        self._confirmed = {key: at for key, at in self._confirmed.items() if now - at < REFRESH_SECONDS}
        for key, fetched in self._fetched.items():
            needed = self._needed(fetched.reference.uid)
            if needed:
                fetched.used = now
            if now - fetched.used >= IDLE_SECONDS:
                self._fetched.pop(key)
            elif isinstance(fetched.answer, Absent) and fetched.answer.gone and not fetched.answer.unserved:
                continue
            elif now - fetched.asked >= _refresh_age(fetched, needed=needed):
                self._refreshes.start(key, group)

    async def _refresh(self, key: Key) -> None:
        fetched = self._fetched.get(key)
        if fetched is None:
            return
        namespace, reference = fetched.namespace, fetched.reference

        @asynccontextmanager
        async def slot() -> AsyncIterator[None]:
            async with self._slots.slot(namespace):
                fetched.asked = self._clock()
                async with asyncio.timeout(REFRESH_TIMEOUT_SECONDS):
                    yield

        fetched.asked = self._clock()
        halts = not self._reader.knows(reference)
        try:
            answer = await self._reader.read(namespace, reference, attempts=1, halts=halts, slot=slot)
        except (TimeoutError, KubeError) as error:
            fetched.unanswered += 1
            logger.debug("%s is not refreshed: %r", described(reference), error)
            return
        fetched.unanswered = 0
        if self._fetched.get(key) is fetched:
            self._answered(namespace, reference, answer)

    async def _arrival(self, namespace: str, reference: OwnerReference) -> ChainLink | Absent | None:
        if not self._reader.knows(reference):
            return None
        event = self._arrivals.setdefault(reference.uid, asyncio.Event())
        try:
            async with asyncio.timeout(ARRIVAL_SECONDS):
                await event.wait()
        except TimeoutError:
            pass
        finally:
            self._arrivals.pop(reference.uid, None)
        return self._find(namespace, reference)

    # ------------------------------------------------------------ deliveries of reflectors

    def _applied(self, resource: Resource[Any], objects: Sequence[Object]) -> None:
        for item in objects:
            owner = owner_of(resource, item, self._annotations)
            key = (owner.namespace, *named(owner), owner.uid)
            fetched = self._fetched.get(key)
            before = self._watched.get(owner.uid) or (fetched.answer if fetched else None)
            if self._watched.put(owner):
                self._fetched.pop(key)
                self._keep_needed()
            elif fetched is not None:
                self._fetched.update(fetched, owner)
            if (arrival := self._arrivals.get(owner.uid)) is not None:
                arrival.set()
            if before is not None and changed(before, owner):
                self._on_change(owner.uid)

    def _keep_needed(self) -> None:
        """Keep watched owners that lost their room as fetched ones if pods need them: their changes still count."""
        for owner in self._watched.take_lost():
            if self._needed(owner.uid):
                self._fetched.put(owner.namespace, owner.reference, owner, self._clock())

    def _deleted(self, resource: Resource[Any], references: Sequence[Deleted]) -> None:
        now = self._clock()
        for deleted in references:
            owner = self._watched.pop(deleted.uid)
            if owner is None:
                key = (deleted.namespace, resource.group, resource.kind, deleted.name, deleted.uid)
                if (fetched := self._fetched.get(key)) is not None:
                    fetched.asked = -inf
                    self._outdated.set()
                continue
            controller = owner.controller
            if controller is not None and (above := self._fetched.get(key_of(owner.namespace, controller))) is not None:
                above.asked = -inf  # the deletion below may follow from its deletion
                self._outdated.set()
            if self._needed(owner.uid):
                answer = Absent(f"{described(owner.reference)} was deleted", gone=True)
                self._fetched.put(owner.namespace, owner.reference, answer, now)
                self._on_change(owner.uid)


class OwnerSink:
    """Delivers one watched kind to the directory."""

    def __init__(self, directory: OwnerDirectory, resource: Resource[Any]) -> None:
        self._directory = directory
        self._resource = resource

    def applied(self, objects: Sequence[Object]) -> None:
        """These objects exist now."""
        self._directory._applied(self._resource, objects)

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These objects no longer exist; for a pod that still refers to one, a GET answers."""
        self._directory._deleted(self._resource, references)

    def synced(self) -> None:
        """Do nothing: the directory fetches whatever is missing."""


def _links(metadata: ObjectMeta, chain: Chain) -> list[tuple[str, OwnerReference]]:
    """Return the references that lead up a chain, each with the namespace to read it in."""
    above = [(owner.namespace, owner.controller) for owner in chain.owners]
    links = [(metadata.namespace, metadata.controller), *above]
    return [(namespace, reference) for namespace, reference in links if reference is not None][:MAX_CHAIN_OWNERS]


def _refresh_age(fetched: FetchedOwner, *, needed: bool) -> float:
    """Return the seconds after which the directory reads an owner again."""
    usual = NEEDED_SECONDS if needed else REFRESH_SECONDS
    if needed and isinstance(fetched.answer, ChainLink) and fetched.answer.halted:
        usual = min(usual, TICK_SECONDS)
    return min(UNANSWERED_MOST_SECONDS, usual * 2.0 ** min(fetched.unanswered, 8))


def _after(before: ChainLink | Absent, answer: ChainLink | Absent) -> ChainLink | Absent:
    """Return the known state of an owner after an answer.

    If the kind of an owner is no longer served, the owner was deleted with it. If an owner can no longer be read,
    its last known state remains. Without its annotations, a gang would become single pods.
    """
    was_there = isinstance(before, ChainLink) or before.gone
    if isinstance(answer, Absent) and answer.forbidden and was_there:
        if isinstance(before, Absent):
            return before
        why = f"{answer.reason}; its last known state is used"
        return before if before.unreadable else replace(before, unreadable=why)
    if isinstance(answer, Absent) and answer.unserved and was_there:
        return Absent(f"{answer.reason} any more, so it was deleted", gone=True, unserved=True)
    return answer
