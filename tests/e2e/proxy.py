"""Faults between the daemon and a real API server: an HTTP proxy that the rules of the embedded server's faults steer.

What it lets through it passes on as it is. It listens without TLS, as it stands on the same machine as the daemon.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
import yaml
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from topo_scheduler.simulation.apiserver import BreakWatch, Delay, Disconnect, Refuse, Stray, Truncate
from topo_scheduler.simulation.apiserver.errors import StatusError
from topo_scheduler.simulation.apiserver.faults import Fault, Faults
from topo_scheduler.simulation.apiserver.listening import Listener
from topo_scheduler.simulation.apiserver.requests import RequestInfo, read_request

from .api import Json

OF_ONE_HOP: Final = ("Host", "Connection", "Transfer-Encoding", "Content-Length", "Keep-Alive")
EXPIRED: Final = StatusError(410, "Expired", "too old resource version: injected fault")


class _Cut(Exception):
    """The connection to the daemon is closed at this point."""


@dataclass(eq=False, slots=True)
class _Stream:
    """A watch that is open. ``fault`` strikes once ``sent`` events have passed that it lets pass."""

    info: RequestInfo
    request: web.BaseRequest
    fault: BreakWatch | None
    sent: int = 0

    def pieces(self, line: bytes) -> tuple[bytes, bool]:
        """Return what is sent in the place of a line, and whether the stream ends in order after that.

        Raises:
            _Cut: the connection is closed instead.
        """
        fault = self.fault
        event = json.loads(line)
        bookmark = event["type"] == "BOOKMARK"
        if fault is None or self.sent < fault.after or (bookmark and fault.how != "silence"):
            self.sent += not bookmark
            return line, False
        match fault.how:
            case "repeat":
                again = {**event, "type": "ADDED"} if event["type"] == "MODIFIED" else event
                return line + json.dumps(again).encode() + b"\n", False
            case "expire":
                return json.dumps({"type": "ERROR", "object": EXPIRED.body}).encode() + b"\n", True
            case "end":
                return b"", True
            case "truncate":
                raise _Cut(line[: len(line) // 2])
            case "drop":
                raise _Cut(b"")
        return b"", False  # silence


class FaultProxy:
    """Stands before one API server. Used as a context; `faults` may be changed at any time."""

    def __init__(self, kubeconfig: Path) -> None:
        """``kubeconfig`` of the API server, for the account that requests are made by."""
        self.faults = Faults()
        self._config: Json = yaml.safe_load(kubeconfig.read_text())
        cluster = self._config["clusters"][0]["cluster"]
        self._behind = str(cluster["server"])
        self._context = _context(cluster)
        self._streams: set[_Stream] = set()
        self._address: tuple[str, int] = ("127.0.0.1", 0)
        self._server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)
        self._listener: Listener | None = None
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> "FaultProxy":
        connector = aiohttp.TCPConnector(limit=0, ssl=self._context)
        self._session = aiohttp.ClientSession(connector=connector, auto_decompress=False, read_bufsize=2**21)
        await self._runner.setup()
        await self.come_back()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.go_away()
        await self._runner.cleanup()
        await self._session.close()

    def write_kubeconfig(self, path: Path) -> Path:
        """Write a kubeconfig for the same account that leads through this proxy."""
        cluster = {"server": f"http://{self._address[0]}:{self._address[1]}"}
        config = {**self._config, "clusters": [{**self._config["clusters"][0], "cluster": cluster}]}
        path.write_text(yaml.safe_dump(config))
        return path

    async def go_away(self) -> None:
        """Be down: cut all connections and refuse new ones until `come_back`."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self._abort()

    async def come_back(self) -> None:
        """Serve, on the port of before if there was one."""
        if self._listener is None:
            self._listener = Listener(self._server, self._address)
            self._address = self._listener.address

    def break_watches(self, fault: BreakWatch, resource: str | None = None) -> int:
        """Have a fault strike the watches that are open now, of one resource or of all; return how many."""
        struck = [
            open_stream
            for open_stream in self._streams
            if resource is None or resource.partition(".")[0] == open_stream.info.resource
        ]
        for stream in struck:
            stream.fault = BreakWatch(fault.how, stream.sent + fault.after)
            if fault.how == "drop" and not fault.after:
                _cut(stream.request)
        return len(struck)

    def _abort(self) -> None:
        for connection in self._server.connections:
            if connection.transport is not None:
                connection.transport.abort()

    # ------------------------------------------------------------ requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        info = read_request(request.method, request.rel_url.raw_path, request.rel_url.query)
        fault = self.faults.strike(info)
        if isinstance(fault, Refuse):
            return _refused(fault.error())
        if isinstance(fault, Stray):
            return web.Response(body=fault.body, content_type="application/json")
        if isinstance(fault, Delay):
            await asyncio.sleep(fault.seconds)
        if isinstance(fault, Disconnect) and not fault.applied:
            return _cut(request)
        try:
            return await self._pass_on(request, info, fault)
        except _Cut:
            return _cut(request)
        except (aiohttp.ClientError, ConnectionError):
            return _cut(request)  # the API server behind has gone, or the daemon has

    async def _pass_on(self, request: web.BaseRequest, info: RequestInfo, fault: Fault | None) -> web.StreamResponse:
        url = URL(self._behind + request.rel_url.raw_path_qs, encoded=True)
        async with self._session.request(
            request.method,
            url,
            headers=_of_end(request.headers),
            data=await request.read() or None,
            timeout=aiohttp.ClientTimeout(total=None),
            allow_redirects=False,
        ) as answer:
            headers = _of_end(answer.headers)
            if info.verb == "watch" and answer.status < 300:
                return await self._stream(request, info, answer, headers, fault)
            body = await answer.read()
        if isinstance(fault, Disconnect):
            return _cut(request)
        if not isinstance(fault, Truncate):
            return web.Response(status=answer.status, headers=headers, body=body)
        response = web.StreamResponse(status=answer.status, headers=headers)
        response.content_length = len(body)
        await response.prepare(request)
        await response.write(body[: len(body) // 2])
        return _cut(request)

    async def _stream(
        self,
        request: web.BaseRequest,
        info: RequestInfo,
        answer: aiohttp.ClientResponse,
        headers: CIMultiDict[str],
        fault: Fault | None,
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        stream = _Stream(info, request, fault if isinstance(fault, BreakWatch) else None)
        self._streams.add(stream)
        try:
            async for line in _lines(answer):
                piece, over = stream.pieces(line)
                if piece:
                    await response.write(piece)
                if over:
                    break
        except _Cut as cut:
            await response.write(cut.args[0])
            return _cut(request)
        finally:
            self._streams.discard(stream)
        return response


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _of_end(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """Return the headers that are not of one connection."""
    kept: CIMultiDict[str] = CIMultiDict(headers)
    for name in OF_ONE_HOP:
        kept.popall(name, None)
    return kept


def _context(cluster: Json) -> ssl.SSLContext:
    import base64

    return ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())


def _refused(error: StatusError) -> web.Response:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return web.json_response(error.body, status=error.code, headers=headers)


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection; what is returned is never seen."""
    if request.transport is not None:
        request.transport.close()
    return web.Response()
