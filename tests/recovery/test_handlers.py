"""The thread of kopf: what it hears, that it leaves no traces, and that its death is noticed."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import kopf
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from kopf._cogs.clients.api import iter_jsonlines
from yarl import URL

from tests.crds import serving_migrations
from tests.e2e.api import Api
from topo_scheduler.api.recovery import RecoverySpec
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.transport import Connection
from topo_scheduler.recovery.controller.handlers import (
    Message,
    MigrationChanged,
    MigrationGone,
    NodeGone,
    Watcher,
)
from topo_scheduler.recovery.controller.kopf_session import Reports, open_session
from topo_scheduler.recovery.detection.node_health import NodeHealth
from topo_scheduler.simulation.apiserver import BreakWatch, EmbeddedAPIServer, Stray, Truncate

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n1"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}
MIGRATION = {
    "apiVersion": "topology.scheduler/v1alpha1",
    "kind": "Migration",
    "metadata": {"name": "m1", "namespace": "default"},
    "spec": {"pods": [{"name": "p"}]},
}


def reports(listed: Callable[[frozenset[str]], None] = lambda keys: None) -> Reports:
    return Reports(listed, seen=lambda resource: None, failed=lambda resource, code, message: None)


@asynccontextmanager
async def _session(
    answer: Callable[[web.Request], Awaitable[web.Response]],
    listed: Callable[[frozenset[str]], None] = lambda keys: None,
) -> AsyncIterator[tuple[ClientSession, URL]]:
    """Yield a session for kopf, and the address of Migrations on a server that answers requests for them."""
    app = web.Application()
    app.router.add_get("/apis/topology.scheduler/v1alpha1/migrations", answer)
    async with (
        TestServer(app) as server,
        open_session(Connection(str(server.make_url(""))), reports(listed)).aiohttp_session as session,
    ):
        yield session, server.make_url("/apis/topology.scheduler/v1alpha1/migrations")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    async with serving_migrations(tmp_path / "admin") as api:
        yield api


@pytest.fixture
async def client(api: Api, tmp_path: Path) -> AsyncIterator[Client]:
    client = await Client.connect(str(tmp_path / "admin"))
    yield client
    await client.close()


async def _hear(watcher: Watcher, heard: list[Message], until: Callable[[], Any]) -> None:
    async with asyncio.timeout(10):
        while not until():
            heard += watcher.take()
            await asyncio.sleep(0.01)


def _of_nodes(heard: list[Message]) -> list[NodeHealth]:
    return [message for message in heard if isinstance(message, NodeHealth)]


async def test_it_hears_of_nodes_and_migrations_and_leaves_no_traces(api: Api, client: Client) -> None:
    await api.create("nodes", NODE)
    heard: list[Message] = []
    woken = asyncio.Event()
    watcher = Watcher(RecoverySpec(enabled=True), ("nvidia.com/gpu",), client.connection, woken.set)
    watcher.start()
    try:
        await _hear(watcher, heard, lambda: _of_nodes(heard))
        assert woken.is_set()
        assert [(health.name, health.ready) for health in _of_nodes(heard)] == [("n1", "True")]
        await api.patch("nodes", "n1", {"metadata": {"labels": {"of": "no-matter"}}})
        await api.create("migrations", MIGRATION)
        await _hear(watcher, heard, lambda: any(isinstance(message, MigrationChanged) for message in heard))
        assert len(_of_nodes(heard)) == 1, "what does not matter here is not told"
        broken = {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}
        await api.patch("nodes", "n1", broken, subresource="status")
        await _hear(watcher, heard, lambda: len(_of_nodes(heard)) == 2)
        for plural, name in (("nodes", "n1"), ("migrations", "m1")):
            metadata = (await api.get(plural, name))["metadata"]
            assert not metadata.get("finalizers") and not metadata.get("annotations")
        await api.delete("migrations", "m1")
        await api.delete("nodes", "n1")
        await _hear(watcher, heard, lambda: {MigrationGone, NodeGone} <= {type(message) for message in heard})
        assert watcher.wrong() == ""
    finally:
        await watcher.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "kopf"]
    assert watcher.wrong() == "", "a call of stop is no error"


async def test_kopf_asks_for_metadata_and_takes_a_null_for_an_empty_list() -> None:
    """As a real API server writes it."""
    accepted: list[str] = []
    listed: list[frozenset[str]] = []

    async def answer(request: web.Request) -> web.Response:
        accepted.append(f"{request.headers['Accept'].split(';')[1]} {request.query.get('limit')}")
        return web.json_response({"kind": "PartialObjectMetadataList", "metadata": {}, "items": None})

    async with _session(answer, listed.append) as (session, path), session.get(path.with_query(limit=500)) as response:
        assert (await response.json())["items"] == []
    assert accepted == ["as=PartialObjectMetadataList 16"] and listed == [frozenset()]


async def test_kopf_reports_the_migrations_of_a_list_once_all_its_pages_are_read() -> None:
    tokens = {"": "next", "next": "last", "last": ""}
    listed: list[frozenset[str]] = []

    async def answer(request: web.Request) -> web.Response:
        token = request.query.get("continue", "")
        item = {"metadata": {"namespace": "team", "name": f"page-{token or 'first'}"}}
        metadata = {"continue": tokens[token]}
        return web.json_response({"kind": "PartialObjectMetadataList", "metadata": metadata, "items": [item]})

    async with _session(answer, listed.append) as (session, path):
        await session.get(path)  # a list that is not read to its end counts for nothing
        for token in tokens:
            assert not listed
            await session.get(path.with_query({"continue": token} if token else {}))
    assert listed == [frozenset({"team/page-first", "team/page-next", "team/page-last"})]


async def test_kopf_reads_metadata_that_are_nested_deeply() -> None:
    """A tenant may write any ``managedFields``, nested more deeply than Python decodes."""
    fields = '{"f:a":' * 5_000 + "{}" + "}" * 5_000
    item = f'{{"metadata":{{"name":"m1","managedFields":[{{"fieldsV1":{fields}}}]}}}}'

    async def answer(request: web.Request) -> web.Response:
        if "watch" in request.query:
            return web.Response(text=f'{{"type":"ADDED","object":{item}}}\n{{"type":"DELETED","object":{item}}}\n')
        listing = f'{{"metadata":{{}},"kind":"PartialObjectMetadataList","items":[{item}]}}'
        return web.Response(text=listing, content_type="application/json")

    async with _session(answer) as (session, path):
        async with session.get(path) as response:
            assert [migration["metadata"]["name"] for migration in (await response.json())["items"]] == ["m1"]
        async with session.get(path.with_query(watch="true")) as response:
            lines = [line async for line in iter_jsonlines(response.content)]
    assert [json.loads(line)["type"] for line in lines] == ["ADDED", "DELETED"]


async def _fails() -> None:
    raise RuntimeError("a fault of its own")


async def _end_of_tasks(
    monkeypatch: pytest.MonkeyPatch, *tasks: Callable[[], Coroutine[Any, Any, None]], waits: bool = False
) -> str:
    """Let kopf run other tasks than its own until its thread has ended; return the problem of the thread.

    ``waits``: whether it waits for its flag in yet another thread, which is not told that it ends, as kopf does.
    """
    running: list[asyncio.Task[None]] = []

    async def connect() -> Connection:
        return Connection("http://127.0.0.1:1")

    async def spawn_tasks(stop_flag: threading.Event, **_: Any) -> list[asyncio.Task[None]]:
        if waits:
            asyncio.get_running_loop().run_in_executor(None, stop_flag.wait)
        for task in tasks:
            running.append(asyncio.create_task(task()))
            await asyncio.sleep(0)
        return running

    monkeypatch.setattr(kopf, "spawn_tasks", spawn_tasks)
    woken = asyncio.Event()
    watcher = Watcher(RecoverySpec(enabled=True), (), connect, woken.set)
    watcher.start()
    return await _problem_at_the_end(watcher, woken)


async def _problem_at_the_end(watcher: Watcher, woken: asyncio.Event) -> str:
    async with asyncio.timeout(15):
        await woken.wait()
    await asyncio.to_thread(_join)
    return watcher.wrong()


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "while it waits to be stopped"])
async def test_a_thread_that_dies_is_noticed(monkeypatch: pytest.MonkeyPatch, waits: bool) -> None:
    problem = await _end_of_tasks(monkeypatch, _fails, waits=waits)
    assert problem.endswith("has ended: RuntimeError: a fault of its own")


async def test_the_first_error_is_reported_not_those_that_follow_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def follows() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("what follows")

    problem = await _end_of_tasks(monkeypatch, *[follows] * 20, _fails)
    assert problem.endswith("has ended: RuntimeError: a fault of its own")


async def test_a_watch_that_is_cancelled_while_it_is_opened_does_not_keep_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As kopf's: the first cancellation only ends the request, and the next one is sent at once."""
    cancelled = 0

    async def watch() -> None:
        nonlocal cancelled
        while cancelled < 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1

    async def spawn_watch() -> None:
        watching.add(asyncio.create_task(watch()))
        await _fails()

    watching: set[asyncio.Task[None]] = set()
    problem = await _end_of_tasks(monkeypatch, spawn_watch)
    assert problem.endswith("has ended: RuntimeError: a fault of its own")


