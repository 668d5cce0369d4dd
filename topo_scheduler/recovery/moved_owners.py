"""Owners of pods that Migrations move: once the workload itself is deleted, nothing is to be moved for it any more.

What counts is the topmost owner: a JobSet that starts again deletes its Jobs and makes them anew, and their pods take
the seats that are held. It is read once for each controller of a Migration's pods and followed from then on. Pods that
have gone tell it no more, so it also stands in the status: a later leader begins with that.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from topo_scheduler.api.migrations import MOST_OWNERS, Migration, MigrationOwner
from topo_scheduler.api.objects import ObjectMeta, OwnerReference, Pod
from topo_scheduler.kube.errors import KubeError
from topo_scheduler.kube.owner_chains import Chain, Owner
from topo_scheduler.kube.owners import OwnerDirectory
from topo_scheduler.scheduling.instructions import PodRef

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Longest wait for answers about owners before a pod is evicted."""
CONFIRMED_SECONDS: Final = 1.0
"""Age up to which such an answer counts."""
AGAIN_SECONDS: Final = 5.0
"""Seconds after which an owner is asked for again that could not be read."""
Read = Callable[[PodRef], Awaitable[Pod | None]]
Find = Callable[[], Awaitable[ObjectMeta | None]]
"""Returns what stands right below a topmost owner; None where there is none any more."""
Start = Callable[[Coroutine[Any, Any, None], str], None]


@dataclass(slots=True)
class _Followed:
    uid: str
    tops: dict[str, ObjectMeta | None] = field(default_factory=dict)
    """What stands below a topmost owner, by the controller it was read for; None where there is none, or not yet."""
    reading: set[asyncio.Event] = field(default_factory=set)
    unread: set[str] = field(default_factory=set)
    """For which controllers the last attempt to read one was not answered."""

    def room(self) -> bool:
        """Return whether one more owner can be followed."""
        return len(self.tops) < MOST_OWNERS

    def owners(self) -> dict[str, OwnerReference]:
        """Return the topmost owners that are known, by uid."""
        references = (below.controller for below in self.tops.values() if below is not None)
        return {reference.uid: reference for reference in references if reference is not None}

    def follows(self, uid: str) -> bool:
        """Return whether an owner is known to be a topmost one."""
        return uid in self.owners()


