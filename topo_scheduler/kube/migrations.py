"""Read and write Migrations. Nothing here raises for what the server does, but for what it does not serve.

A status is replaced whole, and only where the object is at the version that was seen: of two who write, one finds out.
"""

import enum
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from topo_scheduler.api.migrations import GROUP, KIND, PLURAL, VERSION, Migration, MigrationSpec, MigrationStatus
from topo_scheduler.api.objects import ListMeta
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.errors import Conflict, Forbidden, KubeError, NotFound, retried
from topo_scheduler.kube.resources import Resource

logger = logging.getLogger(__name__)

MIGRATIONS: Final = Resource(GROUP, VERSION, PLURAL, KIND, Migration)
TIMEOUT_SECONDS: Final = 10.0
RETRY_SECONDS: Final = 20.0
PAGE: Final = 500

_encode = msgspec.json.Encoder().encode
_migration = msgspec.json.Decoder(Migration)


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: ListMeta


_page = msgspec.json.Decoder(_Page)


class Written(enum.Enum):
    """How a write ended."""

    WRITTEN = "written"
    STALE = "stale"
    """It was changed, deleted, or there already."""
    FORBIDDEN = "forbidden"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome, the server's words for it, and the object as it is then where the server told it."""

    outcome: Written
    message: str = ""
    migration: Migration | None = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A Migration that does not decode. ``phase`` as it stands in its status, ``message`` which field is wrong."""

    namespace: str
    name: str
    uid: str
    version: str
    phase: str
    message: str


class MigrationWriter:
    """Creates Migrations, replaces their status, and deletes them."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def list(self, unreadable: Callable[[Unreadable], None] = lambda _: None) -> list[Migration]:
        """Return all Migrations; those that don't decode are logged, left out and passed to ``unreadable``.

        Raises:
            NotFound: there is no such kind.
            KubeError: no answer, or another refusal.
        """
        found: list[Migration] = []
        query = {"limit": str(PAGE)}
        while True:
            page = decode(_page, await self._send("GET", MIGRATIONS.collection(), query=query))
            for raw in page.items:
                one = read_migration(raw)
                if isinstance(one, Migration):
                    found.append(one)
                else:
                    unreadable(one)
            if not page.metadata.continue_:
                return found
            query["continue"] = page.metadata.continue_

    async def create(self, namespace: str, name: str, spec: MigrationSpec) -> Result:
        """Create a Migration."""
        body = {
            "apiVersion": f"{GROUP}/{VERSION}",
            "kind": KIND,
            "metadata": {"name": name, "namespace": namespace},
            "spec": spec,
        }
        return await self._write("POST", MIGRATIONS.collection(namespace), _encode(body))

    async def replace_status(
        self, namespace: str, name: str, uid: str, version: str, status: MigrationStatus
    ) -> Result:
        """Replace the status of a Migration of this uid, if it is still at this version."""
        metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": version}
        body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "status": status}
        return await self._write("PUT", MIGRATIONS.path(namespace, name, "status"), _encode(body))

    async def delete(self, namespace: str, name: str, uid: str, version: str) -> Result:
        """Delete a Migration of this uid, if it is still at this version."""
        options = {"preconditions": {"uid": uid, "resourceVersion": version}}
        try:
            await self._send("DELETE", MIGRATIONS.path(namespace, name), _encode(options))
        except (Conflict, NotFound) as error:
            return Result(Written.STALE, str(error))
        except Forbidden as error:
            return Result(Written.FORBIDDEN, error.message)
        except KubeError as error:
            return Result(Written.FAILED, str(error))
        return Result(Written.WRITTEN)

    async def _write(self, method: str, path: str, body: bytes) -> Result:
        try:
            return Result(Written.WRITTEN, migration=decode(_migration, await self._send(method, path, body)))
        except Conflict as error:
            return Result(Written.STALE, str(error))
        except NotFound as error:
            # To create one fails so where the kind, or its namespace, is gone.
            return Result(Written.FAILED if method == "POST" else Written.STALE, str(error))
        except Forbidden as error:
            return Result(Written.FORBIDDEN, error.message)
        except KubeError as error:
            return Result(Written.FAILED, str(error))

    async def _send(
        self, method: str, path: str, body: bytes | None = None, query: dict[str, str] | None = None
    ) -> bytes:
        async def send() -> bytes:
            return await self._client.request(method, path, body=body, query=query, timeout=TIMEOUT_SECONDS)

        return await retried(send, seconds=RETRY_SECONDS, longest=5.0)


def read_migration(raw: bytes | msgspec.Raw) -> Migration | Unreadable:
    """Return a Migration, or what is known of one that does not decode, which is logged."""
    try:
        return _migration.decode(raw)
    except msgspec.DecodeError as error:
        found = unreadable_migration(msgspec.json.decode(raw), str(error))
        logger.warning("Migration %s/%s can't be read: %s", found.namespace, found.name, error)
        return found


def unreadable_migration(obj: Mapping[str, Any], message: str) -> Unreadable:
    """Return what is known of a Migration that does not decode."""
    metadata, status = obj.get("metadata") or {}, obj.get("status")
    phase = status.get("phase") if isinstance(status, Mapping) else None

    def named(field: str) -> str:
        return str(metadata.get(field) or "")

    return Unreadable(
        named("namespace"), named("name"), named("uid"), named("resourceVersion"), str(phase or ""), message
    )
