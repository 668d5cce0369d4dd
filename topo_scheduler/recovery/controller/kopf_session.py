"""The HTTP session of kopf. It requests only the metadata of Migrations, a few at a time, and reports what fails.

kopf retries requests that fail, but ends for good at an answer that breaks off, or that is not one of an API server. So
such an answer counts as a failed request. At an error in a watch, which would end kopf too, it lists again.

kopf reads whole pages into dictionaries, with the same page size for each kind. Hundreds of nodes per page are fine.
But a tenant can create any number of Migrations, each as large as etcd accepts. Their metadata may be nested more
deeply than Python decodes: see `odd_json`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import (
    ClientConnectionError,
    ClientHandlerType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    StreamReader,
    TCPConnector,
)

from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import Status
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import names_kind
from topo_scheduler.kube.connection.odd_json import REFUSED, decoded, readable
from topo_scheduler.kube.connection.resources import NODES
from topo_scheduler.kube.connection.transport import Connection
from topo_scheduler.kube.writing.migrations import IDENTITIES
from topo_scheduler.scheduling.pauses import doubled

if TYPE_CHECKING:
    import kopf

PAGE_MIGRATIONS: Final = 16
"""Migrations per page: labels alone may exceed a megabyte."""
WATCHED: Final = {resource.collection(): resource.described for resource in (NODES, IDENTITIES)}
"""Names of the resources that kopf watches, by path."""
ALL: Final = " and ".join(WATCHED.values())
"""What kopf does not see if it can't find out which resources are served."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.2, 30.0
"""Pause after a watch that brought nothing, doubled each time. kopf itself would open the next one at once."""
HEALTHY_SECONDS: Final = 10.0
"""A watch that lived for so long counts as one that brought something."""
MESSAGE_CHARACTERS: Final = 512
_ERROR: Final = b'{"type":"ERROR"'
_EXPIRED: Final = b'{"type":"ERROR","object":{"kind":"Status","code":410}}'
"""The only error in a watch that does not end kopf."""
_status = msgspec.json.Decoder(Status)


class _ErrorEvent(Base):
    object: Status


_error_event = msgspec.json.Decoder(_ErrorEvent)


@dataclass(frozen=True, slots=True)
class Reports:
    """Called in the event loop of kopf with what it does not pass on to handlers.

    Args:
        listed: called with the namespaces and names of all Migrations, whenever kopf has listed them.
        seen: called with a resource whose watch is open, or has brought something.
        failed: called with a resource, the HTTP status and a message, for a refused request that kopf repeats, and for
            an error in a watch.
    """

    listed: Callable[[frozenset[str]], None]
    seen: Callable[[str], None]
    failed: Callable[[str, int, str], None]


def open_session(connection: Connection, reports: Reports) -> "kopf.AiohttpSession":
    """Return a session for kopf; must be called in the event loop that uses it."""
    import kopf

    info = kopf.ConnectionInfo(
        server=connection.server,
        ca_path=connection.ca_path or None,
        certificate_path=connection.certificate_path or None,
        private_key_path=connection.private_key_path or None,
        scheme=connection.scheme or None,
        token=connection.token or None,
        insecure=connection.insecure,
        proxy_url=connection.proxy or None,
    )
    session = ClientSession(
        connector=TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        middlewares=(_Watches(reports), _whole, _Identities(reports.listed)),
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)


