"""What stands in the place of sockets between a daemon and the embedded server: a way there and back, and a knife."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final, cast

import aiohttp
from aiohttp import web
from yarl import URL

from topo_scheduler.kube.connection.fence import FencedBody
from topo_scheduler.kube.connection.transport import Connection, Transport
from topo_scheduler.simulation.apiserver import Delay, Disconnect, EmbeddedAPIServer, Truncate
from topo_scheduler.simulation.apiserver.call import ServerResponse
from topo_scheduler.simulation.apiserver.faults import Fault
from topo_scheduler.simulation.apiserver.requests import RequestInfo, read_request
from topo_scheduler.simulation.apiserver.watching import Stream, StreamEnd

LATENCY: Final = 0.002
"""Seconds from a daemon to the server, and as many back."""
WRITES: Final = ("POST", "PUT", "PATCH", "DELETE")


@dataclass(slots=True)
class _Body:
    data: bytes

    async def read(self) -> bytes:
        return self.data


@dataclass(slots=True)
class _Request:
    """As much of a request as the server looks at."""

    method: str
    rel_url: URL
    headers: Mapping[str, str]
    content: _Body

    @property
    def body_exists(self) -> bool:
        return bool(self.content.data)


class Server(EmbeddedAPIServer):
    """The embedded server without sockets."""

    down = False
    """Whether no client reaches it."""

    def go_dark(self) -> None:
        """Be down: nothing is answered, and what is open is cut."""
        self.down = True
        for stream in self.streams:
            stream.watch.wake()

    async def carry_out(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes
    ) -> tuple[ServerResponse | Stream, Fault | None]:
        """Do what is asked, as if it had come over HTTP.

        Raises:
            aiohttp.ServerDisconnectedError: there is no answer.
        """
        info = read_request(method, url.raw_path, url.query)
        if self.down:
            raise aiohttp.ServerDisconnectedError
        self.requests.append(info)
        fault = self.faults.strike(info)
        if isinstance(fault, Delay):
            fault = await self.delayed(info, url.query, fault)
        elif isinstance(fault, Disconnect) and not fault.applied:
            raise aiohttp.ServerDisconnectedError
        outcome = await self._outcome(cast(web.BaseRequest, _Request(method, url, headers, _Body(body))), info, fault)
        if isinstance(fault, Disconnect | Truncate) and not isinstance(outcome, Stream):
            raise aiohttp.ServerDisconnectedError
        return outcome, fault


@dataclass(slots=True)
class Knife:
    """Kills a process before or after its write of a number, counted from 0. Without a number it only counts."""

    kill: Callable[[], None]
    write: int = -1
    after: bool = False
    count: int = 0
    writes: deque[str] = field(default_factory=lambda: deque(maxlen=10_000))
    """What was written last, as ``create pods/binding``."""

    def at(self, info: RequestInfo) -> tuple[bool, bool]:
        """Return whether to kill before this write, and whether after."""
        number, self.count = self.count, self.count + 1
        self.writes.append(f"{info.verb} {info.full_resource}")
        return number == self.write and not self.after, number == self.write and self.after


class _Lines:
    """The content of a watch, in pieces."""

    def __init__(self, wire: "Wire", stream: Stream, silence: float | None) -> None:
        self._wire, self._stream, self._silence = wire, stream, silence
        self._pieces: AsyncIterator[bytes] = stream.pieces()
        self._last = b""

    async def readany(self) -> bytes:
        server = self._wire.server
        if server.down:
            raise aiohttp.ServerDisconnectedError
        try:
            async with asyncio.timeout(self._silence):
                while not (piece := await anext(self._pieces, None)) and piece is not None:
                    if server.down:
                        raise aiohttp.ServerDisconnectedError
                if piece is not None:
                    await asyncio.sleep(LATENCY)
        except TimeoutError as error:
            raise aiohttp.SocketTimeoutError from error
        except StreamEnd as over:
            if over.cut or not over.last:
                raise aiohttp.ServerDisconnectedError from over
            self._pieces = _nothing()
            return over.last
        if self._wire.dead:
            await asyncio.Event().wait()
        return piece or b""


async def _nothing() -> AsyncIterator[bytes]:
    none: tuple[bytes, ...] = ()
    for piece in none:
        yield piece


class _Content:
    """The content of an answer, in one piece."""

    def __init__(self, body: bytes) -> None:
        self._left = body

    async def readany(self) -> bytes:
        piece, self._left = self._left, b""
        return piece


class _Response:
    """An answer as aiohttp gives it."""

    def __init__(
        self, answer: ServerResponse | None, content: _Lines | None = None, ended: Callable[[], None] | None = None
    ):
        self.status = answer.code if answer is not None else 200
        self.headers: Mapping[str, str] = answer.headers if answer is not None else {}
        self.content = content or _Content(answer.body if answer is not None else b"")
        self._answer = answer
        self._ended = ended

    async def read(self) -> bytes:
        return self._answer.body if self._answer is not None else b""

    def close(self) -> None:
        if self._ended is not None:
            self._ended()

    async def __aenter__(self) -> "_Response":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self.close()


class Wire:
    """Stands for the transport of one process, and for the session in it."""

    def __init__(self, server: Server, outside: Context, kill: Callable[[], None]) -> None:
        """``outside`` whose tasks carry on what was sent, whatever becomes of the process."""
        self.server = server
        self.dead = False
        self.knife = Knife(kill)
        self._outside = outside

    def transport(self) -> Transport:
        """Return what a client is made with."""
        return cast(Transport, _Transport(self))

    async def exchange(
        self, method: str, url: URL, headers: Mapping[str, str], body: FencedBody | None
    ) -> ServerResponse | Stream:
        """Send a request and wait for the answer.

        Raises:
            aiohttp.ServerDisconnectedError: none comes.
        """
        before, after = False, False
        if method in WRITES and not self.dead:
            before, after = self.knife.at(read_request(method, url.raw_path, url.query))
        if before:
            self.knife.kill()
        if self.dead:
            await asyncio.Event().wait()
        data = b""
        if body is not None:
            await asyncio.sleep(0)  # as for a connection: a process that was stopped before goes on here
            body.send(None)
            data = await body.as_bytes()
        sent = asyncio.get_running_loop().create_task(
            self._carry(method, url, headers, data, after), context=self._outside
        )
        try:
            answer = await asyncio.shield(sent)
        except asyncio.CancelledError:
            sent.add_done_callback(lambda task: task.cancelled() or task.exception())
            raise
        await asyncio.sleep(LATENCY)
        return answer

    async def _carry(
        self, method: str, url: URL, headers: Mapping[str, str], body: bytes, after: bool
    ) -> ServerResponse | Stream:
        await asyncio.sleep(LATENCY)
        try:
            return (await self.server.carry_out(method, url, headers, body))[0]
        finally:
            if after:
                self.knife.kill()


class _Transport:
    """As much of a transport as the client uses."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.server = "http://embedded"
        self.options: dict[str, Any] = {}
        self.session = self

    async def authorization(self) -> Mapping[str, str]:
        return {}

    async def connection(self) -> Connection:
        return WireConnection("http://embedded", wire=self._wire)

    async def reload(self, refused: Mapping[str, str]) -> bool:
        return False

    async def close(self) -> None:
        pass

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        data: FencedBody | None,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        allow_redirects: bool,
    ) -> AsyncIterator[_Response]:
        async with asyncio.timeout(timeout.total):
            answer = await self._wire.exchange(method, url, headers, data)
        assert isinstance(answer, ServerResponse)
        yield _Response(answer)

    async def get(
        self, url: URL, *, headers: Mapping[str, str], timeout: aiohttp.ClientTimeout, allow_redirects: bool
    ) -> _Response:
        async with asyncio.timeout(timeout.connect):
            answer = await self._wire.exchange("GET", url, headers, None)
        if isinstance(answer, ServerResponse):
            return _Response(answer)
        streams = self._wire.server.streams
        streams.add(answer)
        return _Response(None, _Lines(self._wire, answer, timeout.sock_read), lambda: streams.discard(answer))


@dataclass(frozen=True, slots=True)
class WireConnection(Connection):
    """A connection for another client of the same process."""

    wire: Wire | None = None
