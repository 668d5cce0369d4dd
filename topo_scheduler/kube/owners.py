"""Climb from a pod to the workload its user wrote, whatever its kind.

Users annotate the workload, and Kubernetes copies nothing of that to the pods, so it is looked for upward
along the controller references. Two sources answer: reflectors for the kinds that are watched, and a GET for
all others, whose answer is kept and refreshed for as long as somebody asks.

What always holds: ``resolve`` never waits, and says ``Missing`` as long as the API server has not answered
for an owner. A reference counts only if the object it leads to has the kind, the name and the namespace it says:
uids alone could be borrowed from another namespace.

An owner that was deleted, or is being deleted, is reported by ``Chain.gone``: the garbage collector deletes its
pods next. A watched owner is known to be gone from its watch. One that is not watched is asked for again every
``NEEDED_SECONDS`` as long as pods below it are pending, and at once when a watched owner below it is deleted.
An owner that was there and whose kind the API server serves no more is gone with its CustomResourceDefinition.
One that is not watched is also read for being suspended or scaled to 0: the pods below it are deleted next. It is asked
for again as soon as a pod below it is looked at, as it may have been resumed.
``confirm`` asks for all owners of an object again, before something is done for it that can't be undone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any
from weakref import WeakValueDictionary

from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.errors import KubeError
from topo_scheduler.kube.fair_slots import FairSlots
from topo_scheduler.kube.owner_chains import (
    Absent,
    Chain,
    ChainLink,
    Key,
    Missing,
    changed,
    described,
    is_meant,
    key_of,
    named,
    owner_of,
)
from topo_scheduler.kube.owner_reader import OwnerReader
from topo_scheduler.kube.owner_refresh import Refreshes
from topo_scheduler.kube.resources import OWNER_KINDS, Object, Resource
from topo_scheduler.kube.sinks import Deleted

logger = logging.getLogger(__name__)

DEPTH = 8
"""More owners above one another than any workload has; a chain that is longer ends here."""

REFRESH_SECONDS = 60.0
"""Age at which an owner that is not watched is asked for again."""

NEEDED_SECONDS = 15.0
"""The same while pods below it are pending: they must not be scheduled once it is deleted."""

HALTED_SECONDS = 1.0
"""The same for one that is suspended, as soon as a pod below it is looked at: those of a resumed one must not wait."""

UNANSWERED_MOST_SECONDS = 120.0
"""The same for owners of which the API server gave no answer: the age doubles each time, up to this."""

REFRESH_TIMEOUT_SECONDS = 12.0
"""Longest time that one refresh holds its slot."""

IDLE_SECONDS = 600.0
"""An owner nobody resolved or needed for this long is dropped, and not asked for again."""

TICK_SECONDS = 5.0

ARRIVAL_SECONDS = 0.3
"""How long a watched owner is waited for: the watch of pods is often a little ahead of that of Jobs."""

CONCURRENCY = 8
CONFIRMATIONS = 16
"""Requests at once before evictions, beside the others."""
EACH = 4
"""Requests at once for pods of one namespace, so that no namespace holds up all others."""

MOST_FETCHED = 20_000
"""Owners kept that are not watched; beyond them those that no pending pod needs go, the least recently used first."""


@dataclass(slots=True)
class _Fetched:
    namespace: str
    reference: OwnerReference
    answer: ChainLink | Absent
    asked: float
    used: float
    unanswered: int = 0
    """Refreshes in a row without an answer."""


class OwnerDirectory:
    """What is known of workloads, by uid. ``on_change`` is told the uid of one that changed.

    ``needed`` says of a uid whether anything that waits stands below it: such an owner is kept fresh though nobody
    resolves it, as a change of it may be what is waited for.
    """

    def __init__(
        self,
        client: Client,
        *,
        on_change: Callable[[str], None] = lambda uid: None,
        needed: Callable[[str], bool] = lambda uid: False,
        kinds: Sequence[Resource[Any]] = OWNER_KINDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._on_change = on_change
        self._needed = needed
        self._clock = clock
        self._reader = OwnerReader(client, kinds, clock=clock)
        self._watched: dict[str, ChainLink] = {}
        self._fetched: dict[Key, _Fetched] = {}
        """By all that a reference says: the answer for one that borrows a uid must not be that for the uid's owner."""
        self._arrivals: dict[str, asyncio.Event] = {}
        self._locks: WeakValueDictionary[Key, asyncio.Lock] = WeakValueDictionary()
        self._slots = FairSlots(CONCURRENCY, EACH)
        self._confirmations = FairSlots(CONFIRMATIONS, EACH)
        self._confirmed: dict[Key, float] = {}
        """When the last confirmation that was answered was asked for."""
        self._refreshes = Refreshes(self._refresh, EACH)
        self._outdated = asyncio.Event()
        self._lost: set[tuple[str, str]] = set()
        """Versions and kinds of owners that were read and can't be read any more."""

    def __len__(self) -> int:
        return len(self._watched) + len(self._fetched)

    def sink(self, resource: Resource[Any]) -> "OwnerSink":
        """Where the reflector of a watched kind delivers."""
        return OwnerSink(self, resource)

    # ------------------------------------------------------------ look up

    def resolve(self, metadata: ObjectMeta) -> Chain | Missing:
        """The owners of an object, from what is known; ``Missing`` names the first that is not."""
        owners: list[ChainLink] = []
        gone = deleted = unread = ""
        namespace, reference = metadata.namespace, metadata.controller
        while reference is not None:
            if len(owners) == DEPTH or any(owner.uid == reference.uid for owner in owners):
                broken = f"{described(reference)} closes a circle, or is owner {DEPTH + 1}"
                return Chain(tuple(owners), broken, gone=gone, deleted=deleted, unread=unread)
            found = self._find(namespace, reference)
            if found is None:
                return Missing(namespace, reference)
            if isinstance(found, Absent):
                deleted = deleted or (found.reason if found.gone else "")
                unconfirmed = not (found.gone or found.forbidden)
                return Chain(
                    tuple(owners), found.reason, found.forbidden, gone or deleted, deleted, unconfirmed, unread
                )
            deleted = deleted or (f"{described(reference)} is being deleted" if found.deleting else "")
            gone = gone or deleted or found.stopped
            unread = unread or found.unreadable
            owners.append(found)
            namespace, reference = found.namespace, found.controller
        return Chain(tuple(owners), gone=gone, deleted=deleted, unread=unread)

    def _find(self, namespace: str, reference: OwnerReference) -> ChainLink | Absent | None:
        found: ChainLink | Absent | None = self._watched.get(reference.uid)
        if found is None:
            fetched = self._fetched.get(key_of(namespace, reference))
            if fetched is None:
                return None
            fetched.used = self._clock()
            found = fetched.answer
            if isinstance(found, ChainLink) and found.halted and fetched.used - fetched.asked > HALTED_SECONDS:
                fetched.asked = -inf
                self._outdated.set()
        if isinstance(found, ChainLink) and not is_meant(found, namespace, reference):
            return Absent(f"{described(reference)} is not what its uid belongs to")
        return found

    # ------------------------------------------------------------ ask the server

    async def complete(self, metadata: ObjectMeta) -> Chain:
        """The owners of an object, asking the server for those that are missing; raises as ``fetch``."""
        while isinstance(known := self.resolve(metadata), Missing):
            await self.fetch(known.namespace, known.reference)
        return known

    async def fetch(self, namespace: str, reference: OwnerReference) -> ChainLink | Absent:
        """Ask the server for an owner and remember the answer.

        Many may ask for one owner at once: the server is asked by the first. Raises ``KubeError`` if there
        is no answer after some attempts; then nothing is remembered.
        """
        lock = self._locks.setdefault(key_of(namespace, reference), asyncio.Lock())
        async with lock:
            known = self._find(namespace, reference) or await self._arrival(namespace, reference)
            if known is not None:
                return known
            async with self._slots.slot(namespace):
                answer = await self._reader.read(namespace, reference, halts=not self._reader.knows(reference))
            now = self._clock()
            if reference.uid not in self._watched:
                self._fetched[key_of(namespace, reference)] = _Fetched(namespace, reference, answer, now, now)
                self._make_room()
            return self._find(namespace, reference) or answer

    async def confirm(self, metadata: ObjectMeta, *, age: float, within: float) -> Chain | None:
        """The owners of an object, none known from an answer that was asked for more than ``age`` seconds ago.

        Watched kinds are asked for, too: their watch may be behind. None where the server has not answered for all of
        them ``within`` so many seconds.
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
            logger.warning("owners of %s/%s are not confirmed: %r", metadata.namespace, metadata.name, error)
            return None
        confirmed = self.resolve(metadata)
        return None if isinstance(confirmed, Missing) else replace(confirmed, unread=confirmed.unread or unread)

    async def _confirm(self, namespace: str, reference: OwnerReference, age: float) -> str:
        """Ask for one owner; return why nothing may be evicted for pods below it, or an empty string.

        What else changed of a watched owner is left to its watch, which may be ahead of this answer.
        """
        key = key_of(namespace, reference)
        async with self._locks.setdefault(key, asyncio.Lock()):
            if self._clock() - self._confirmed.get(key, -inf) <= age:
                return ""
            async with self._confirmations.slot(namespace):
                asked = self._clock()
                answer = await self._reader.read(namespace, reference, halts=True)
            stopped = answer.stopped if isinstance(answer, ChainLink) else ""
            self._answered(namespace, reference, answer)
            if isinstance(answer, Absent) and answer.forbidden:
                return answer.reason
            if stopped:
                return stopped
            self._confirmed[key] = asked
            return ""

    def _answered(self, namespace: str, reference: OwnerReference, answer: ChainLink | Absent) -> None:
        """Take over a newer answer for an owner that was known."""
        watched, fetched = self._watched.get(reference.uid), self._fetched.get(key_of(namespace, reference))
        if watched is not None and is_meant(watched, namespace, reference):
            # Whatever else changed is reported by its watch.
            if isinstance(answer, Absent) and answer.gone:
                self._watched.pop(reference.uid)
                now = self._clock()
                self._fetched[key_of(namespace, reference)] = _Fetched(namespace, reference, answer, now, now)
                self._on_change(reference.uid)
            elif isinstance(answer, ChainLink) and answer.deleting and not watched.deleting:
                self._watched[reference.uid] = answer
                self._on_change(reference.uid)
        elif fetched is not None:
            before, fetched.answer = fetched.answer, _after(fetched.answer, answer)
            self._report_lost(before, fetched.answer)
            if changed(before, fetched.answer):
                self._on_change(reference.uid)

    def _report_lost(self, before: ChainLink | Absent, now: ChainLink | Absent) -> None:
        """Log once a kind, until it can be read again, that owners of it can't be read any more."""
        if not isinstance(before, ChainLink) or not isinstance(now, ChainLink):
            return
        kind = now.api_version, now.kind
        if now.unreadable and not before.unreadable and kind not in self._lost:
            self._lost.add(kind)
            logger.warning("%s", now.unreadable)
        elif before.unreadable and not now.unreadable:
            self._lost.discard(kind)

    # ------------------------------------------------------------ keep it fresh

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
        for key, fetched in list(self._fetched.items()):
            needed = self._needed(fetched.reference.uid)
            if needed:
                fetched.used = now
            if now - fetched.used >= IDLE_SECONDS:
                self._fetched.pop(key, None)
            elif isinstance(fetched.answer, Absent) and fetched.answer.gone and not fetched.answer.unserved:
                continue
            elif now - fetched.asked >= _refresh_age(fetched, needed=needed):
                self._refreshes.start(key, group)

    async def _refresh(self, key: Key) -> None:
        fetched = self._fetched.get(key)
        if fetched is None:
            return
        namespace, reference = fetched.namespace, fetched.reference
        async with self._slots.slot(namespace):
            fetched.asked = self._clock()
            try:
                async with asyncio.timeout(REFRESH_TIMEOUT_SECONDS):
                    halts = not self._reader.knows(reference)
                    answer = await self._reader.read(namespace, reference, attempts=1, halts=halts)
            except (TimeoutError, KubeError) as error:
                fetched.unanswered += 1
                logger.debug("%s is not refreshed: %r", described(reference), error)
                return
        fetched.unanswered = 0
        if self._fetched.get(key) is fetched:
            self._answered(namespace, reference, answer)

    def _make_room(self) -> None:
        """Drop a tenth of the owners that no pending pod needs where there are too many."""
        if len(self._fetched) > MOST_FETCHED:
            unneeded = [key for key, one in self._fetched.items() if not self._needed(one.reference.uid)]
            unneeded.sort(key=lambda key: self._fetched[key].used)
            for key in unneeded[: max(1, MOST_FETCHED // 10)]:
                del self._fetched[key]

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

    # ------------------------------------------------------------ what reflectors tell

    def _applied(self, resource: Resource[Any], objects: Sequence[Object]) -> None:
        for item in objects:
            owner = owner_of(resource, item)
            fetched = self._fetched.pop((owner.namespace, *named(owner), owner.uid), None)
            before = self._watched.get(owner.uid) or (fetched.answer if fetched else None)
            self._watched[owner.uid] = owner
            if (arrival := self._arrivals.get(owner.uid)) is not None:
                arrival.set()
            if before is not None and changed(before, owner):
                self._on_change(owner.uid)

    def _deleted(self, references: Sequence[Deleted]) -> None:
        now = self._clock()
        for deleted in references:
            owner = self._watched.pop(deleted.uid, None)
            if owner is None:
                continue
            controller = owner.controller
            if controller is not None and (above := self._fetched.get(key_of(owner.namespace, controller))) is not None:
                above.asked = -inf  # it may have gone because that one did
                self._outdated.set()
            if self._needed(owner.uid):
                reference = OwnerReference(owner.api_version, owner.kind, owner.name, owner.uid)
                answer = Absent(f"{described(reference)} was deleted", gone=True)
                key = key_of(owner.namespace, reference)
                self._fetched[key] = _Fetched(owner.namespace, reference, answer, now, now)
                self._on_change(owner.uid)


class OwnerSink:
    """Delivers one watched kind to the directory."""

    def __init__(self, directory: OwnerDirectory, resource: Resource[Any]) -> None:
        self._directory = directory
        self._resource = resource

    def applied(self, objects: Sequence[Object]) -> None:
        """These exist now."""
        self._directory._applied(self._resource, objects)

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These exist no more; a pod that still refers to one is answered by a GET."""
        self._directory._deleted(references)

    def synced(self) -> None:
        """Nothing waits for this: what is missing is asked for."""


def _links(metadata: ObjectMeta, chain: Chain) -> list[tuple[str, OwnerReference]]:
    """The references that lead up a chain, each with the namespace that it is read in."""
    above = [(owner.namespace, owner.controller) for owner in chain.owners]
    links = [(metadata.namespace, metadata.controller), *above]
    return [(namespace, reference) for namespace, reference in links if reference is not None][:DEPTH]


def _refresh_age(fetched: _Fetched, *, needed: bool) -> float:
    """Seconds after which an owner is asked for again."""
    usual = NEEDED_SECONDS if needed else REFRESH_SECONDS
    if needed and isinstance(fetched.answer, ChainLink) and fetched.answer.halted:
        usual = min(usual, TICK_SECONDS)
    return min(UNANSWERED_MOST_SECONDS, usual * 2.0 ** min(fetched.unanswered, 8))


def _after(before: ChainLink | Absent, answer: ChainLink | Absent) -> ChainLink | Absent:
    """What is known after an answer.

    An owner whose kind is served no more was deleted with that. One that may not be read any more is what it was: to
    forget its annotations would make single pods of a gang.
    """
    was_there = isinstance(before, ChainLink) or before.gone
    if isinstance(answer, Absent) and answer.forbidden and was_there:
        if isinstance(before, Absent):
            return before
        why = f"{answer.reason}; what is known of it from before holds"
        return before if before.unreadable else replace(before, unreadable=why)
    if isinstance(answer, Absent) and answer.unserved and was_there:
        return Absent(f"{answer.reason} any more, so it was deleted", gone=True, unserved=True)
    return answer
