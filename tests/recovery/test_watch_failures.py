"""The watches of kopf end at once, or its thread ends: the scheduler opens or starts it again, after growing pauses."""

import asyncio
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.kube.virtual import now, virtual_time
from tests.kube.world import world
from tests.recovery.runners import runner_of
from topo_scheduler.kube.connection.transport import Connection
from topo_scheduler.recovery.controller.kopf_session import Reports, open_session
from topo_scheduler.recovery.controller.runner import LONGEST_RESTART_SECONDS, MAX_DEATHS
from topo_scheduler.recovery.core.machine import Recovery


class NoMigrations:
    """A machine that knows no Migrations."""

    migrations: "NoMigrations"

    def __init__(self) -> None:
        self.migrations = self
        self.released = 0

    def unlisted(self, listed: object) -> list[tuple[str, str, str]]:
        return []

    def forget_unknown_nodes(self) -> None:
        pass

    def release_all(self) -> None:
        self.released += 1


@pytest.mark.parametrize("line", ["", '{"type":"ERROR","object":{"code":500,"message":"\\u001b[2J"}}\n'])
async def test_watches_that_bring_nothing_are_opened_at_growing_intervals(line: str) -> None:
    """By itself, kopf opens the next one at once."""
    failed: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=line)

    def note(resource: str, code: int, message: str) -> None:
        failed.append(f"{resource} {code} {message}")

    app = web.Application()
    app.router.add_get("/api/v1/nodes", answer)
    async with TestServer(app) as server:
        connection = Connection(str(server.make_url("")))
        session = open_session(connection, Reports(lambda keys: None, lambda resource: None, note)).aiohttp_session
        opened = 0
        async with session:
            try:
                async with asyncio.timeout(1.5):
                    while True:
                        async with session.get(server.make_url("/api/v1/nodes?watch=true")) as response:
                            lines = [data async for data in response.content.iter_chunked(1024)]
                        assert (b'"code":410' in b"".join(lines)) is bool(line), "an error has kopf list again"
                        opened += 1
            except TimeoutError:
                pass
    assert 1 < opened <= 4, "after 0.2, 0.4 and 0.8 s"
    assert failed == ["nodes 500 \\x1b[2J"] * (opened if line else 0)


@virtual_time
async def test_refusals_of_the_api_server_never_end_recovery_for_good() -> None:
    async with world() as w:
        machine = NoMigrations()
        runner = runner_of(w, machine, lambda work, name: work.close())
        pauses = []
        for _ in range(4 * MAX_DEATHS):
            runner._machine = cast("Recovery", machine)
            began = now()
            await runner._restart("it has ended: 404", refused=True)
            pauses.append(now() - began)
            assert runner.wrong() == "" and len(runner._deaths) <= 20
        assert pauses[:5] == pytest.approx([2, 4, 8, 16, 32], abs=0.5)
        assert max(pauses) == pytest.approx(LONGEST_RESTART_SECONDS, abs=0.5)
        assert machine.released == len(pauses), "Migrations are not defined: their seats are free"


@virtual_time
async def test_faults_of_its_own_end_it_after_a_few() -> None:
    async with world() as w:
        machine = NoMigrations()
        runner = runner_of(w, machine, lambda work, name: work.close())
        for number in range(MAX_DEATHS + 1):
            assert runner.wrong() == "", number
            runner._machine = cast("Recovery", machine)
            await runner._restart("a fault", refused=False)
        assert runner.wrong() == "a fault"
