"""Faults on demand, as a client of the server meets them."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from topo_scheduler.simulation.apiserver import (
    BreakWatch,
    Delay,
    Disconnect,
    EmbeddedAPIServer,
    Refuse,
    Store,
    Truncate,
)

from .conftest import Json, pod

PODS = "/api/v1/namespaces/default/pods"
BREAKS = (aiohttp.ClientError, ConnectionError)


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    async with EmbeddedAPIServer(bookmark_seconds=0.2) as server:
        yield server


@pytest.fixture
async def client(server: EmbeddedAPIServer) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, timeout=aiohttp.ClientTimeout(total=5)) as session:
        yield session


async def _code(client: aiohttp.ClientSession, method: str, path: str, body: Any = None) -> int:
    async with client.request(method, path, json=body) as response:
        await response.read()
        return response.status


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not holds():  # noqa: ASYNC110 - connections come and go without an event of ours
            await asyncio.sleep(0.01)


class Lines:
    """A watch, line by line."""

    def __init__(self, client: aiohttp.ClientSession, **query: str) -> None:
        self._client = client
        self._query = {"watch": "true", "timeoutSeconds": "30", **query}

    async def __aenter__(self) -> "Lines":
        self._response = await self._client.get(PODS, params=self._query)
        assert self._response.status == 200
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._response.close()

    async def line(self, seconds: float = 2) -> bytes:
        return await asyncio.wait_for(self._response.content.readline(), seconds)

    async def event(self, seconds: float = 2) -> tuple[str, str]:
        event: Json = json.loads(await self.line(seconds))
        return event["type"], event["object"].get("metadata", {}).get("name", "")

    async def end(self) -> None:
        """The stream must end in good order."""
        assert await self.line() == b""


async def test_refusals_are_counted_down(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    rule = server.faults.add(Refuse(429, retry_after=7), verb="create", resource="pods", times=2)
    for _ in range(2):
        async with client.post(PODS, json=pod("a")) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
            body = await response.json()
            assert (body["reason"], body["details"]["retryAfterSeconds"]) == ("TooManyRequests", 7)
    assert await _code(client, "POST", PODS, pod("a")) == 201
    assert (rule.struck, rule.times) == (2, 0)


@pytest.mark.parametrize("code", [409, 410, 500, 503])
async def test_any_error(server: EmbeddedAPIServer, client: aiohttp.ClientSession, code: int) -> None:
    server.store.create("pods", pod("a"))
    server.faults.add(Refuse(code), resource="pods/binding")
    assert await _code(client, "GET", f"{PODS}/a") == 200
    assert await _code(client, "POST", f"{PODS}/a/binding", {}) == code
    server.faults.clear()
    binding = {"metadata": {"name": "a"}, "target": {"name": "n"}}
    assert await _code(client, "POST", f"{PODS}/a/binding", binding) == 201


async def test_a_rule_may_look_closer(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    rule = server.faults.add(Refuse(500), where=lambda info: info.name == "b")
    assert await _code(client, "GET", f"{PODS}/a") == 404
    assert await _code(client, "GET", f"{PODS}/b") == 500
    server.faults.remove(rule)
    assert await _code(client, "GET", f"{PODS}/b") == 404


async def test_a_server_takes_its_time(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.faults.add(Delay(0.3), verb="create")
    started = time.monotonic()
    task = asyncio.create_task(_code(client, "POST", PODS, pod("a")))
    await asyncio.sleep(0.1)
    assert server.store.list("pods") == [], "it has not happened yet"
    assert await task == 201
    assert time.monotonic() - started >= 0.3


@pytest.mark.parametrize("applied", [False, True])
async def test_an_answer_that_never_comes(
    server: EmbeddedAPIServer, client: aiohttp.ClientSession, applied: bool
) -> None:
    server.faults.add(Disconnect(applied=applied), verb="create", times=1)
    with pytest.raises(BREAKS):
        await _code(client, "POST", PODS, pod("a"))
    assert len(server.store.list("pods")) == int(applied)


async def test_half_a_list(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.store.create("pods", pod("a"))
    server.faults.add(Truncate(), verb="list", times=1)
    with pytest.raises(BREAKS):
        await _code(client, "GET", PODS)
    assert await _code(client, "GET", PODS) == 200


async def test_watches_that_are_cut_or_end(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    server.faults.add(BreakWatch("drop", after=1), times=1)
    async with Lines(client) as watch:
        assert await watch.event() == ("ADDED", "a")
        with pytest.raises(BREAKS):
            await watch.line()
    server.faults.add(BreakWatch("end", after=1), times=1)
    async with Lines(client) as watch:
        assert await watch.event() == ("ADDED", "a")
        await watch.end()
    async with Lines(client) as watch:
        assert [await watch.event(), await watch.event()] == [("ADDED", "a"), ("ADDED", "b")]


async def test_half_a_line(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.faults.add(BreakWatch("truncate", after=1), times=1)
    async with Lines(client) as watch:
        server.store.create("pods", pod("a"))
        assert await watch.event() == ("ADDED", "a")
        server.store.create("pods", pod("b"))
        with pytest.raises((*BREAKS, ValueError)):
            json.loads(await watch.line())
            await watch.line()


async def test_a_watch_that_has_expired(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.faults.add(BreakWatch("expire", after=1), times=1)
    async with Lines(client) as watch:
        server.store.create("pods", pod("a"))
        assert await watch.event() == ("ADDED", "a")
        error = json.loads(await watch.line())
        assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
        await watch.end()


async def test_a_watch_that_is_silent(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.faults.add(BreakWatch("silence", after=1), times=1)
    async with Lines(client, allowWatchBookmarks="true") as watch:
        server.store.create("pods", pod("a"))
        assert await watch.event() == ("ADDED", "a")
        server.store.create("pods", pod("b"))
        with pytest.raises(TimeoutError):
            await watch.line(0.6)


async def test_everything_twice(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.faults.add(BreakWatch("repeat"), times=1)
    async with Lines(client) as watch:
        server.store.create("pods", pod("a"))
        server.store.modify(
            "pods", "a", "default", lambda o: {**o, "metadata": {**o["metadata"], "labels": {"x": "y"}}}
        )
        server.store.delete("pods", "a", "default")
        events = [await watch.event() for _ in range(7)]
    kinds = [kind for kind, _ in events]
    assert kinds == ["ADDED", "ADDED", "MODIFIED", "ADDED", "MODIFIED", "ADDED", "DELETED"]


async def test_open_watches_are_broken_too(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    async with Lines(client) as first, Lines(client) as second:
        await _until(lambda: len(server.streams) == 2)
        assert server.break_watches(BreakWatch("end"), "nodes") == 0
        assert server.break_watches(BreakWatch("end"), "pods") == 2
        await first.end()
        await second.end()
    assert not server.streams


async def test_a_server_that_goes_away_and_comes_back(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.store.create("pods", pod("a"))
    url = server.url
    async with Lines(client) as watch:
        assert await watch.event() == ("ADDED", "a")
        await server.go_away()
        with pytest.raises(BREAKS):
            await watch.line()
    with pytest.raises(aiohttp.ClientConnectorError):
        await _code(client, "GET", PODS)
    await server.come_back()
    assert server.url == url
    assert await _code(client, "GET", f"{PODS}/a") == 200


async def test_history_is_forgotten(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    start = str(server.store.revision)
    server.store.create("pods", pod("a"))
    server.store.create("pods", pod("b"))
    async with client.get(PODS, params={"limit": "1"}) as response:
        token = (await response.json())["metadata"]["continue"]
    server.store.create("pods", pod("c"))
    server.store.compact()
    async with Lines(client, resourceVersion=start) as watch:
        error = json.loads(await watch.line())
        assert (error["type"], error["object"]["code"]) == ("ERROR", 410)
        await watch.end()
    async with client.get(PODS, params={"limit": "1", "continue": token}) as response:
        body = await response.json()
        assert (response.status, body["reason"]) == (410, "Expired")
        assert "The provided continue parameter is too old" in body["message"]
    async with Lines(client, resourceVersion=str(server.store.revision)) as watch:
        server.store.create("pods", pod("d"))
        assert await watch.event() == ("ADDED", "d")


async def test_a_watcher_that_cannot_keep_up_gets_an_error() -> None:
    store = Store(window=2)
    start = str(store.revision)
    async with (
        EmbeddedAPIServer(store) as server,
        aiohttp.ClientSession(server.url) as client,
        Lines(client, resourceVersion=start) as watch,
    ):
        store.create("pods", pod("a"))
        assert await watch.event() == ("ADDED", "a")
        for number in range(10):
            store.create("pods", pod(f"p-{number}"))
        error = json.loads(await watch.line())
        assert (error["type"], error["object"]["code"], error["object"]["reason"]) == ("ERROR", 410, "Expired")
        await watch.end()


async def test_bookmarks_come_when_nothing_else_does(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    async with Lines(client, allowWatchBookmarks="true", resourceVersion=str(server.store.revision)) as watch:
        server.store.create("nodes", {"metadata": {"name": "n"}})
        bookmark = json.loads(await watch.line())
        assert bookmark["type"] == "BOOKMARK"
        assert bookmark["object"]["metadata"]["resourceVersion"] == str(server.store.revision)


async def test_requests_are_recorded(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    server.store.create("pods", pod("a"))
    await _code(client, "GET", PODS)
    await _code(client, "GET", "/api/v1/pods")
    await _code(client, "POST", f"{PODS}/a/binding", {"metadata": {"name": "a"}, "target": {"name": "n"}})
    await _code(client, "PATCH", "/apis/coordination.k8s.io/v1/namespaces/x/leases/l")
    await _code(client, "DELETE", PODS)
    await _code(client, "GET", "/version")
    async with Lines(client):
        pass
    resources = [entry for entry in server.requests if entry.resource]
    assert {(entry.verb, entry.group, entry.full_resource) for entry in resources} == {
        ("list", "", "pods"),
        ("create", "", "pods/binding"),
        ("patch", "coordination.k8s.io", "leases"),
        ("deletecollection", "", "pods"),
        ("watch", "", "pods"),
    }
    entry = server.requests[2]
    assert (entry.namespace, entry.name, entry.subresource) == ("default", "a", "binding")
    server.requests.clear()
    assert not server.requests


async def test_watchers_that_leave_are_forgotten(server: EmbeddedAPIServer, client: aiohttp.ClientSession) -> None:
    async with Lines(client):
        await _until(lambda: len(server.streams) == 1)
    await _until(lambda: not server.streams)


async def test_stopping_does_not_wait_for_watchers() -> None:
    server = EmbeddedAPIServer()
    await server.start()
    async with aiohttp.ClientSession(server.url) as client, Lines(client):
        started = time.monotonic()
        await server.stop()
        assert time.monotonic() - started < 1
