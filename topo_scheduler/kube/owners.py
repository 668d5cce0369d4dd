"""Climb from a pod to the workload its user wrote, whatever its kind.

Users annotate the workload, and Kubernetes copies nothing of that to the pods, so it is looked for upward
along the controller references. Two sources answer: reflectors for the kinds that are watched, and a GET for
all others, whose answer is kept and refreshed for as long as somebody asks.

What always holds: ``resolve`` never waits, and says ``Missing`` as long as the API server has not answered
for an owner. "Not there" is an answer only if the server gave it: 404, another uid under the name, a kind
that is not served, or 403, which is also reported. A reference counts only if the object it leads to has
the kind, the name and the namespace it says: uids alone could be borrowed from another namespace.

An owner that was deleted, or is being deleted, is reported by ``Chain.gone``: the garbage collector deletes its
pods next. A watched owner is known to be gone from its watch. One that is not watched is asked for again every
``NEEDED_SECONDS`` as long as pods below it are pending, and at once when a watched owner below it is deleted.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from topo_scheduler.api.objects import Job, ObjectMeta, OwnerReference
from topo_scheduler.kube.client import Client
from topo_scheduler.kube.decoding import Codec
from topo_scheduler.kube.discovery import Discovery
from topo_scheduler.kube.errors import Forbidden, KubeError, NotFound, Undecodable, lacks_rights, passes, retried
from topo_scheduler.kube.fair_slots import FairSlots
from topo_scheduler.kube.resources import OWNER_KINDS, Object, Resource
from topo_scheduler.kube.sinks import Deleted
from topo_scheduler.kube.slimming import slim

logger = logging.getLogger(__name__)

DEPTH = 8
"""More owners above one another than any workload has; a chain that is longer ends here."""

REFRESH_SECONDS = 60.0
"""Age at which an owner that is not watched is asked for again."""

NEEDED_SECONDS = 15.0
"""The same while pods below it are pending: they must not be scheduled once it is deleted."""

IDLE_SECONDS = 600.0
"""An owner nobody resolved or needed for this long is dropped, and not asked for again."""

TICK_SECONDS = 5.0

ARRIVAL_SECONDS = 0.3
"""How long a watched owner is waited for: the watch of pods is often a little ahead of that of Jobs."""

RIGHTS_SECONDS = 10.0
"""For so long the first refusal by RBAC of a kind is not believed: a server that has just started has no roles yet."""

TIMEOUT_SECONDS = 10.0
CONCURRENCY = 8
EACH = 4
"""Requests at once for pods of one namespace, so that no namespace holds up all others."""

MOST_FETCHED = 20_000
"""Owners kept that are not watched; beyond them those that no pending pod needs go, the least recently used first."""

MOST_REPORTED = 1_024
"""Kinds of which it is logged that they may not be read."""

_BULKY = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True, slots=True)
class Owner:
    """A link of a chain. ``job`` is set for Jobs, whose size is part of what is asked for."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    labels: Mapping[str, str] = field(repr=False)
    annotations: Mapping[str, str] = field(repr=False)
    controller: OwnerReference | None = None
    job: Job | None = field(default=None, repr=False)
    deleting: bool = False
    """Whether it has a deletionTimestamp."""

    def differs(self, other: "Owner") -> bool:
        """Whether something a placement may depend on has changed."""
        return (
            self.annotations != other.annotations
            or self.labels != other.labels
            or self.controller != other.controller
            or self.deleting != other.deleting
            or _size(self.job) != _size(other.job)
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """All owners there are, nearest first. ``broken`` says why the last one's own owner is not among them."""

    owners: tuple[Owner, ...] = ()
    broken: str = ""
    forbidden: bool = False
    """Whether it is broken for want of a permission, which deserves a Warning to the user."""
    gone: str = ""
    """Which owner was deleted, or is being deleted; the garbage collector deletes what is below it."""


@dataclass(frozen=True, slots=True)
class Missing:
    """An owner of which nothing is known yet: ``fetch`` it."""

    namespace: str
    reference: OwnerReference


@dataclass(frozen=True, slots=True)
class Absent:
    """The server's answer for an owner that is not there, or not for us."""

    reason: str
    forbidden: bool = False
    gone: bool = False
    """Whether it was deleted. A uid never comes back, so this answer is final."""


_Key = tuple[str, str, str, str, str]
"""Namespace, group, kind, name and uid."""


@dataclass(slots=True)
class _Fetched:
    namespace: str
    reference: OwnerReference
    answer: Owner | Absent
    asked: float
    used: float


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
        self._discovery = Discovery(client, clock=clock)
        self._kinds = {(kind.group, kind.kind): kind for kind in kinds}
        self._watched: dict[str, Owner] = {}
        self._fetched: dict[_Key, _Fetched] = {}
        """By all that a reference says: the answer for one that borrows a uid must not be that for the uid's owner."""
        self._arrivals: dict[str, asyncio.Event] = {}
        self._locks: WeakValueDictionary[_Key, asyncio.Lock] = WeakValueDictionary()
        self._slots = FairSlots(CONCURRENCY, EACH)
        self._codecs: dict[Resource[Any], Codec[Any]] = {}
        self._reported: set[str] = set()
        self._outdated = asyncio.Event()

    def __len__(self) -> int:
        return len(self._watched) + len(self._fetched)

    def sink(self, resource: Resource[Any]) -> "OwnerSink":
        """Where the reflector of a watched kind delivers."""
        return OwnerSink(self, resource)

    # ------------------------------------------------------------ look up

    def resolve(self, metadata: ObjectMeta) -> Chain | Missing:
        """The owners of an object, from what is known; ``Missing`` names the first that is not."""
        owners: list[Owner] = []
        gone = ""
        namespace, reference = metadata.namespace, metadata.controller
        while reference is not None:
            if len(owners) == DEPTH or any(owner.uid == reference.uid for owner in owners):
                return Chain(tuple(owners), f"{_say(reference)} closes a circle, or is owner {DEPTH + 1}", gone=gone)
            found = self._find(namespace, reference)
            if found is None:
                return Missing(namespace, reference)
            if isinstance(found, Absent):
                gone = gone or (found.reason if found.gone else "")
                return Chain(tuple(owners), found.reason, found.forbidden, gone)
            if found.deleting and not gone:
                gone = f"{_say(reference)} is being deleted"
            owners.append(found)
            namespace, reference = found.namespace, found.controller
        return Chain(tuple(owners), gone=gone)

    def _find(self, namespace: str, reference: OwnerReference) -> Owner | Absent | None:
        found: Owner | Absent | None = self._watched.get(reference.uid)
        if found is None:
            fetched = self._fetched.get(_key(namespace, reference))
            if fetched is None:
                return None
            fetched.used = self._clock()
            found = fetched.answer
        if isinstance(found, Owner) and not _meant(found, namespace, reference):
            return Absent(f"{_say(reference)} is not what its uid belongs to")
        return found

    # ------------------------------------------------------------ ask the server

    async def complete(self, metadata: ObjectMeta) -> Chain:
        """The owners of an object, asking the server for those that are missing; raises as ``fetch``."""
        while isinstance(known := self.resolve(metadata), Missing):
            await self.fetch(known.namespace, known.reference)
        return known

    async def fetch(self, namespace: str, reference: OwnerReference) -> Owner | Absent:
        """Ask the server for an owner and remember the answer.

        Many may ask for one owner at once: the server is asked by the first. Raises ``KubeError`` if there
        is no answer after some attempts; then nothing is remembered.
        """
        lock = self._locks.setdefault(_key(namespace, reference), asyncio.Lock())
        async with lock:
            known = self._find(namespace, reference) or await self._arrival(namespace, reference)
            if known is not None:
                return known
            async with self._slots.slot(namespace):
                answer = await self._ask(namespace, reference)
            now = self._clock()
            if reference.uid not in self._watched:
                self._fetched[_key(namespace, reference)] = _Fetched(namespace, reference, answer, now, now)
                self._make_room()
            return self._find(namespace, reference) or answer

    async def run(self) -> None:
        """Keep fetched owners fresh while they are in use, and forget the others; until cancelled."""
        while True:
            try:
                async with asyncio.timeout(TICK_SECONDS):
                    await self._outdated.wait()
            except TimeoutError:
                pass
            self._outdated.clear()
            for key, fetched in list(self._fetched.items()):
                now = self._clock()
                needed = self._needed(fetched.reference.uid)
                if needed:
                    fetched.used = now
                if now - fetched.used >= IDLE_SECONDS:
                    self._fetched.pop(key, None)
                elif isinstance(fetched.answer, Absent) and fetched.answer.gone:
                    continue
                elif now - fetched.asked >= (NEEDED_SECONDS if needed else REFRESH_SECONDS):
                    await self._refresh(key, fetched)

    def _make_room(self) -> None:
        """Drop a tenth of the owners that no pending pod needs where there are too many."""
        if len(self._fetched) > MOST_FETCHED:
            unneeded = [key for key, one in self._fetched.items() if not self._needed(one.reference.uid)]
            unneeded.sort(key=lambda key: self._fetched[key].used)
            for key in unneeded[: max(1, MOST_FETCHED // 10)]:
                del self._fetched[key]

    async def _refresh(self, key: _Key, fetched: _Fetched) -> None:
        fetched.asked = self._clock()
        try:
            async with self._slots.slot(fetched.namespace):
                answer = await self._ask(fetched.namespace, fetched.reference)
        except KubeError as error:
            logger.debug("%s is not refreshed: %s", _say(fetched.reference), error)
            return
        before, fetched.answer = fetched.answer, answer
        if self._fetched.get(key) is fetched and _changed(before, answer):
            self._on_change(fetched.reference.uid)

    async def _arrival(self, namespace: str, reference: OwnerReference) -> Owner | Absent | None:
        if _group_kind(reference) not in self._kinds:
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

    async def _ask(self, namespace: str, reference: OwnerReference) -> Owner | Absent:
        resource: Resource[Any] | None = self._kinds.get(_group_kind(reference))
        try:
            resource = resource or await self._discovery.find(reference.api_version, reference.kind)
            if resource is None:
                return Absent(f"{_say(reference)}: {reference.api_version} has no such kind")
            if resource.namespaced and not namespace:
                return Absent(f"{_say(reference)} is in a namespace, its dependent is not")
            return await self._allowed(resource, namespace, reference)
        except NotFound:
            return Absent(f"{_say(reference)} does not exist", gone=True)
        except Forbidden as error:
            return self._forbidden(reference, resource, error)
        except ValueError as error:  # the reference does not name anything
            return Absent(f"{_say(reference)}: {error}")

    async def _allowed(self, resource: Resource[Any], namespace: str, reference: OwnerReference) -> Owner | Absent:
        """Get it; the first refusal by RBAC of a kind is only believed when it is repeated for a while."""
        return await retried(
            lambda: self._get(resource, namespace, reference),
            seconds=RIGHTS_SECONDS,
            longest=2.0,
            passing=lambda error: lacks_rights(error) and resource.described not in self._reported,
        )

    async def _get(self, resource: Resource[Any], namespace: str, reference: OwnerReference) -> Owner | Absent:
        path = resource.path(namespace, reference.name)
        codec = self._codecs.setdefault(resource, Codec(resource))

        async def get() -> Object:
            accept = resource.accept(listing=False)
            found: Object = codec.one(await self._client.request("GET", path, accept=accept, timeout=TIMEOUT_SECONDS))
            return found

        try:
            found = await retried(get, attempts=4, longest=5.0, passing=_passes)
        except Undecodable as error:
            if not isinstance(error.__cause__, msgspec.ValidationError):
                raise
            logger.error("%s in namespace %s is left out: %s", _say(reference), namespace, error)
            return Absent(f"{_say(reference)} does not decode: {error}")
        if found.metadata.uid != reference.uid:
            return Absent(f"{_say(reference)} was deleted, and another of this name was created", gone=True)
        return _owner(resource, found)

    def _forbidden(self, reference: OwnerReference, resource: Resource[Any] | None, error: Forbidden) -> Absent:
        what = resource.described if resource else reference.api_version
        reason = f"{_say(reference)} cannot be read: grant the verb get on {what} ({error.message})"
        if what not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(what)
            logger.warning("%s; its annotations are not seen", reason)
        return Absent(reason, forbidden=True)

    # ------------------------------------------------------------ what reflectors tell

    def _applied(self, resource: Resource[Any], objects: Sequence[Object]) -> None:
        for item in objects:
            owner = _owner(resource, item)
            fetched = self._fetched.pop((owner.namespace, *_named(owner), owner.uid), None)
            before = self._watched.get(owner.uid) or (fetched.answer if fetched else None)
            self._watched[owner.uid] = owner
            if (arrival := self._arrivals.get(owner.uid)) is not None:
                arrival.set()
            if before is not None and _changed(before, owner):
                self._on_change(owner.uid)

    def _deleted(self, references: Sequence[Deleted]) -> None:
        now = self._clock()
        for reference in references:
            owner = self._watched.pop(reference.uid, None)
            if owner is None:
                continue
            controller = owner.controller
            if controller is not None and (above := self._fetched.get(_key(owner.namespace, controller))) is not None:
                above.asked = -inf  # it may have gone because that one did
                self._outdated.set()
            if self._needed(owner.uid):
                named = OwnerReference(api_version=owner.api_version, kind=owner.kind, name=owner.name, uid=owner.uid)
                answer = Absent(f"{_say(named)} was deleted", gone=True)
                self._fetched[_key(owner.namespace, named)] = _Fetched(owner.namespace, named, answer, now, now)
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


def _owner(resource: Resource[Any], item: Object) -> Owner:
    metadata = item.metadata
    metadata.annotations.pop(_BULKY, None)  # a copy of the whole object, kilobytes long
    slim(metadata)
    return Owner(
        resource.kind,
        resource.api_version,
        metadata.namespace,
        metadata.name,
        metadata.uid,
        metadata.labels,
        metadata.annotations,
        metadata.controller,
        item if isinstance(item, Job) else None,
        metadata.deletion_timestamp is not None,
    )


def _meant(owner: Owner, namespace: str, reference: OwnerReference) -> bool:
    return (
        owner.kind == reference.kind
        and owner.name == reference.name
        and owner.namespace in ("", namespace)
        and owner.api_version.rpartition("/")[0] == _group_kind(reference)[0]
    )


def _key(namespace: str, reference: OwnerReference) -> _Key:
    return namespace, *_named(reference), reference.uid


def _named(item: OwnerReference | Owner) -> tuple[str, str, str]:
    return item.api_version.rpartition("/")[0], item.kind, item.name


def _changed(before: Owner | Absent, after: Owner | Absent) -> bool:
    if isinstance(before, Owner) and isinstance(after, Owner):
        return before.differs(after)
    if isinstance(before, Absent) and isinstance(after, Absent):
        return before.gone != after.gone
    return True


def _size(job: Job | None) -> tuple[object, ...] | None:
    if job is None:
        return None
    deadline = job.spec.active_deadline_seconds
    limit = () if deadline is None else (deadline, job.status.start_time)
    return (job.spec.parallelism, job.spec.completions, job.status.succeeded, *limit)


def _group_kind(reference: OwnerReference) -> tuple[str, str]:
    return reference.api_version.rpartition("/")[0], reference.kind


def _say(reference: OwnerReference) -> str:
    return f"{reference.kind} {reference.name}"


def _passes(error: BaseException) -> bool:
    return passes(error) or isinstance(error, Undecodable)
