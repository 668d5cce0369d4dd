"""uvloop's event loop, with sockets that are closed once."""

import asyncio
import socket
from typing import Any

import uvloop


class EventLoop(uvloop.Loop):  # type: ignore[misc]  # it has no types
    """uvloop's loop, but for a fault in `create_connection`.

    There a connection that is cancelled before it is complete (the TLS handshake is part of that) closes the file
    descriptor, and the socket object that was handed over closes it once more when it is collected. By then the number
    may belong to another connection, which breaks, or carries bytes meant for the first:
    https://github.com/MagicStack/uvloop/issues/738. aiohttp opens each connection this way.
    """

    async def create_connection(
        self, *arguments: Any, sock: socket.socket | None = None, **keywords: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Open a connection; a socket that was handed over belongs to the loop, whatever happens."""
        try:
            connection: tuple[asyncio.Transport, asyncio.BaseProtocol] = await super().create_connection(
                *arguments, sock=sock, **keywords
            )
        except BaseException:
            if sock is not None:
                sock.detach()
            raise
        return connection