async def test_a_watch_that_is_refused_ends_the_thread_without_a_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server = EmbeddedAPIServer()
    async with serving_migrations(tmp_path / "admin", server) as api:
        client = await Client.connect(str(tmp_path / "admin"))
        woken = asyncio.Event()
        watcher = Watcher(RecoverySpec(enabled=True), (), client.connection, woken.set)
        watcher.start()
        await asyncio.sleep(1.0)
        await api.delete("customresourcedefinitions", "migrations.topology.scheduler")
        server.break_watches(BreakWatch("end"))
        problem = await _problem_at_the_end(watcher, woken)
        assert "has ended: 404 the server could not find the requested resource" in problem
        assert not [record for record in caplog.records if record.exc_info]
        await watcher.stop()
        await client.close()


@pytest.mark.parametrize("fault", [Truncate(), Stray()], ids=["cut short", "of another server"])
@pytest.mark.parametrize("path", ["/api", "/apis", "/api/v1", "/apis/topology.scheduler/v1alpha1", "/api/v1/nodes"])
async def test_an_answer_that_kopf_cannot_use_is_asked_for_again(
    tmp_path: Path, path: str, fault: Truncate | Stray
) -> None:
    server = EmbeddedAPIServer()
    async with serving_migrations(tmp_path / "admin", server) as api:
        await api.create("nodes", NODE)
        client = await Client.connect(str(tmp_path / "admin"))
        rule = server.faults.add(fault, where=lambda info: info.path == path and info.verb != "watch", times=2)
        heard: list[Message] = []
        watcher = Watcher(RecoverySpec(enabled=True), (), client.connection, lambda: None)
        watcher.start()
        try:
            await _hear(watcher, heard, lambda: _of_nodes(heard))
            assert rule.struck == 2 and watcher.wrong() == ""
        finally:
            await watcher.stop()
            await client.close()


async def test_what_was_not_defined_when_it_was_read_is_reported(api: Api, client: Client) -> None:
    await api.delete("customresourcedefinitions", "migrations.topology.scheduler")
    woken = asyncio.Event()
    watcher = Watcher(RecoverySpec(enabled=True), (), client.connection, woken.set)
    watcher.start()
    problem = await _problem_at_the_end(watcher, woken)
    assert problem.endswith("migrations.topology.scheduler was not defined when it was read")
    await watcher.stop()


async def test_a_server_that_is_away_does_not_end_it() -> None:
    async def connect() -> Connection:
        raise OSError("away")

    watcher = Watcher(RecoverySpec(enabled=True), (), connect, lambda: None)
    watcher.start()
    await asyncio.sleep(1.0)
    assert watcher.wrong() == ""
    await watcher.stop()


def _join() -> None:
    for thread in threading.enumerate():
        if thread.name == "kopf":
            thread.join(10)
