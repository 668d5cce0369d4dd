"""Talking to the API server of a benchmark, with little work: it shares two cores with what is measured."""

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import aiohttp

from .objects import Json

IN_FLIGHT = 64


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
        slots = asyncio.Semaphore(IN_FLIGHT)

        async def one(body: Json) -> Json:
            async with slots, self._session.post(self._url + path, json=body) as response:
                answer: Json = await response.json()
                if response.status >= 300:
                    raise RuntimeError(f"POST {path}: {response.status} {answer.get('message')}")
                return answer

        return list(await asyncio.gather(*(one(body) for body in objects)))

    async def get(self, path: str, **query: str) -> Json:
        """Read one object or list."""
        async with self._session.get(self._url + path, params=query) as response:
            answer: Json = await response.json()
            return answer

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

    async def _watch(self, version: str, wanted: int, seen: dict[bytes, float]) -> str:
        query = {"watch": "true", "resourceVersion": version}
        limits = aiohttp.ClientTimeout(total=None)
        path = f"{self._url}/api/v1/namespaces/default/pods"
        async with self._session.get(path, params=query, timeout=limits) as response:
            rest = b""
            while len(seen) < wanted:
                chunk = await response.content.readany()
                if not chunk:
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                now = time.monotonic()
                for line in lines:
                    if b'"nodeName":"' in line:
                        seen.setdefault(_value(line, b'"uid":"'), now)
                if lines:
                    version = _value(lines[-1], b'"resourceVersion":"').decode()
        return version


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
