"""When a bind counts as hanging: a webhook keeps it, while the API server answers others."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from tests.kube.virtual import now, virtual_time
from topo_scheduler.kube.connection.errors import KubeError, ServerError, Unreachable
from topo_scheduler.kube.writing.binder import Binder, BindRequest

REQUEST = BindRequest("default", "pod", "uid", "node-1")
POD = b'{"metadata":{"name":"pod","uid":"uid"},"spec":{"containers":[]},"status":{}}'
SECONDS = 2.9


class Server:
    """Answers each read and each Binding after some seconds; a Binding with an error or not."""

    def __init__(
        self, seconds: float, error: Callable[[], KubeError] | None = None, *, read_seconds: float = 0.0
    ) -> None:
        self.seconds = seconds
        self.error = error
        self.read_seconds = read_seconds
        self.timeouts: list[float] = []
        """Seconds that Bindings were given."""

    async def request(self, method: str, *_: object, timeout: float, **__: object) -> bytes:
        seconds = self.read_seconds if method == "GET" else self.seconds
        if method != "GET":
            self.timeouts.append(timeout)
        await asyncio.sleep(min(timeout, seconds))
        if timeout < seconds:
            raise Unreachable(f"no answer within {timeout} s")
        if method == "GET":
            return POD
        if self.error is not None:
            raise self.error()
        return b"{}"

    async def read(self, *_: object, timeout: float, **__: object) -> bytes:
        return await self.request("GET", timeout=timeout)


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (Server(60.0), True),
        (Server(0.0, lambda: ServerError(500, "InternalError", "failed calling webhook")), True),
        (Server(0.0, lambda: Unreachable("connection refused", sent=False)), False),
    ],
    ids=["no answer", "a webhook that fails", "refused connections"],
)
@virtual_time
async def test_a_bind_hangs_unless_the_api_server_is_out_of_reach(server: Server, expected: bool) -> None:
    """Just after an outage reads are answered, while the next attempt at a bind is still to come."""
    binder = Binder(cast("Any", server), timeout=20.0, clock=now)
    task = asyncio.create_task(binder.bind(REQUEST))
    await asyncio.sleep(3.0)
    assert await binder.hangs(REQUEST, SECONDS) is expected
    task.cancel()


@virtual_time
async def test_an_attempt_that_has_just_been_sent_does_not_hang() -> None:
    server = Server(0.0, lambda: Unreachable("connection refused", sent=False))
    binder = Binder(cast("Any", server), timeout=20.0, clock=now)
    task = asyncio.create_task(binder.bind(REQUEST))
    await asyncio.sleep(1.0)
    server.seconds, server.error = 60.0, None
    await asyncio.sleep(2.5)
    assert not await binder.hangs(REQUEST, SECONDS)
    await asyncio.sleep(3.0)
    assert await binder.hangs(REQUEST, SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not await binder.hangs(REQUEST, SECONDS), "it has ended"


@pytest.mark.parametrize(
    ("seconds", "read_seconds", "bind_timeout", "expected"),
    [
        (60.0, 1.0, 20.0, True),
        (60.0, 1.0, 5.0, True),
        (2.5, 2.0, 2.0, False),
        (6.0, 2.0, 5.0, False),
        (60.0, 4.0, 20.0, False),
    ],
    ids=[
        "a webhook that hangs on a slow server",
        "the same, with short attempts",
        "attempts too short for a slow server",
        "a slow server, slower to write than to read",
        "a server too slow to tell",
    ],
)
@virtual_time
async def test_a_bind_that_is_slow_like_everything_does_not_hang(
    seconds: float, read_seconds: float, bind_timeout: float, expected: bool
) -> None:
    """A gang whose binds hang is rolled back. Nothing is wrong with its binds if reads are as slow."""
    server = Server(seconds, read_seconds=read_seconds)
    binder = Binder(cast("Any", server), timeout=bind_timeout, clock=now)
    task = asyncio.create_task(binder.bind(REQUEST))
    hangs = False
    while not task.done() and now() < 1_020.0:
        await asyncio.sleep(3.0)
        hangs = hangs or await binder.hangs(REQUEST, SECONDS)
    assert hangs is expected
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(("bind_timeout", "first"), [(20.0, 8.0), (5.0, 4.0), (2.0, 2.0)])
@virtual_time
async def test_an_attempt_is_not_given_up_before_it_could_hang(bind_timeout: float, first: float) -> None:
    """With two fifths of 5 s, a server that needs 3 s would never bind anything."""
    server = Server(60.0)
    binder = Binder(cast("Any", server), timeout=bind_timeout, clock=now)
    await binder.bind(REQUEST)
    assert server.timeouts[0] == pytest.approx(first)
