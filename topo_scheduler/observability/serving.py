"""The HTTP server of health and metrics, made to stand clients that are slow, silent or many.

Every connection has a deadline for its TLS handshake, for each request's headers, for reading an answer, and for its
whole life. When more than `MAX_CONNECTIONS` are open the oldest is dropped: a client that only holds connections open
can't keep the kubelet's probes, which take milliseconds, from being answered.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, cast

from aiohttp import web

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 64
HANDSHAKE_SECONDS: Final = 5.0
HEADER_SECONDS: Final = 10.0
"""For the headers of a request to arrive whole, counted from the connection's begin or the last answer."""
RESPONSE_SECONDS: Final = 15.0
"""For a client to take an answer."""
CONNECTION_SECONDS: Final = 300.0
"""For a connection as a whole; a request that is being answered then has `LAST_SECONDS` more."""
LAST_SECONDS: Final = 2.0
BODY_SECONDS: Final = 1.0
"""For a body that no request here needs to be read and thrown away."""
UNSENT_POLL_SECONDS: Final = 0.05
MAX_HEADERS: Final = 64
MAX_HEADER_BYTES: Final = 8190
"""Of one header: tokens of identity providers may be long."""

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(web.RequestHandler):
    """One client."""

    def __init__(self, listener: "Listener", server: web.Server) -> None:
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
        self.raw: asyncio.Transport | None = None
        """Of TLS the transport below."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to serve."""
        transport = cast(asyncio.Transport, transport)  # those of uvloop are no subclasses
        if self.raw is None:
            self.raw = transport
            self._listener.admit(transport)
        self._listener.serve(self.raw, self)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """End."""
        if self.raw is not None:
            self._listener.left(self.raw)
        super().connection_lost(exc)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer, or give the client up."""
        try:
            async with asyncio.timeout(RESPONSE_SECONDS):
                answered = await super().finish_response(request, resp, start_time)
                # Written is not sent: what does not fit the kernel's buffers is still here.
                while self._unsent():  # noqa: ASYNC110
                    await asyncio.sleep(UNSENT_POLL_SECONDS)
                return answered
        except TimeoutError:
            if self.raw is not None:
                self.raw.abort()
            return resp, True

    def _unsent(self) -> bool:
        transports = (self.transport, self.raw)
        return any(one is not None and not one.is_closing() and one.get_write_buffer_size() for one in transports)


class _Handshake(asyncio.Protocol):
    """A client whose TLS handshake is not over; what it sent with its end is kept for the connection."""

    def __init__(self, listener: "Listener", context: ssl.SSLContext) -> None:
        self._listener = listener
        self._context = context
        self._task: asyncio.Task[None] | None = None
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)
        transport.pause_reading()  # until TLS reads
        self._listener.admit(transport)
        self._task = asyncio.get_running_loop().create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        self._early.append(data)

    async def _shake(self, raw: asyncio.Transport) -> None:
        try:
            secure = await asyncio.get_running_loop().start_tls(
                raw, self, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        except (OSError, TimeoutError):  # not TLS, too slow, or gone
            secure = None
        if secure is None or raw.is_closing():
            raw.abort()
            self._listener.left(raw)
            return
        connection = self._listener.connection()
        connection.raw = raw
        secure.set_protocol(connection)
        connection.connection_made(secure)
        for data in self._early:
            connection.data_received(data)


class Listener:
    """Who is connected, and for how long they may be.

    Args:
        handler: answers requests.
        context: the TLS context for a new connection, None to serve without TLS.
    """

    def __init__(self, handler: Handler, context: Callable[[], ssl.SSLContext] | None) -> None:
        self._server = web.Server(handler, access_log=None)
        self._context = context
        self._open: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    @property
    def connections(self) -> int:
        """Connections that are open, those in their handshake included."""
        return len(self._open)

    def __call__(self) -> asyncio.Protocol:
        """Return the protocol of a new connection."""
        return self.connection() if self._context is None else _Handshake(self, self._context())

    def connection(self) -> _Connection:
        """Return what serves a connection."""
        return _Connection(self, self._server)

    def admit(self, transport: asyncio.Transport) -> None:
        """Note a new connection; of too many the oldest ends."""
        loop = asyncio.get_running_loop()
        self._open[transport] = loop.call_later(HANDSHAKE_SECONDS + HEADER_SECONDS, transport.abort)
        if len(self._open) > MAX_CONNECTIONS:
            oldest = next(iter(self._open))
            self.left(oldest)
            oldest.abort()

    def serve(self, transport: asyncio.Transport, connection: _Connection) -> None:
        """Note that a connection is served from now on."""
        if transport in self._open:
            self._open[transport].cancel()
            loop = asyncio.get_running_loop()
            self._open[transport] = loop.call_later(CONNECTION_SECONDS, self._end, transport, connection)

    def left(self, transport: asyncio.Transport) -> None:
        """Note that a connection has ended."""
        if (timer := self._open.pop(transport, None)) is not None:
            timer.cancel()

    def _end(self, transport: asyncio.Transport, connection: _Connection) -> None:
        connection.close()  # takes no more requests, but leaves the transport open
        if transport in self._open:
            loop = asyncio.get_running_loop()
            self._open[transport] = loop.call_later(LAST_SECONDS, transport.abort)

    async def close(self) -> None:
        """End all connections; those that are being answered have a second."""
        await self._server.shutdown(1.0)
        for transport in list(self._open):
            self.left(transport)
            transport.abort()


@asynccontextmanager
async def serving(
    handler: Handler, address: str, port: int, context: Callable[[], ssl.SSLContext] | None = None
) -> AsyncIterator[int]:
    """Serve while the context lasts; yields the port, which is a free one when 0 was asked for.

    Raises:
        OSError: the port is taken.
    """
    listener = Listener(handler, context)
    server = await asyncio.get_running_loop().create_server(listener, address, port, backlog=128)
    try:
        yield port or _port_of(server.sockets)
    finally:
        server.close()
        await listener.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await server.wait_closed()


def _port_of(sockets: Any) -> int:
    found: socket.socket = sockets[0]
    return int(found.getsockname()[1])
