"""Owners of the pods that Migrations move: once the workload itself is deleted, its pods are not moved any more.

Only the topmost owner counts: a JobSet that restarts deletes and recreates its Jobs, and the new pods take the held
seats. It is read once for each controller of a Migration's pods, and followed from then on. Pods that are gone no
longer lead to it, so it is also in the status, from which a later leader continues.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final

from topo_scheduler.api.migrations import MAX_OWNERS, Migration, MigrationOwner
from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.kube.connection.errors import Forbidden, KubeError, remedy, with_remedy
from topo_scheduler.kube.reading.owner_chains import Chain, ChainLink, Unconfirmed
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.scheduling.instructions import PodRef

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Longest wait for answers about owners before an eviction."""
CONFIRMED_SECONDS: Final = 1.0
"""Age up to which such an answer is valid."""
NOT_ANSWERED: Final = "the API server does not answer whether the owners of what is moved exist"
AGAIN_SECONDS: Final = 5.0
"""Seconds after which a failed read of an owner is retried."""
CHECKED_MIGRATIONS: Final = 16
"""Migrations whose owners are checked in each step though no change of them was reported, in turn."""
Read = Callable[[PodRef], Awaitable[ObjectMeta | None]]
"""Returns the identity of a pod with its controller; None if it is gone. Raises ``KubeError``."""
Find = Callable[[], Awaitable[ObjectMeta | None]]
"""Returns the object right below a topmost owner; None if there is none any more."""
Start = Callable[[Coroutine[Any, Any, None], str], None]


@dataclass(slots=True)
class _MovedOwner:
    migration: Migration
    tops: dict[str, ObjectMeta | None] = field(default_factory=dict)
    """The object below each topmost owner, by the controller for which it was read; None if absent or not read yet."""
    reading: set[asyncio.Event] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    """Why the last attempt to read the object failed, by name as in ``tops``."""

    def room(self) -> bool:
        """Return whether another owner can be followed."""
        return len(self.tops) < MAX_OWNERS

    def owners(self) -> dict[str, OwnerReference]:
        """Return the known topmost owners, by uid."""
        references = (below.controller for below in self.tops.values() if below is not None)
        return {reference.uid: reference for reference in references if reference is not None}


