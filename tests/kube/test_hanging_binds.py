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
    """Answers reads at once, and each Binding after some seconds, with an error or not."""

    def __init__(self, seconds: float, error: Callable[[], KubeError] | None = None) -> None:
        self.seconds = seconds
        self.error = error

    async def request(self, method: str, *_: object, **__: object) -> bytes:
        if method == "GET":
            return POD
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error()
        return b"{}"

    async def read(self, *_: object, **__: object) -> bytes:
        return POD


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
