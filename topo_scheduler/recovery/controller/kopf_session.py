"""The HTTP session of kopf. It requests only the metadata of Migrations, a few at a time.

kopf retries requests that fail, but ends for good at an answer that breaks off, or that is not one of an API server. So
such an answer counts as a failed request.

kopf reads whole pages into dictionaries, with the same page size for each kind. Hundreds of nodes per page are fine.
But a tenant can create any number of Migrations, each as large as etcd accepts. Their metadata may be nested more
deeply than Python decodes: see `odd_json`.
"""

from collections.abc import AsyncIterator
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


def open_session(connection: Connection) -> "kopf.AiohttpSession":
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
        middlewares=(_whole, _identities_only),
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


async def _identities_only(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    if request.method != "GET" or not request.url.path.endswith(IDENTITIES.collection()):
        return await send(request)
    listing = "watch" not in request.url.query
    request.headers["Accept"] = IDENTITIES.accept(listing)
    if listing:
        request.url = request.url.update_query(limit=PAGE_MIGRATIONS)
    response = await send(request)
    if response.status == 200:
        if listing:
            _without_null_items(response)
        else:
            response.content = _ReadableLines(response.content)  # type: ignore[assignment]
    return response


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


def _without_null_items(response: ClientResponse) -> None:
    """Decode null items as an empty list: API servers write null for empty metadata lists, which ends kopf's watch."""

    async def read() -> Any:
        listing = decoded(msgspec.json.decode, await response.read())
        listing["items"] = listing.get("items") or []
        return listing

    response.json = read  # type: ignore[method-assign, assignment]
