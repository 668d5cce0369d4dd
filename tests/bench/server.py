"""Talking to the API server of a benchmark, with little work: it shares two cores with what is measured."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Protocol, TypeVar

import aiohttp

from .objects import Json

IN_FLIGHT = 64
T = TypeVar("T")


class Plane(Protocol):
    """Where an API server is, and how its administrator gets in; without ``ca_file`` there is no TLS."""

    @property
    def url(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def kubeconfig(self) -> Path: ...
    @property
    def ca_file(self) -> Path | None: ...


class Server:
    """Creates objects and watches binds."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def create(self, path: str, objects: Iterable[Json]) -> list[Json]:
        """Create objects, many at once; return them as created, in order."""

        async def one(body: Json) -> Json:
            async with self._session.post(self._url + path, json=body) as response:
                return await _answer(f"POST {path}", response)

        return await self.each(objects, one)

    async def each(self, items: Iterable[Json], do: Callable[[Json], Awaitable[T]]) -> list[T]:
        """Do something with each item, some at once; return the results in order."""
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(item: Json) -> T:
            async with slots:
                return await do(item)

        return list(await asyncio.gather(*(one(item) for item in items)))

    async def patch(self, path: str, body: Json, kind: str) -> None:
        """Patch an object by a patch of some kind, a media type."""
        headers = {"Content-Type": kind}
        async with self._session.patch(self._url + path, data=json.dumps(body), headers=headers) as response:
            await _answer(f"PATCH {path}", response)

    async def get(self, path: str, **query: str) -> Json:
        """Read one object or list."""
        async with self._session.get(self._url + path, params=query) as response:
            answer: Json = await response.json()
            return answer

    async def text(self, path: str) -> str:
        """Read what is not JSON, such as metrics."""
        async with self._session.get(self._url + path) as response:
            return await response.text()

    async def delete(self, path: str) -> None:
        """Delete an object, or all of a list, without a grace period."""
        async with self._session.delete(self._url + path, params={"gracePeriodSeconds": "0"}) as response:
            await _answer(f"DELETE {path}", response)

    async def pods(self) -> list[Json]:
        """All pods of the default namespace."""
        listed = await self.get("/api/v1/namespaces/default/pods")
        items: list[Json] = listed["items"]
        return items

    async def binds(self, version: str, wanted: int, timeout: float) -> list[float]:
        """Return when each pod was seen bound, seconds by the monotonic clock; as many as came in time."""
        seen: dict[bytes, float] = {}
        try:
            async with asyncio.timeout(timeout):
                while len(seen) < wanted:
                    # The API server closes a watch that can't keep up; it goes on from where it was.
                    version = await self._watch(version, wanted, seen)
        except TimeoutError:
            pass
        return sorted(seen.values())

    async def bound(self, version: str) -> AsyncIterator[tuple[str, str]]:
        """Yield name and uid of pods that have a node, with each of their changes after a version, without an end."""
        while True:
            async for lines in self._lines(version):
                for line in lines:
                    if b'"nodeName":"' in line:
                        yield _value(line, b'"name":"').decode(), _value(line, b'"uid":"').decode()
                version = _value(lines[-1], b'"resourceVersion":"').decode()

    async def _watch(self, version: str, wanted: int, seen: dict[bytes, float]) -> str:
        async with aclosing(self._lines(version)) as batches:
            async for lines in batches:
                now = time.monotonic()
                for line in lines:
                    if b'"nodeName":"' in line:
                        seen.setdefault(_value(line, b'"uid":"'), now)
                version = _value(lines[-1], b'"resourceVersion":"').decode()
                if len(seen) >= wanted:
                    break
        return version

    async def _lines(self, version: str) -> AsyncGenerator[list[bytes]]:
        """Yield the events of one watch, as they come."""
        query = {"watch": "true", "resourceVersion": version}
        limits = aiohttp.ClientTimeout(total=None)
        path = f"{self._url}/api/v1/namespaces/default/pods"
        async with self._session.get(path, params=query, timeout=limits) as response:
            rest = b""
            while chunk := await response.content.readany():
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    yield lines


async def _answer(request: str, response: aiohttp.ClientResponse) -> Json:
    answer: Json = await response.json()
    if response.status >= 300:
        raise RuntimeError(f"{request}: {response.status} {answer.get('message')}")
    return answer


def _value(line: bytes, key: bytes) -> bytes:
    # Metadata comes first in an object, and its own uid and version before those of owners.
    start = line.index(key, line.index(b'"metadata"')) + len(key)
    return line[start : line.index(b'"', start)]


@asynccontextmanager
async def connected(plane: Plane) -> AsyncIterator[Server]:
    """A session with the administrator's credentials."""
    context = ssl.create_default_context(cafile=str(plane.ca_file)) if plane.ca_file else False
    connector = aiohttp.TCPConnector(ssl=context, limit=IN_FLIGHT + 4)
    headers = {"Authorization": f"Bearer {plane.token}"}
    async with aiohttp.ClientSession(
        connector=connector, headers=headers, json_serialize=json.dumps, read_bufsize=2**20
    ) as session:
        yield Server(session, plane.url)
