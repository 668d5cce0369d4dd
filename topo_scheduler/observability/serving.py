"""The HTTP server for health and metrics, robust against slow, silent or many clients.

Every connection has a deadline for its TLS handshake, for the headers of each request, for reading an answer, and for
its whole life. With more than `MAX_CONNECTIONS` open connections the server drops the oldest. So a client that only
holds connections open can't block the kubelet's probes, which take milliseconds.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final, cast

from aiohttp import web

from topo_scheduler.observability.accepting import accepted

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
HANDSHAKE_SECONDS: Final = 5.0
HEADER_SECONDS: Final = 10.0
"""Limit for all headers of a request to arrive, from the start of the connection or the last answer."""
RESPONSE_SECONDS: Final = 15.0
"""Limit for a client to read an answer."""
CONNECTION_SECONDS: Final = 300.0
"""Limit for a connection as a whole. A request in progress then has `LAST_SECONDS` more."""
LAST_SECONDS: Final = 2.0
BODY_SECONDS: Final = 1.0
"""Limit for reading and discarding a request body, which no request here needs."""
UNSENT_POLL_SECONDS: Final = 0.05
ACCEPT_PAUSE_SECONDS: Final = 0.5
BACKLOG_CONNECTIONS: Final = 128
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 8190
"""Limit of one header: tokens of identity providers may be long."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _HttpClient:
    """A connection from its start: its socket, later its transport, and the timer that ends it."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.transport: asyncio.Transport | None = None
        self.timer: asyncio.TimerHandle | None = None

    def end_after(self, seconds: float, end: Callable[[], None]) -> None:
        """Set the time until its end, and replace the earlier one."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = asyncio.get_running_loop().call_later(seconds, end)

    def abort(self) -> None:
        """End the connection at once."""
        if self.transport is not None:
            self.transport.abort()
        else:
            # The connection is in its handshake, which this makes fail.
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class _HttpConnection(web.RequestHandler):
    """Serves a client after the handshake."""

    def __init__(self, listener: "Connections", server: web.Server, client: _HttpClient) -> None:
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=HEADER_SECONDS,
            lingering_time=BODY_SECONDS,
            max_headers=MAX_HEADERS,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            logger=log,
        )
        self._listener = listener
        self._client = client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve."""
        self._client.transport = cast(asyncio.Transport, transport)  # transports of uvloop are not subclasses
        self._client.end_after(CONNECTION_SECONDS, self._end)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        self._listener.remove(self._client)
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, or drop the client."""
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                answered = await super().finish_response(request, resp, start_time)
                # Written data may not be sent yet: the transport still has what does not fit the kernel's buffers.
                while self._unsent():  # noqa: ASYNC110
                    await asyncio.sleep(UNSENT_POLL_SECONDS)
                return answered
        except TimeoutError:
            self._client.abort()
            return resp, True

    def _unsent(self) -> bool:
        # With TLS the transport below has a buffer too. The limit of the whole connection covers it.
        transport = self._client.transport
        return transport is not None and not transport.is_closing() and bool(transport.get_write_buffer_size())

    def _end(self) -> None:
        self.close()  # accepts no more requests, but leaves the transport open
        self._client.end_after(LAST_SECONDS, self._client.abort)


class Connections:
    """The open connections, and their time limits.

    Args:
        handler: answers requests.
        context: returns the TLS context for a new connection; None to serve without TLS.
    """

    def __init__(self, handler: Handler, context: Callable[[], ssl.SSLContext] | None) -> None:
        self._server = web.Server(handler, access_log=None)
        self._context = context
        self._open: dict[_HttpClient, None] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Number of open connections, including those in their handshake."""
        return len(self._open)

    async def accept(self, listening: socket.socket) -> None:
        """Accept connections until cancelled. The server of asyncio does not report connections in their handshake."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection = await accepted(listening)
            except OSError as error:
                log.warning("health and metrics: can't accept connections, trying again: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            client = _HttpClient(connection)
            self._open[client] = None
            if len(self._open) > MAX_CONNECTIONS:
                oldest = next(iter(self._open))
                self.remove(oldest)
                oldest.abort()
            task = loop.create_task(self._welcome(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _welcome(self, client: _HttpClient) -> None:
        context = self._context() if self._context is not None else None
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _HttpConnection(self, self._server, client),
                client.socket,
                ssl=context,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if context is not None else None,
            )
        except (OSError, TimeoutError):  # not TLS, too slow, or gone
            self.remove(client)
            client.socket.close()

    def remove(self, client: _HttpClient) -> None:
        """Record that a connection has ended."""
        self._open.pop(client, None)
        if client.timer is not None:
            client.timer.cancel()

    async def close(self) -> None:
        """End all connections. Requests in progress have one more second."""
        await self._server.shutdown(1.0)
        for client in list(self._open):
            self.remove(client)
            client.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)


@asynccontextmanager
async def serving(
    handler: Handler, address: str, port: int, context: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[int]:
    """Serve within the context. Yields the port, which is a free one if ``port`` is 0.

    Raises:
        OSError: the address does not exist here, or the port is in use.
    """
    listener = Connections(handler, context)
    sockets = await _listening(address, port)
    accepting = [asyncio.create_task(listener.accept(listening)) for listening in sockets]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        for task in accepting:
            task.cancel()
        await asyncio.gather(*accepting, return_exceptions=True)
        for listening in sockets:
            listening.close()
        await listener.close()


async def _listening(address: str, port: int) -> list[socket.socket]:
    """Return a listening socket for each address of a host name."""
    try:
        addresses = await asyncio.get_running_loop().getaddrinfo(
            address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except UnicodeError as error:  # such as `a..b`, which the encoding of host names refuses
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known") from error
    sockets: list[socket.socket] = []
    try:
        for family, kind, protocol, _, socket_address in dict.fromkeys(addresses):
            listening = socket.socket(family, kind, protocol)
            sockets.append(listening)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind(socket_address)
            listening.listen(BACKLOG_CONNECTIONS)
            listening.setblocking(False)
    except OSError:
        for listening in sockets:
            listening.close()
        raise
    return sockets
