"""The embedded API server: the store behind HTTP, in this process, on this event loop.

It is an ordinary HTTP/1.1 server on a port of the loopback interface, so any Kubernetes client can use it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from aiohttp import web

from . import reading, writing
from .call import Call, ServerResponse
from .discovery import UNSTORED, discover
from .encoding import encode
from .errors import StatusError, bad_request, method_not_allowed, no_such_path
from .faults import BreakWatch, Delay, Disconnect, Fault, Faults, Refuse, Stray, Truncate
from .listening import Listener
from .objects import Json
from .rbac import ADMIN, ANONYMOUS, Tokens, User, authorize, impersonated
from .requests import RequestInfo, deadline_seconds, read_request
from .store import Store
from .watching import Stream, StreamEnd

_log = logging.getLogger(__name__)
_HEALTH: Final = ("/healthz", "/livez", "/readyz")
_MAX_BODY_BYTES: Final = 3 * 2**20
_JSON: Final = "application/json"
_VERBS: Final[Mapping[str, Callable[[Call], ServerResponse]]] = {
    "get": reading.get,
    "list": reading.list_objects,
    "create": writing.create,
    "update": writing.update,
    "patch": writing.patch,
    "delete": writing.delete,
    "deletecollection": writing.delete_collection,
}
_TOO_LATE: Final = "Timeout: request did not complete within requested timeout - context deadline exceeded"


class EmbeddedAPIServer:
    """A Kubernetes API server in this process.

    Without ``rbac`` all users may do everything. With it, requests need a token. ``kubeconfig()`` has the token of the
    administrator; the ``serviceaccounts/token`` subresource issues others. kubectl sends no token over plain HTTP;
    ``anonymous`` is the user of such requests. ``bookmark_seconds`` is the time without events after which a watch gets
    a bookmark.
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        rbac: bool = False,
        anonymous: User = ANONYMOUS,
        bookmark_seconds: float = 60.0,
    ) -> None:
        self.store = store or Store()
        self.faults = Faults()
        self.requests: deque[RequestInfo] = deque(maxlen=100_000)
        """The last requests, oldest first."""
        self.tokens = Tokens(anonymous)
        self.streams: set[Stream] = set()
        """Open watches."""
        self.rbac = rbac
        self.bookmark_seconds = bookmark_seconds
        self._admin_token = self.tokens.issue(ADMIN)
        self._server: web.Server | None = None
        self._runner: web.ServerRunner | None = None
        self._listener: Listener | None = None
        self._address: tuple[str, int] | None = None

    # Life

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Start to listen; port 0 takes a free port."""
        # With cancellation, the handler of a watch ends at once when its client disconnects.
        self._server = web.Server(self._handle, access_log=None, handler_cancellation=True)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)
        await self._runner.setup()
        self._listen(host, port)

    async def stop(self) -> None:
        """Close all connections and stop listening; the store stays unchanged."""
        await self.go_away()
        if self._runner is not None:
            await self._runner.cleanup()
        self._runner = self._server = None

    async def go_away(self) -> None:
        """Simulate an outage: close all connections and refuse new ones until ``come_back``."""
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        self._abort_connections()

    async def come_back(self) -> None:
        """End an outage: listen again, on the same port."""
        if self._listener is None and self._address is not None:
            self._listen(*self._address)

    async def __aenter__(self) -> EmbeddedAPIServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def _listen(self, host: str, port: int) -> None:
        if self._server is None:
            raise RuntimeError("the server was not started")
        self._listener = Listener(self._server, (host, port))
        self._address = self._listener.address

    def _abort_connections(self) -> None:
        for connection in self._server.connections if self._server else ():
            if connection.transport is not None:
                connection.transport.abort()

    # Use

    @property
    def url(self) -> str:
        """The URL of the server."""
        if self._address is None:
            raise RuntimeError("the server was not started")
        return f"http://{self._address[0]}:{self._address[1]}"

    def kubeconfig(self, token: str | None = None) -> Json:
        """Return a kubeconfig for the administrator, or for the user of a token."""
        user = {"token": token or self._admin_token}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "embedded", "cluster": {"server": self.url}}],
            "users": [{"name": "embedded", "user": user}],
            "contexts": [
                {"name": "embedded", "context": {"cluster": "embedded", "user": "embedded", "namespace": "default"}}
            ],
            "current-context": "embedded",
        }

    def write_kubeconfig(self, path: Path | str, token: str | None = None) -> Path:
        """Write the kubeconfig to a file that only its owner may read, as JSON, which is valid YAML."""
        path = Path(path)
        path.touch(mode=0o600)
        path.write_text(json.dumps(self.kubeconfig(token), indent=2) + "\n")
        return path

    def break_watches(self, fault: BreakWatch, resource: str | None = None) -> int:
        """Apply a fault to all open watches, or to those of one resource; return their number."""
        matching = [stream for stream in self.streams if resource in (None, stream.encoder.kind.id)]
        for stream in matching:
            stream.break_now(fault)
        return len(matching)

    # Requests

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        info = read_request(request.method, request.rel_url.raw_path, request.rel_url.query)
        self.requests.append(info)
        fault = self.faults.strike(info)
        if isinstance(fault, Delay):
            fault = await self.delayed(info, request.rel_url.query, fault)
        elif isinstance(fault, Disconnect) and not fault.applied:
            return _cut(request)
        elif isinstance(fault, Stray):
            return web.Response(body=fault.body, content_type="application/json")
        outcome = await self._outcome(request, info, fault)
        if isinstance(outcome, Stream):
            return await self._stream(request, outcome)
        if isinstance(fault, Disconnect):
            return _cut(request)
        if isinstance(fault, Truncate):
            return await _truncated(request, outcome)
        headers = {"Content-Type": outcome.media_type, **outcome.headers}
        return web.Response(body=outcome.body, status=outcome.code, headers=headers)

    async def delayed(self, info: RequestInfo, query: Mapping[str, str], delay: Delay) -> Refuse | None:
        """Wait for the delay of a fault, at most until the request's deadline; return an error if it passes."""
        try:
            deadline = math.inf if info.verb == "watch" else deadline_seconds(query)
        except ValueError as error:
            return Refuse(400, message=str(error))
        await asyncio.sleep(min(delay.seconds, deadline))
        if delay.seconds < deadline:
            return None
        return Refuse(504, message=_TOO_LATE)

    async def _outcome(
        self, request: web.BaseRequest, info: RequestInfo, fault: Fault | None
    ) -> ServerResponse | Stream:
        """Execute a request; return its response, its stream, or an error response."""
        try:
            if isinstance(fault, Refuse):
                raise fault.error()
            call = await self._call(request, info)
            if info.verb != "watch":
                return self._answer(call)
            stream = reading.open_stream(call)
            stream.fault = fault if isinstance(fault, BreakWatch) else None
            return stream
        except StatusError as error:
            return _error(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            # The body is valid JSON but does not match the schema; a typed server could not decode it.
            _log.debug("%s %s", request.method, info.path, exc_info=True)
            return _error(bad_request(f"the body of the request cannot be handled: {error!r}"))

    async def _call(self, request: web.BaseRequest, info: RequestInfo) -> Call:
        headers = request.headers
        user = self._user(headers, info)
        body = await request.content.read() if request.body_exists else b""
        if len(body) > _MAX_BODY_BYTES:
            raise StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {_MAX_BODY_BYTES}")
        return Call(
            self.store, self.tokens, user, info, request.rel_url.query, headers.get("Accept", ""),
            headers.get("Content-Type", ""), body, self.bookmark_seconds,
        )  # fmt: skip

    def _user(self, headers: Mapping[str, str], info: RequestInfo) -> User:
        user = self.tokens.user(headers.get("Authorization")) if self.rbac else ADMIN
        user = impersonated(user, headers.get("Impersonate-User"))
        if self.rbac and info.path not in _HEALTH:
            authorize(self.store, user, info)
        return user

    def _answer(self, call: Call) -> ServerResponse:
        info = call.info
        if info.resource:
            kind = call.store.kinds.at(info.group, info.version, info.resource)
            if kind is None and (info.group, info.resource) not in UNSTORED:
                return ServerResponse(b"404 page not found\n", 404, "text/plain; charset=utf-8")
            if info.verb not in _VERBS:
                raise method_not_allowed(info.verb, info.resource)
            return _VERBS[info.verb](call)
        if info.path.rstrip("/") in _HEALTH:
            return ServerResponse(b"ok", media_type="text/plain; charset=utf-8")
        document = discover(info.path, self.store.kinds, call.accept)
        if document is None:
            raise no_such_path()
        return ServerResponse(document[0], media_type=document[1])

    async def _stream(self, request: web.BaseRequest, stream: Stream) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        with suppress(ConnectionError):  # the client has disconnected
            await response.prepare(request)
            self.streams.add(stream)
            try:
                async for piece in stream.pieces():
                    if piece:
                        await response.write(piece)
            except StreamEnd as over:
                await response.write(over.last)
                if over.cut:
                    return _cut(request)
            finally:
                self.streams.discard(stream)
        return response


def _error(error: StatusError) -> ServerResponse:
    headers = {"Retry-After": str(error.retry_after)} if error.retry_after else {}
    return ServerResponse(encode(error.body), error.code, headers=headers)


def _cut(request: web.BaseRequest) -> web.StreamResponse:
    """Close the connection; the client never receives the returned response."""
    if request.transport is not None:
        request.transport.close()
    return web.Response()


async def _truncated(request: web.BaseRequest, answer: ServerResponse) -> web.StreamResponse:
    """Send half of a body, after announcing its full length."""
    response = web.StreamResponse(status=answer.code, headers={"Content-Type": answer.media_type})
    response.content_length = len(answer.body)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    return _cut(request)
