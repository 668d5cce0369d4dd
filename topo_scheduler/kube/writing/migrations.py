"""Read and write Migrations. Writes return server failures in their result; reads raise ``KubeError``.

A write replaces the status as a whole, and only if the object still has the resourceVersion that was read. Of two
concurrent writers, one gets a conflict.

Tenants write Migrations, as large as etcd accepts where the definition has no caps yet. So pages have a cap in
bytes, and objects are decoded one at a time. Of an object beyond the caps only the identity is returned.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import (
    GROUP,
    KIND,
    MAX_AVOIDED_NODES,
    MAX_NAME_CHARACTERS,
    MAX_OWNERS,
    MAX_PODS,
    MAX_SEAT_DEVICES,
    MAX_TEXT_CHARACTERS,
    MAX_UID_CHARACTERS,
    PLURAL,
    VERSION,
    Migration,
    MigrationSpec,
    MigrationStatus,
    MigrationWrite,
    Phase,
)
from topo_scheduler.api.objects import ListMeta, ObjectMeta, PartialObject
from topo_scheduler.api.printable import printable
from topo_scheduler.api.quantity import MAX_VALUE
from topo_scheduler.kube.connection.client import JSON, Client, decode
from topo_scheduler.kube.connection.errors import (
    Conflict,
    Forbidden,
    KubeError,
    NotFound,
    TooLarge,
    is_missing,
    passes,
    remedy,
)
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.odd_json import REFUSED, readable
from topo_scheduler.kube.connection.resources import Resource
from topo_scheduler.kube.connection.retrying import Slot, or_until_granted, retried

logger = logging.getLogger(__name__)

MIGRATIONS: Final = Resource(GROUP, VERSION, PLURAL, KIND, Migration)
IDENTITIES: Final = Resource(GROUP, VERSION, PLURAL, KIND, PartialObject, metadata_only=True)
TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 20.0
PAGE_MIGRATIONS: Final = 500
PAGE_BYTES: Final = 8 * 1024 * 1024
"""Most bytes of a page; if a page has more, the reader requests fewer objects. etcd takes 1.5 MiB an object."""

WRITES_AT_ONCE: Final = 8
"""Concurrent writes. The answer to each is the whole object."""
WRITES_OF_NAMESPACE: Final = 4
"""Concurrent writes of one namespace, whose webhooks may not answer."""

_encode = msgspec.json.Encoder().encode
_migration = msgspec.json.Decoder(Migration)


class _MigrationPage(msgspec.Struct):
    items: list[msgspec.Raw] | None
    metadata: ListMeta


class _HeadOfSpec(Base):
    scheduler_name: Any = ""


class _HeadOfStatus(Base):
    phase: Any = ""
    scheduler_name: Any = ""


class _Head(Base):
    """The identity of a Migration, its phase, and the scheduler that it names."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    spec: _HeadOfSpec | None = None
    status: _HeadOfStatus | None = None

    @property
    def phase(self) -> str:
        return str(self.status.phase or "") if self.status is not None else ""

    @property
    def scheduler(self) -> str:
        return _scheduler_of(*(part.scheduler_name for part in (self.status, self.spec) if part is not None))


class _Identity(Base):
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)

    @property
    def phase(self) -> str:
        """Not read."""
        return ""

    @property
    def scheduler(self) -> str:
        """Not read."""
        return ""


_page = msgspec.json.Decoder(_MigrationPage)
_head = msgspec.json.Decoder(_Head)
_identity = msgspec.json.Decoder(_Identity)


