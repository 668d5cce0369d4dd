"""A listening socket that can be closed at any moment without losing a connection that was just accepted."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from topo_scheduler.observability.accepting import accepted

_log = logging.getLogger(__name__)
_BACKLOG: Final = 1024
_PAUSE_SECONDS: Final = 1.0


class Listener:
    """Accepts connections on one address until it is closed; each gets a protocol of its own.

    asyncio's own server (Python 3.11) forgets the connections that it accepts in the step in which it is closed. It
    does not close their sockets, so their clients wait.
    """

    def __init__(self, make_protocol: Callable[[], asyncio.Protocol], address: tuple[str, int]) -> None:
        """Listen at once on the host and port; port 0 takes a free port.

        Raises:
            OSError: the address is taken.
        """
        self._make_protocol = make_protocol
        self._socket = socket.create_server(address, backlog=_BACKLOG)
        self._socket.setblocking(False)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        """The host and the port that it listens on."""
        self._task = asyncio.get_running_loop().create_task(self._accept())

    async def close(self) -> None:
        """Refuse new connections. Connections that have their protocol stay open."""
        self._task.cancel()
        await asyncio.wait((self._task,))
        self._socket.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection = await accepted(self._socket)
            except OSError as error:  # too many open files, say
                _log.warning("no connection could be accepted on port %d: %s", self.address[1], error)
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            try:
                await loop.connect_accepted_socket(self._make_protocol, connection)
            except OSError:
                connection.close()  # the client has gone
