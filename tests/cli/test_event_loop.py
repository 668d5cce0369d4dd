"""A connection that is cancelled while it is opened closes no file descriptor of another one."""

import asyncio
import gc
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path

from topo_scheduler.cli.event_loop import EventLoop


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def cancelled_handshake(silent: socket.socket) -> None:
    """Begin a TLS connection to a server that never answers, and cancel it during the handshake."""
    loop = asyncio.get_running_loop()
    sock = socket.create_connection(silent.getsockname())
    sock.setblocking(False)
    context = ssl.create_default_context()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await loop.create_connection(asyncio.Protocol, sock=sock, ssl=context, server_hostname="localhost")
    assert sock.fileno() == -1, "the loop owns it"


async def many() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        for _ in range(20):
            await cancelled_handshake(silent)
            left, right = socket.socketpair()
            with left, right:
                await asyncio.sleep(0)  # the loop closes what it owns
                gc.collect()
                os.fstat(left.fileno())
                os.fstat(right.fileno())


def test_a_cancelled_handshake_closes_its_file_descriptor_once() -> None:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        assert isinstance(runner.get_loop(), EventLoop)
        before = open_descriptors()
        runner.run(many())
        runner.run(asyncio.sleep(0.1))
        assert open_descriptors() <= before + 2, "none is left open"