@dataclass(frozen=True, slots=True)
class WriteResult:
    """The outcome, the server's message, and the resulting object if the server returned it."""

    outcome: MigrationWrite
    message: str = ""
    migration: Migration | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A Migration that does not decode or exceeds the caps; only its identity is kept.

    ``phase`` is the one in its status, ``message`` names the wrong field, and ``reason`` is for machines.
    ``scheduler`` is the scheduler that it names; empty if it names none, or that can't be read either.
    """

    namespace: str
    name: str
    uid: str
    version: str
    phase: str
    message: str
    reason: MigrationReason = MigrationReason.MALFORMED
    scheduler: str = ""


class MigrationWriter:
    """Creates Migrations, replaces their status, and deletes them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._slots = FairSlots(WRITES_AT_ONCE, WRITES_OF_NAMESPACE)

    async def each(self) -> AsyncIterator[Migration | Unreadable]:
        """Yield all Migrations, one decoded at a time; those that don't decode, or are too large, are logged.

        Raises:
            NotFound: the kind does not exist.
            KubeError: no answer, or another refusal.
        """
        async for raw in self._pages(MIGRATIONS.accept(listing=True)):
            yield read_migration(raw)

    async def identities(self) -> AsyncIterator[ObjectMeta]:
        """Yield the metadata of all Migrations, without their content.

        Raises the same errors as `each`.
        """
        async for raw in self._pages(IDENTITIES.accept(listing=True)):
            try:
                yield _identity.decode(raw).metadata
            except REFUSED as error:
                logger.warning("a Migration is left out: its metadata can't be read: %s", error)

    async def read(self, namespace: str, name: str, slot: Slot = nullcontext) -> Migration | Unreadable:
        """Return one Migration. Each attempt holds a ``slot``.

        Raises:
            NotFound: there is no such Migration.
            KubeError: no answer, or another refusal.
        """
        path = MIGRATIONS.path(namespace, name)
        return read_migration(
            await retried(
                lambda: self._client.read(path, name, timeout=TIMEOUT_SECONDS, most_bytes=PAGE_BYTES),
                seconds=RETRY_SECONDS,
                longest=5.0,
                slot=slot,
            )
        )

    async def _pages(self, accept: str) -> AsyncIterator[msgspec.Raw]:
        limit, token = PAGE_MIGRATIONS, ""
        while True:
            query = {"limit": str(limit), **({"continue": token} if token else {})}
            try:
                answer = await self._send("GET", MIGRATIONS.collection(), None, query, accept, PAGE_BYTES)
            except TooLarge:
                if limit == 1:
                    raise
                limit = max(1, limit // 4)
                continue
            page = decode(_page, answer)
            for raw in page.items or ():
                yield raw
            token = page.metadata.continue_
            if not token:
                return

    async def create(self, namespace: str, name: str, spec: MigrationSpec) -> WriteResult:
        """Create a Migration."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": msgspec.structs.replace(spec, cause=printable(spec.cause)[:MAX_TEXT_CHARACTERS]),
        }
        return await self._write(namespace, "POST", MIGRATIONS.collection(namespace), _encode(body))

    async def replace_status(
        self, namespace: str, name: str, uid: str, version: str, status: MigrationStatus
    ) -> WriteResult:
        """Replace the status of the Migration with this uid, if it still has this resourceVersion."""
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": status}
        result = await self._write(namespace, "PUT", MIGRATIONS.path(namespace, name, "status"), _encode(body))
        if result.outcome is MigrationWrite.GONE and not await self._is_gone(namespace, name):
            return WriteResult(MigrationWrite.STALE, result.message)  # a webhook answered 404
        return result

    async def _is_gone(self, namespace: str, name: str) -> bool:
        try:
            await self.read(namespace, name, partial(self._slots.slot, namespace))
        except KubeError as error:
            return isinstance(error, NotFound)
        return False

    async def delete(self, namespace: str, name: str, uid: str, version: str) -> WriteResult:
        """Delete the Migration with this uid, if it still has this resourceVersion."""
        options = {"preconditions": {"uid": uid, "resourceVersion": version}}
        try:
            await self._send("DELETE", MIGRATIONS.path(namespace, name), _encode(options))
        except Conflict as error:
            return WriteResult(MigrationWrite.STALE, str(error))
        except Forbidden as error:
            return WriteResult(MigrationWrite.FORBIDDEN, f"{error.message}{remedy(error)}")
        except KubeError as error:
            missing = is_missing(error, name)  # if a webhook says so, the next leader lists and deletes it
            return WriteResult(MigrationWrite.STALE if missing else MigrationWrite.FAILED, str(error))
        return WriteResult(MigrationWrite.WRITTEN)

    async def _write(self, namespace: str, method: str, path: str, body: bytes) -> WriteResult:
        try:
            slot = partial(self._slots.slot, namespace)
            migration = read_migration(await self._send(method, path, body, slot=slot))
            return WriteResult(
                MigrationWrite.WRITTEN, migration=migration if isinstance(migration, Migration) else None
            )
        except Conflict as error:
            return WriteResult(MigrationWrite.STALE, str(error))
        except NotFound as error:
            # A create fails like this if the kind or its namespace is gone. Without a name, the kind is not served.
            of_object = MigrationWrite.GONE if error.details.get("name") else MigrationWrite.STALE
            return WriteResult(MigrationWrite.FAILED if method == "POST" else of_object, str(error))
        except Forbidden as error:
            return WriteResult(MigrationWrite.FORBIDDEN, f"{error.message}{remedy(error)}")
        except KubeError as error:
            return WriteResult(MigrationWrite.FAILED, str(error))

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        query: dict[str, str] | None = None,
        accept: str = JSON,
        most_bytes: int | None = None,
        slot: Slot = nullcontext,
    ) -> bytes:
        async def send() -> bytes:
            return await self._client.request(
                method,
                path,
                body=body,
                query=query,
                accept=accept,
                timeout=TIMEOUT_SECONDS,
                most_bytes=most_bytes,
            )

        passing = passes if method == "GET" else or_until_granted()
        return await retried(send, seconds=RETRY_SECONDS, longest=5.0, passing=passing, slot=slot)


def read_migration(raw: bytes | msgspec.Raw) -> Migration | Unreadable:
    """Return a Migration; or its identity if it does not decode or exceeds the caps, which is logged."""
    try:
        migration = _migration.decode(raw)
    except REFUSED as error:
        if not isinstance(error, msgspec.ValidationError) and (cut := readable(bytes(memoryview(raw)))) != raw:
            return read_migration(cut)  # its metadata may be nested deeply
        unreadable = _unreadable(raw, str(error))
    else:
        why = beyond_caps(migration)
        if not why:
            # Nothing here reads them, and a tenant can make them as large as the rest.
            migration.metadata.annotations, migration.metadata.labels = {}, {}
            migration.metadata.owner_references = []
            return migration
        meta = migration.metadata
        unreadable = Unreadable(
            meta.namespace,
            meta.name,
            meta.uid,
            meta.resource_version,
            migration.status.phase,
            why,
            MigrationReason.BEYOND_CAPS,
            _scheduler_of(migration.scheduler),
        )
    level = (
        logging.DEBUG if unreadable.phase == Phase.FAILED else logging.WARNING
    )  # its status reports the failure already
    where = {"namespace": unreadable.namespace}
    text = "Migration %s/%s can't be read: %s"
    logger.log(level, text, unreadable.namespace, unreadable.name, unreadable.message, extra=where)
    return unreadable


def beyond_caps(migration: Migration) -> str:
    """Return which field of a Migration exceeds its cap, and what to do; empty if none does."""
    spec, status = migration.spec, migration.status
    entries, characters = ("entries", "name fewer, in several Migrations"), ("characters", "shorten it")
    for field, count, cap, (described, advice) in (
        ("spec.pods", len(spec.pods), MAX_PODS, entries),
        ("spec.avoid", len(spec.avoid), MAX_AVOIDED_NODES, entries),
        ("status.moves", len(status.moves), MAX_PODS, entries),
        ("status.others", len(status.others), MAX_PODS, entries),
        ("status.leftNodes", len(status.left_nodes), MAX_PODS, entries),
        ("status.moves[].devices", max((len(m.devices) for m in status.moves), default=0), MAX_SEAT_DEVICES, entries),
        ("status.others[].devices", max((len(o.devices) for o in status.others), default=0), MAX_SEAT_DEVICES, entries),
        ("status.owners", len(status.owners), MAX_OWNERS, entries),
        ("spec.pods[].name", max((len(pod.name) for pod in spec.pods), default=0), MAX_NAME_CHARACTERS, characters),
        ("spec.pods[].uid", max((len(pod.uid) for pod in spec.pods), default=0), MAX_UID_CHARACTERS, characters),
        ("spec.avoid[]", max(map(len, spec.avoid), default=0), MAX_TEXT_CHARACTERS, characters),
        ("spec.cause", len(spec.cause), MAX_TEXT_CHARACTERS, characters),
        ("spec.reason", len(spec.reason), MAX_TEXT_CHARACTERS, characters),
        ("spec.since", len(spec.since), MAX_TEXT_CHARACTERS, characters),
        ("spec.schedulerName", len(spec.scheduler_name), MAX_NAME_CHARACTERS, characters),
        ("spec.makesRoomFor", len(spec.makes_room_for), MAX_TEXT_CHARACTERS, characters),
    ):
        if count > cap:
            return f"{field} has {count:,} {described}, of {cap:,} at most; {advice}"
    amounts = [amount for move in status.moves for amount in move.requests.values()]
    if amounts and (min(amounts) < 0 or max(amounts) > MAX_VALUE):
        return (
            f"status.moves[].requests has an amount that is not between 0 and {MAX_VALUE:,}; no pod has such a request"
        )
    return ""


def _scheduler_of(*names: Any) -> str:
    """Return the first of some values that may be the name of a scheduler; empty if none may."""
    return next((name for name in names if isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARACTERS), "")


def _unreadable(raw: bytes | msgspec.Raw, message: str) -> Unreadable:
    """Return the known fields of a Migration that does not decode; no name if its metadata does not decode either."""
    for decoder in (_head, _identity):
        try:
            head = decoder.decode(raw)
        except REFUSED:
            continue
        meta = head.metadata
        return Unreadable(
            meta.namespace,
            meta.name,
            meta.uid,
            meta.resource_version,
            head.phase,
            message,
            scheduler=head.scheduler,
        )
    return Unreadable("", "", "", "", "", message)