async def _whole(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Read complete answers, except streams: one that kopf can't use fails as if there was none."""
    response = await send(request)
    if request.method == "GET" and not (_is_watch(request) and response.status == 200):
        try:
            answer = await response.read()
        except ClientPayloadError as error:
            raise ClientConnectionError(f"the answer broke off: {error}") from error
        if response.status == 200 and not names_kind(answer):
            raise ClientConnectionError("the answer is not one of an API server")
    return response


class _Watches:
    """Reports which resources kopf sees, has it list again after an error, and delays watches that bring nothing."""

    def __init__(self, reports: Reports) -> None:
        self._reports = reports
        self._fruitless: dict[str, tuple[int, float]] = {}
        """Watches in a row that brought nothing, and when the last one was opened, by resource."""

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        path = request.url.path
        resource = next((name for collection, name in WATCHED.items() if path.endswith(collection)), ALL)
        watch, clock = _is_watch(request), asyncio.get_running_loop().time
        fruitless, opened = self._fruitless.get(resource, (0, 0.0))
        if watch and clock() - opened < HEALTHY_SECONDS:
            await asyncio.sleep(doubled(FIRST_PAUSE_SECONDS, fruitless, LONGEST_PAUSE_SECONDS) if fruitless else 0)
        elif watch:
            fruitless = 0
        response = await send(request)
        if response.status in (401, 403, 429) or response.status >= 500:
            self._reports.failed(resource, response.status, _message(await response.read()))
        elif watch and response.status == 200:
            if not fruitless:
                self._reports.seen(resource)
            self._fruitless[resource] = (fruitless + 1, clock())
            response.content = _WatchLines(response.content, partial(self._read, resource))  # type: ignore[assignment]
        return response

    def _read(self, resource: str, line: bytes) -> bytes:
        if not line.startswith(_ERROR):
            self._fruitless.pop(resource, None)
            self._reports.seen(resource)
            return line
        try:
            status = decoded(_error_event.decode, line).object
        except REFUSED:
            status = Status(message="the event can't be read")
        if status.code != 410:
            self._reports.failed(resource, status.code, printable(status.message, MESSAGE_CHARACTERS))
        return _EXPIRED


def _is_watch(request: ClientRequest) -> bool:
    return "watch" in request.url.query


def _message(answer: bytes) -> str:
    try:
        text = decoded(_status.decode, answer).message
    except REFUSED:
        text = answer[:MESSAGE_CHARACTERS].decode(errors="replace")
    return printable(text, MESSAGE_CHARACTERS)


class _Identities:
    """Requests only the metadata of Migrations, and reports which exist: kopf does not say what a new list lacks."""

    def __init__(self, listed: Callable[[frozenset[str]], None]) -> None:
        self._listed = listed
        self._keys: set[str] = set()
        """Migrations of the list that is being read, by namespace and name."""

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if request.method != "GET" or not request.url.path.endswith(IDENTITIES.collection()):
            return await send(request)
        listing = not _is_watch(request)
        request.headers["Accept"] = IDENTITIES.accept(listing)
        if listing:
            request.url = request.url.update_query(limit=PAGE_MIGRATIONS)
            if "continue" not in request.url.query:
                self._keys.clear()
        response = await send(request)
        if response.status == 200:
            if listing:
                self._read(_decode_once(response, await response.read()))
            else:
                response.content = _WatchLines(response.content, readable)  # type: ignore[assignment]
        return response

    def _read(self, page: dict[str, Any]) -> None:
        for meta in (item.get("metadata") or {} for item in page["items"]):
            self._keys.add(f"{meta.get('namespace')}/{meta.get('name')}")
        if not (page.get("metadata") or {}).get("continue"):
            self._listed(frozenset(self._keys))
            self._keys.clear()


class _WatchLines:
    """The lines of a watch. ``read`` returns a line as kopf gets it."""

    def __init__(self, content: StreamReader, read: Callable[[bytes], bytes]) -> None:
        self._content = content
        self._read = read

    def __getattr__(self, name: str) -> Any:
        """Return what else aiohttp asks of the content."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield the lines, in the way in which kopf asks for them."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield self._read(line) + b"\n"
        yield rest


def _decode_once(response: ClientResponse, answer: bytes) -> dict[str, Any]:
    """Return a page, and have kopf get the same.

    API servers write null for empty metadata lists, which ends kopf's watch: such items are an empty list.
    """
    page: dict[str, Any] = decoded(msgspec.json.decode, answer)
    page["items"] = page.get("items") or []

    async def read() -> Any:
        return page

    response.json = read  # type: ignore[method-assign, assignment]
    return page
