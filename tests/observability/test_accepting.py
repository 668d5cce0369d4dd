"""No connection is lost, and none stays open, when accepting is cancelled."""

import asyncio
import gc
import socket
from collections.abc import Callable

import pytest

from topo_scheduler.cli.event_loop import EventLoop
from topo_scheduler.observability.accepting import accepted


async def cancelled_after(steps: int) -> bool:
    """A client connects, and some steps later accepting is cancelled; return whether its connection was accepted.

    If it was not, the next one who accepts gets it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        task = asyncio.create_task(accepted(listening))
        await asyncio.sleep(0)
        with socket.create_connection(listening.getsockname()) as client:
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            gc.collect()  # a socket that was never closed is an error in tests
            connection = await accepted(listening) if task.cancelled() else task.result()
            with connection:
                assert connection.getpeername() == client.getsockname()
                assert not connection.getblocking()
            return not task.cancelled()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, EventLoop], ids=["asyncio", "uvloop"])
def test_a_connection_is_accepted_or_left_to_the_next(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        results = [runner.run(asyncio.wait_for(cancelled_after(steps), 5.0)) for steps in range(8)]
    assert set(results) == {False, True}
