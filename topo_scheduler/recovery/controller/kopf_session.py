"""The HTTP session of kopf. It requests only the metadata of Migrations, a few at a time.

kopf retries requests that fail, but ends for good at an answer that breaks off, or that is not one of an API server. So
such an answer counts as a failed request.

kopf reads whole pages into dictionaries, with the same page size for each kind. Hundreds of nodes per page are fine.
But a tenant can create any number of Migrations, each as large as etcd accepts. Their metadata may be nested more
deeply than Python decodes: see `odd_json`.
"""

from collections.abc import AsyncIterator, Callable
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

from topo_scheduler.kube.connection.client import names_kind
from topo_scheduler.kube.connection.odd_json import decoded, readable
from topo_scheduler.kube.connection.transport import Connection
from topo_scheduler.kube.writing.migrations import IDENTITIES

if TYPE_CHECKING:
    import kopf

PAGE_MIGRATIONS: Final = 16
"""Migrations per page: labels alone may exceed a megabyte."""


def open_session(connection: Connection, listed: Callable[[frozenset[str]], None]) -> "kopf.AiohttpSession":
    """Return a session for kopf; must be called in the event loop that uses it.

    ``listed`` is called with the namespaces and names of all Migrations, whenever kopf has listed them.
    """
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
        middlewares=(_whole, _Identities(listed)),
    )
    return kopf.AiohttpSession(server=connection.server, aiohttp_session=session)


async def _whole(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Read complete answers, except streams: one that kopf can't use fails as if there was none."""
    response = await send(request)
    if request.method == "GET" and "watch" not in request.url.query and response.status == 200:
        try:
            answer = await response.read()
        except ClientPayloadError as error:
            raise ClientConnectionError(f"the answer broke off: {error}") from error
        if not names_kind(answer):
            raise ClientConnectionError("the answer is not one of an API server")
    return response


class _Identities:
    """Requests only the metadata of Migrations, and reports which exist: kopf does not say what a new list lacks."""

    def __init__(self, listed: Callable[[frozenset[str]], None]) -> None:
        self._listed = listed
        self._keys: set[str] = set()
        """Migrations of the list that is being read, by namespace and name."""

    async def __call__(self, request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
        if request.method != "GET" or not request.url.path.endswith(IDENTITIES.collection()):
            return await send(request)
        listing = "watch" not in request.url.query
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
                response.content = _ReadableLines(response.content)  # type: ignore[assignment]
        return response

    def _read(self, page: dict[str, Any]) -> None:
        for meta in (item.get("metadata") or {} for item in page["items"]):
            self._keys.add(f"{meta.get('namespace')}/{meta.get('name')}")
        if not (page.get("metadata") or {}).get("continue"):
            self._listed(frozenset(self._keys))
            self._keys.clear()


class _ReadableLines:
    """The lines of a watch as decoders take them."""

    def __init__(self, content: StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        """Return what else aiohttp asks of the content."""
        return getattr(self._content, name)

    async def iter_chunked(self, size: int) -> AsyncIterator[bytes]:
        """Yield the lines, in the way in which kopf asks for them."""
        rest = b""
        async for data in self._content.iter_chunked(size):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                yield readable(line) + b"\n"
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