@dataclass(slots=True)
class MovedOwners:
    """The topmost owners of the pods of all unfinished Migrations.

    Args:
        owners: known owners.
        read: reads which controller a pod has.
        start: starts a task that ends by itself.
        changed: called after an owner was read.
    """

    owners: OwnerDirectory
    read: Read
    start: Start
    changed: Callable[[], None]
    _followed: dict[str, _MovedOwner] = field(default_factory=dict)
    _keys: dict[str, set[str]] = field(default_factory=dict)
    """Migrations by the uids of the known topmost owners of their pods."""
    _suspect: dict[str, None] = field(default_factory=dict)
    """Migrations of which an owner was read, or has changed, since the last `gone`."""
    _unchecked: dict[str, None] = field(default_factory=dict)
    """Migrations that are checked before the first of them is checked again."""
    _read_since: dict[str, None] = field(default_factory=dict)
    """Migrations of which an owner was read since the last `take_read`."""

    def __len__(self) -> int:
        return len(self._followed)

    def clear(self) -> None:
        """Follow the owners of no Migration."""
        self.update(dict.fromkeys(self._followed))

    def update(self, changed: Mapping[str, Migration | None]) -> None:
        """Follow the owners of Migrations that appeared or changed, and not of those that ended, which have None."""
        for key, migration in changed.items():
            moved_owner = self._followed.get(key)
            uid = migration.metadata.uid if migration is not None else ""
            if moved_owner is not None and moved_owner.migration.metadata.uid != uid:
                self._forget(key, moved_owner)
                moved_owner = None
            if migration is None:
                continue
            if moved_owner is None:
                moved_owner = self._followed[key] = _MovedOwner(migration)
            moved_owner.migration = migration
            self._follow_missing(key, moved_owner)

    def _follow_missing(self, key: str, moved_owner: _MovedOwner) -> None:
        """Follow those owners of a Migration's pods that are not followed yet."""
        migration = moved_owner.migration
        for owner in migration.status.owners:
            if owner.uid not in moved_owner.tops and moved_owner.room() and owner.uid not in moved_owner.owners():
                self._follow(key, owner.uid, partial(self._recorded, migration.metadata, owner))
        for controller, pod in _one_of_each(migration):
            if controller not in moved_owner.tops and moved_owner.room():
                self._follow(key, controller, partial(self._of_pod, pod))
        # Other owners are not read any more: the Migration has been planned since.
        for name in moved_owner.unread.keys() - moved_owner.tops.keys():
            del moved_owner.unread[name]

    def _forget(self, key: str, moved_owner: _MovedOwner) -> None:
        del self._followed[key]
        for marked in (self._read_since, self._suspect, self._unchecked):
            marked.pop(key, None)
        for uid in moved_owner.owners():
            if (keys := self._keys.get(uid)) is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[uid]

    def needs(self, uid: str) -> bool:
        """Return whether an owner is the topmost one of a Migration's pods."""
        return uid in self._keys

    def owner_changed(self, uid: str) -> None:
        """Have the Migrations checked whose pods are below an owner."""
        self._suspect.update(dict.fromkeys(self._keys.get(uid, ())))

    def gone(self) -> Iterator[tuple[str, str]]:
        """Yield the Migrations with a deleted owner, or one in deletion, and the reason.

        Those with changes are checked, and a few of the others, in case that a change was not reported.
        """
        if not self._unchecked:
            self._unchecked = dict.fromkeys(self._followed)
        keys, self._suspect = self._suspect, {}
        for key in list(islice(self._unchecked, CHECKED_MIGRATIONS)):
            del self._unchecked[key]
            keys[key] = None
        for key in keys:
            moved_owner = self._followed.get(key)
            for below in moved_owner.tops.values() if moved_owner is not None else ():
                chain = self.owners.resolve(below) if below is not None else None
                if isinstance(chain, Chain) and chain.deleted:
                    yield key, chain.deleted
                    break

    def take_read(self) -> list[tuple[str, list[MigrationOwner]]]:
        """Return the Migrations of which owners were read since the last call, with all their known owners."""
        read, self._read_since = self._read_since, {}
        return [(key, _recordable(moved_owner)) for key in read if (moved_owner := self._followed.get(key)) is not None]

    async def confirm(self, key: str) -> str:
        """Read the owners of a Migration's pods again; return why that failed for one of them, or an empty string.

        It has failed, too, while an owner could not be read for the first time.
        """
        moved_owner = self._followed.get(key)
        if moved_owner is None:
            return ""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for read in list(moved_owner.reading):
                    await read.wait()
        except TimeoutError:
            return NOT_ANSWERED
        if moved_owner.unread:
            return next(iter(moved_owner.unread.values()))
        tops = [below for below in moved_owner.tops.values() if below is not None]
        asking = [self.owners.confirm(below, age=CONFIRMED_SECONDS, within=ANSWER_SECONDS) for below in tops]
        answers = await asyncio.gather(*asking)
        if self._followed.get(key) is moved_owner:
            self._suspect[key] = None
        return next((answer.reason for answer in answers if isinstance(answer, Unconfirmed)), "")

    def _follow(self, key: str, name: str, find: Find) -> None:
        moved_owner, read = self._followed[key], asyncio.Event()
        moved_owner.tops[name] = None
        moved_owner.reading.add(read)
        self.start(self._find(key, moved_owner, name, find, read), f"owner of {name} in Migration {key}")

    async def _find(self, key: str, moved_owner: _MovedOwner, name: str, find: Find, read: asyncio.Event) -> None:
        """Read the object below a topmost owner, and follow it."""
        try:
            below = await find()
            moved_owner.unread.pop(name, None)
            if below is not None and self._followed.get(key) is moved_owner:
                moved_owner.tops[name] = below
                self._read_since[key] = self._suspect[key] = None
                if below.controller is not None:
                    self._keys.setdefault(below.controller.uid, set()).add(key)
                self.changed()
        except KubeError as error:
            where = {"namespace": moved_owner.migration.metadata.namespace}
            log.warning(
                "an owner of the pods of Migration %s is not known yet: %s", key, with_remedy(error), extra=where
            )
            moved_owner.unread[name] = NOT_ANSWERED
            if isinstance(error, Forbidden):
                text = f"the owners of what is moved are not known: {error.message}{remedy(error)}"
                moved_owner.unread[name] = text
            read.set()
            await asyncio.sleep(AGAIN_SECONDS)
            moved_owner.tops.pop(name, None)
            if self._followed.get(key) is moved_owner:
                self._follow_missing(key, moved_owner)
            self.changed()
        finally:
            read.set()
            moved_owner.reading.discard(read)

    async def _of_pod(self, pod: PodRef) -> ObjectMeta | None:
        """Read a pod and its owners; return the object right below the topmost owner."""
        identity = await self.read(pod)
        if identity is None or identity.controller is None:
            return None
        return _below_topmost(identity, await self.owners.complete(identity))

    async def _recorded(self, migration: ObjectMeta, owner: MigrationOwner) -> ObjectMeta:
        """Read an owner that an earlier leader recorded."""
        reference = OwnerReference(owner.api_version, owner.kind, owner.name, owner.uid, controller=True)
        below = ObjectMeta(name=migration.name, namespace=migration.namespace, owner_references=[reference])
        await self.owners.complete(below)
        return below


def _recordable(moved_owner: _MovedOwner) -> list[MigrationOwner]:
    read = moved_owner.owners().values()
    owners = [MigrationOwner(owner.api_version, owner.kind, owner.name, owner.uid) for owner in read]
    return [owner for owner in owners if owner.fits]


def _one_of_each(migration: Migration) -> list[tuple[str, PodRef]]:
    """Return one pod of each controller; before the Migration is planned, all pods that it names by uid."""
    namespace, status = migration.metadata.namespace, migration.status
    if not status.moves:
        return [(pod.uid, PodRef(namespace, pod.name, pod.uid)) for pod in migration.spec.pods if pod.uid]
    by_controller = {f"{move.workload} {move.controller}": move for move in reversed(status.moves)}
    return [(name, PodRef(namespace, move.pod, move.uid)) for name, move in by_controller.items()]


def _below_topmost(pod: ObjectMeta, chain: Chain) -> ObjectMeta:
    """Return the object right below the topmost owner that is known or was deleted: the pod, or an owner."""
    below = [pod, *(_metadata(owner) for owner in chain.owners)]
    # If the last owner names another one that is not in the chain, that one was deleted, or can't be read.
    return below[-1] if below[-1].controller is not None and chain.deleted else below[-2] if len(below) > 1 else pod


def _metadata(owner: ChainLink) -> ObjectMeta:
    references = [] if owner.controller is None else [owner.controller]
    return ObjectMeta(name=owner.name, namespace=owner.namespace, uid=owner.uid, owner_references=references)
