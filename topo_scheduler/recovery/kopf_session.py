"""The HTTP session of kopf, which asks for no more of Migrations than their metadata, a few at a time.

An answer that is cut short is one that did not come: kopf asks again for those, and ends for good at others.

kopf reads whole pages into dictionaries, of as many objects of each kind. Nodes may come by the hundreds; of Migrations
a tenant can make as many as it likes, each as large as etcd takes.
"""

from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiohttp import (
    ClientConnectionError,
    ClientHandlerType,
    ClientPayloadError,
    ClientRequest,
    ClientResponse,
    ClientSession,
    TCPConnector,
)

from topo_scheduler.kube.migrations import IDENTITIES
from topo_scheduler.kube.transport import Connection

if TYPE_CHECKING:
    import kopf

PAGE: Final = 16
"""Migrations of a page: labels alone may have more than a megabyte."""


def open_session(found: Connection) -> "kopf.AiohttpSession":
    """Return a session for kopf; called in the loop that is to use it."""
    import kopf

    info = kopf.ConnectionInfo(
        server=found.server,
        ca_path=found.ca_path or None,
        certificate_path=found.certificate_path or None,
        private_key_path=found.private_key_path or None,
        scheme=found.scheme or None,
        token=found.token or None,
        insecure=found.insecure,
        proxy_url=found.proxy or None,
    )
    session = ClientSession(
        connector=TCPConnector(limit=0, ssl=info.as_ssl_context()),
        headers=info.as_http_headers(),
        proxy=info.proxy_url,
        middlewares=(_whole, _identities_only),
    )
    return kopf.AiohttpSession(server=found.server, aiohttp_session=session)


async def _whole(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    """Read answers that are no streams, so that one that breaks off fails as a request that was not answered."""
    response = await send(request)
    if request.method == "GET" and "watch" not in request.url.query and response.status == 200:
        try:
            await response.read()
        except ClientPayloadError as error:
            raise ClientConnectionError(f"the answer broke off: {error}") from error
    return response


async def _identities_only(request: ClientRequest, send: ClientHandlerType) -> ClientResponse:
    if request.method != "GET" or not request.url.path.endswith(IDENTITIES.collection()):
        return await send(request)
    listing = "watch" not in request.url.query
    request.headers["Accept"] = IDENTITIES.accept(listing)
    if listing:
        request.url = request.url.update_query(limit=PAGE)
    response = await send(request)
    if listing and response.status == 200:
        _without_null_items(response)
    return response


def _without_null_items(response: ClientResponse) -> None:
    """Have an empty list decoded as one: API servers write null for the items of metadata, which ends kopf's watch."""

    async def decoded() -> Any:
        found = msgspec.json.decode(await response.read())
        found["items"] = found.get("items") or []
        return found

    response.json = decoded  # type: ignore[method-assign, assignment]
