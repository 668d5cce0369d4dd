"""A server that goes away in the step in which it accepted connections."""

import asyncio
import contextlib
import gc
import socket

import pytest

from topo_scheduler.simulation.apiserver import EmbeddedAPIServer


@pytest.mark.parametrize("steps", range(6))
async def test_connections_that_are_accepted_while_the_server_goes_away_are_closed(steps: int) -> None:
    """Whichever step of the event loop it is: no socket stays open, and each client learns that it is alone."""
    loop = asyncio.get_running_loop()
    async with EmbeddedAPIServer() as server:
        assert server._address is not None
        clients = [socket.create_connection(server._address) for _ in range(5)]
        for client in clients:
            client.setblocking(False)
        for _ in range(steps):
            await asyncio.sleep(0)
        await server.go_away()
        for client in clients:
            with client, contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(loop.sock_recv(client, 1), 5) == b""
        await server.come_back()
        with socket.create_connection(server._address):
            pass
    gc.collect()  # an open socket warns here, and warnings are errors
