"""uvloop's event loop, with sockets that are closed once."""

import asyncio
import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):
    """uvloop's loop, with a fix for a bug in `create_connection`.

    A connection that is cancelled before it is complete (including the TLS handshake) closes the file descriptor. The
    passed socket object closes it again when it is garbage collected. By then the number may belong to another
    connection, which breaks, or carries bytes of the first one: https://github.com/MagicStack/uvloop/issues/738.
    aiohttp opens each connection this way.
    """

    async def create_connection(  # type: ignore[override]  # it passes on whatever it is given
        self, *arguments: Any, sock: socket.socket | None = None, **keywords: Any
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        """Open a connection; a passed socket belongs to the loop, even if the connection fails."""
        try:
            # uvloop's types take the transport for a protocol.
            connection: tuple[Any, asyncio.BaseProtocol] = await super().create_connection(
                *arguments, sock=sock, **keywords
            )
        except BaseException:
            if sock is not None:
                sock.detach()
            raise
        return connection