class MovedOwners:
    """The topmost owners of the pods of all Migrations that are not over.

    Args:
        owners: what is known of owners.
        read: returns a pod, None where it is gone; raises ``KubeError``.
        start: runs something that ends by itself.
        changed: called when an owner was read.
    """

    def __init__(self, owners: OwnerDirectory, read: Read, start: Start, changed: Callable[[], None]) -> None:
        self._owners = owners
        self._read = read
        self._start = start
        self._changed = changed
        self._followed: dict[str, _Followed] = {}
        self._uids: frozenset[str] = frozenset()
        self._read_since: dict[str, None] = {}
        """Migrations of which an owner was read since `take_read`."""

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, migrations: Iterable[Migration]) -> None:
        """Follow the owners of these Migrations, and of no others."""
        there = {migration.key: migration for migration in migrations}
        for key, known in list(self._followed.items()):
            if key not in there or there[key].metadata.uid != known.uid:
                del self._followed[key]
                self._note()
        for key, migration in there.items():
            known = self._followed.setdefault(key, _Followed(migration.metadata.uid))
            for owner in migration.status.owners:
                if owner.uid not in known.tops and known.room() and not known.follows(owner.uid):
                    self._follow(key, owner.uid, partial(self._recorded, migration.metadata, owner))
            for controller, pod in _one_of_each(migration):
                if controller not in known.tops and known.room():
                    self._follow(key, controller, partial(self._of_pod, pod))
            known.unread &= known.tops.keys()  # others are asked for no more: the Migration has been planned since

    def needs(self, uid: str) -> bool:
        """Return whether an owner is the topmost of a Migration's pods."""
        return uid in self._uids

    def gone(self) -> Iterator[tuple[str, str]]:
        """Return the Migrations of which an owner was deleted or is being deleted, with why, as far as is known."""
        for key, known in self._followed.items():
            for below in known.tops.values():
                chain = self._owners.resolve(below) if below is not None else None
                if isinstance(chain, Chain) and chain.deleted:
                    yield key, chain.deleted
                    break

    def take_read(self) -> list[tuple[str, list[MigrationOwner]]]:
        """Return the Migrations of which owners were read since this was asked last, with all that are known."""
        read, self._read_since = self._read_since, {}
        return [(key, _recordable(known)) for key in read if (known := self._followed.get(key)) is not None]

    async def confirm(self, key: str) -> bool:
        """Ask for the owners of a Migration's pods again; return whether the API server answered for all of them.

        It has not for those that it was asked for the first time in vain.
        """
        known = self._followed.get(key)
        if known is None:
            return True
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for read in list(known.reading):
                    await read.wait()
        except TimeoutError:
            return False
        if known.unread:
            return False
        tops = [below for below in known.tops.values() if below is not None]
        asking = [self._owners.confirm(one, age=CONFIRMED_SECONDS, within=ANSWER_SECONDS) for one in tops]
        return None not in await asyncio.gather(*asking)

    def _follow(self, key: str, name: str, find: Find) -> None:
        known, read = self._followed[key], asyncio.Event()
        known.tops[name] = None
        known.reading.add(read)
        self._start(self._find(key, known, name, find, read), f"owner of {name} in Migration {key}")

    async def _find(self, key: str, known: _Followed, name: str, find: Find, read: asyncio.Event) -> None:
        """Find out what stands below a topmost owner, and follow that."""
        try:
            below = await find()
            known.unread.discard(name)
            if below is not None:
                known.tops[name] = below
                self._read_since[key] = None
                self._note()
                self._changed()
        except KubeError as error:
            log.warning("an owner of the pods of Migration %s is not known yet: %s", key, error)
            known.unread.add(name)
            read.set()
            await asyncio.sleep(AGAIN_SECONDS)
            known.tops.pop(name, None)  # read again with the next step
            self._changed()
        finally:
            read.set()
            known.reading.discard(read)

    async def _of_pod(self, pod: PodRef) -> ObjectMeta | None:
        """Read a pod and climb to its topmost owner."""
        found = await self._read(pod)
        if found is None or found.metadata.controller is None:
            return None
        return _below_topmost(found.metadata, await self._owners.complete(found.metadata))

    async def _recorded(self, migration: ObjectMeta, owner: MigrationOwner) -> ObjectMeta:
        """Look up an owner that an earlier leader read."""
        reference = OwnerReference(owner.api_version, owner.kind, owner.name, owner.uid, controller=True)
        below = ObjectMeta(name=migration.name, namespace=migration.namespace, owner_references=[reference])
        await self._owners.complete(below)
        return below

    def _note(self) -> None:
        self._uids = frozenset(uid for known in self._followed.values() for uid in known.owners())


def _recordable(known: _Followed) -> list[MigrationOwner]:
    read = known.owners().values()
    owners = [MigrationOwner(owner.api_version, owner.kind, owner.name, owner.uid) for owner in read]
    return [owner for owner in owners if owner.fits]


def _one_of_each(migration: Migration) -> list[tuple[str, PodRef]]:
    """Return one pod of each controller; before it is planned, all pods that it names by uid."""
    namespace, status = migration.metadata.namespace, migration.status
    if not status.moves:
        return [(pod.uid, PodRef(namespace, pod.name, pod.uid)) for pod in migration.spec.pods if pod.uid]
    by_controller = {f"{move.workload} {move.controller}": move for move in reversed(status.moves)}
    return [(name, PodRef(namespace, move.pod, move.uid)) for name, move in by_controller.items()]


def _below_topmost(pod: ObjectMeta, chain: Chain) -> ObjectMeta:
    """Return what stands right below the topmost owner of a pod that is known, or was deleted: the pod, or an owner."""
    below = [pod, *(_metadata(owner) for owner in chain.owners)]
    # The last owner names one more only if that is not among them: it was deleted, or can't be read.
    return below[-1] if below[-1].controller is not None and chain.deleted else below[-2] if len(below) > 1 else pod


def _metadata(owner: Owner) -> ObjectMeta:
    references = [] if owner.controller is None else [owner.controller]
    return ObjectMeta(name=owner.name, namespace=owner.namespace, uid=owner.uid, owner_references=references)
