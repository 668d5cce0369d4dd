"""Accept connections without losing one: a task may be cancelled in the step in which one arrives."""

import asyncio
import socket


async def accepted(listening: socket.socket) -> socket.socket:
    """Return the next connection of a listening socket that does not block.

    `sock_accept` of asyncio forgets a connection if it is cancelled in the step that accepts it. Its socket stays open
    until garbage is collected, and its client waits.

    Raises:
        OSError: it can't be accepted, for example as too many files are open.
    """
    while True:
        try:
            connection, _ = listening.accept()
        except (BlockingIOError, InterruptedError):
            await _readable(listening)
        else:
            connection.setblocking(False)
            return connection


async def _readable(listening: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()
    loop.add_reader(listening, arrived.set)
    try:
        await arrived.wait()
    finally:
        loop.remove_reader(listening)
