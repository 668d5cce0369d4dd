"""Owners of pods that Migrations move: once the workload itself is deleted, nothing is to be moved for it any more.

What counts is the topmost owner: a JobSet that starts again deletes its Jobs and makes them anew, and their pods take
the seats that are held. It is read once for each controller of a Migration's pods and followed from then on.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.migrations import Migration
from topo_scheduler.api.objects import ObjectMeta, Pod
from topo_scheduler.kube.errors import KubeError
from topo_scheduler.kube.owner_chains import Chain, Owner
from topo_scheduler.kube.owners import OwnerDirectory
from topo_scheduler.scheduling.instructions import PodRef

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 5.0
"""Longest wait for answers about owners before a pod is evicted."""
CONFIRMED_SECONDS: Final = 1.0
"""Age up to which such an answer counts."""
MOST_OWNERS: Final = 64
"""Controllers of one Migration's pods whose topmost owner is followed."""

Read = Callable[[PodRef], Awaitable[Pod | None]]
Start = Callable[[Coroutine[Any, Any, None], str], None]


@dataclass(slots=True)
class _Followed:
    uid: str
    tops: dict[str, ObjectMeta | None] = field(default_factory=dict)
    """What stands below a topmost owner, by the controller it was read for; None where there is none, or not yet."""
    reading: set[asyncio.Event] = field(default_factory=set)


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
            for controller, pod in _one_of_each(migration):
                if controller not in known.tops and len(known.tops) < MOST_OWNERS:
                    known.tops[controller] = None
                    read = asyncio.Event()
                    known.reading.add(read)
                    self._start(self._find(known, controller, pod, read), f"owner of pod {pod.uid}")

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

    async def confirm(self, key: str) -> bool:
        """Ask for the owners of a Migration's pods again; return whether the API server answered for all of them."""
        known = self._followed.get(key)
        if known is None:
            return True
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                for read in list(known.reading):
                    await read.wait()
        except TimeoutError:
            return False
        tops = [below for below in known.tops.values() if below is not None]
        asking = [self._owners.confirm(one, age=CONFIRMED_SECONDS, within=ANSWER_SECONDS) for one in tops]
        return None not in await asyncio.gather(*asking)

    async def _find(self, known: _Followed, controller: str, pod: PodRef, read: asyncio.Event) -> None:
        """Read a pod and climb to its topmost owner."""
        try:
            found = await self._read(pod)
            if found is None or found.metadata.controller is None:
                return
            chain = await self._owners.complete(found.metadata)
            known.tops[controller] = _below_topmost(found.metadata, chain)
            self._note()
            self._changed()
        except KubeError as error:
            known.tops.pop(controller, None)  # read again with the next step
            log.warning("owners of pod %s/%s are not known yet: %s", pod.namespace, pod.name, error)
        finally:
            read.set()
            known.reading.discard(read)

    def _note(self) -> None:
        tops = (below for known in self._followed.values() for below in known.tops.values() if below is not None)
        self._uids = frozenset(below.controller.uid for below in tops if below.controller is not None)


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
