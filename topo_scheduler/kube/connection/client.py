"""One function that sends a request, and one that follows a stream.

Everything else in this package goes through :class:`Client`. It raises only the errors of ``errors`` and follows no
redirect. It repeats a request in one case only: once, after a 401 or an unknown certificate, if reloading the
credentials changed them. Every caller passes a timeout.

A plain client only reads. Code that writes uses ``client.fenced(fence)``, which checks the fence before every
request that is not a GET (see ``fence``). No writer can therefore forget the check.
"""

import asyncio
import copy
import logging
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import urlencode

import aiohttp
import msgspec
from yarl import URL

from topo_scheduler import __version__
from topo_scheduler.api.base import Base
from topo_scheduler.api.objects import Status
from topo_scheduler.kube.connection.errors import (
    ApiError,
    KubeError,
    Misanswered,
    NotFound,
    ServerError,
    TooLarge,
    Unauthorized,
    Undecodable,
    Unreachable,
    api_error,
    is_missing,
)
from topo_scheduler.kube.connection.fence import Fence, FencedBody
from topo_scheduler.kube.connection.odd_json import REFUSED, decode_object, decoded
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.connection.server_clock import ServerClock
from topo_scheduler.kube.connection.transport import Connection, Transport

T = TypeVar("T")

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"

CONNECT_SECONDS = 10.0
"""Connect timeout in seconds: a server on the same network accepts a connection in milliseconds."""

SILENCE_SECONDS = 70.0
"""A watch without a byte for this many seconds is dead: bookmarks come every 60 s, plus jitter."""

CHECKED_BYTES = 4 * 1024 * 1024
"""Answers up to this size in bytes must name their kind. Larger ones are lists, which their readers check."""

LONGEST_LINE_BYTES = 64 * 1024 * 1024
"""Longest line in bytes: etcd stores objects of up to 1.5 MiB; a line beyond this is not a Kubernetes object."""

logger = logging.getLogger(__name__)

_NOT_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.InvalidURL)
_status = msgspec.json.Decoder(Status)


class _Kinded(Base):
    kind: str = ""


_kinded = msgspec.json.Decoder(_Kinded)
_BEGIN_OF_MOST = b'{"kind":"'
"""How an API server begins all objects but custom ones: it spares reading most answers twice."""


@dataclass(slots=True)
class WireTraffic:
    """Requests and received bytes, for the metrics."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter)
    """Requests by method and status code; 0 where no answer came."""
    bytes_received: int = 0


class Lines:
    """The lines of a stream, in batches: all complete lines that have arrived, at least one."""

    def __init__(self, content: aiohttp.StreamReader, traffic: WireTraffic, request: str) -> None:
        self._content = content
        self._traffic = traffic
        self._request = request
        self._begun: list[bytes] = []  # chunks of an incomplete line: joined once, not per chunk
        self._begun_size = 0

    def __aiter__(self) -> "Lines":
        return self

    async def __anext__(self) -> list[bytes]:
        while True:
            try:
                chunk = await self._content.readany()
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                raise Unreachable(f"{self._request}: stream broke off: {_describe(error)}") from error
            self._traffic.bytes_received += len(chunk)
            if not chunk:
                if not self._begun:
                    raise StopAsyncIteration
                return [self._finish(b"")]
            complete, newline, rest = chunk.rpartition(b"\n")
            if newline:
                lines = self._finish(complete).split(b"\n")
                self._begin(rest)
                return lines
            self._begin(rest)

    def _begin(self, part: bytes) -> None:
        if part:
            self._begun.append(part)
            self._begun_size += len(part)
            if self._begun_size > LONGEST_LINE_BYTES:
                raise Undecodable(f"{self._request}: a line of more than {LONGEST_LINE_BYTES} bytes")

    def _finish(self, end: bytes) -> bytes:
        whole = b"".join((*self._begun, end)) if self._begun else end
        self._begun.clear()
        self._begun_size = 0
        return whole


class Client:
    """An authenticated connection pool to one API server."""

    def __init__(self, transport: Transport, *, user_agent: str) -> None:
        self._transport = transport
        # Uncompressed: near the API server, gzip costs both sides more than the bytes it saves.
        self._headers = {"User-Agent": user_agent, "Accept-Encoding": "identity"}
        self.traffic = WireTraffic()
        self.server_clock = ServerClock()
        self.outage = Outage()
        """Times without an answer from the API server, as its reflectors report them."""
        self._fence: Fence | None = None
        self._outlasting: set[asyncio.Task[bytes]] = set()
        """Writes on the wire whose callers were cancelled."""

    @classmethod
    async def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        user_agent: str = f"topo-scheduler/{__version__}",
        pool_size: int = 0,
    ) -> "Client":
        """Read the configuration; raises ``Misconfigured``. The first request contacts the server.

        ``pool_size`` is the most connections, 0 for no limit. Each kind of write has a limit of its own: with one
        for all, writes that hang would hold up the renewals of the Lease.
        """
        return cls(await Transport.open(kubeconfig, context, pool_size), user_agent=user_agent)

    def fenced(self, fence: Fence) -> "Client":
        """Return a client on the same connections that also writes, as far as the fence allows."""
        client = copy.copy(self)
        client._fence = fence
        return client

    @property
    def server(self) -> str:
        """The address of the API server."""
        return self._transport.server

    @property
    def namespace(self) -> str:
        """The namespace of the kubeconfig's context, or of the pod; ``default`` where neither names one."""
        return self._transport.namespace

    async def connection(self) -> Connection:
        """Return server and credentials, for use by another client."""
        return await self._transport.connection()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        content_type: str = JSON,
        query: Mapping[str, str] | None = None,
        accept: str = JSON,
        timeout: float,
        recheck: Callable[[], str] | None = None,
        most_bytes: int | None = None,
    ) -> bytes:
        """Send one request and return the body of the answer.

        ``path`` is already quoted, and ``timeout`` is in seconds. The client calls ``recheck`` right before the
        bytes of a write leave. The API server carries out a write within ``timeout`` or the shorter time that the
        fence allows, or not at all.

        Raises:
            ApiError: the answer is not 2xx.
            Unreachable: no answer within ``timeout`` seconds.
            Fenced: it is a write, and this process may not send it.
            Withdrawn: ``recheck`` returned a text, which becomes the message.
            TooLarge: the answer has more than ``most_bytes`` bytes.
        """
        headers = {**self._headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = content_type
        if method != "GET" and (self._fence is None or not body):
            raise RuntimeError(f"{method} {path}: a write needs a fence, and a body that asks it")
        authorization = await self._transport.authorization()
        try:
            return await self._attempt(
                method, path, query, {**headers, **authorization}, body, timeout, recheck, most_bytes
            )
        except (Unauthorized, Unreachable) as error:
            if not _credentials_at_fault(error) or not await self._transport.reload(authorization):
                raise
        authorization = await self._transport.authorization()
        return await self._attempt(
            method, path, query, {**headers, **authorization}, body, timeout, recheck, most_bytes
        )

    async def read(
        self, path: str, name: str, *, accept: str = JSON, timeout: float, most_bytes: int | None = None
    ) -> bytes:
        """Get the object of this name.

        Raises the errors of `request`, but `NotFound` only if the API server says that the object does not exist.
        Another answer 404, as of a load balancer without a backend, counts as `Misanswered`.
        """
        try:
            return await self.request("GET", path, accept=accept, timeout=timeout, most_bytes=most_bytes)
        except NotFound as error:
            if is_missing(error, name):
                raise
            raise Misanswered(f"{error} (this answer does not name the object)") from error

    async def _attempt(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        body: bytes | None,
        timeout: float,
        recheck: Callable[[], str] | None,
        most_bytes: int | None,
    ) -> bytes:
        fence = self._fence
        if body is None or fence is None:
            return await self._send(method, _url(path, query), headers, None, timeout, most_bytes)
        deadline = fence.deadline(timeout)
        url = _url(path, {**(query or {}), "timeout": f"{deadline * 1000:.0f}ms"})
        payload = FencedBody(body, fence, deadline, recheck)
        writing = asyncio.ensure_future(self._write(method, url, query, headers, payload, fence, timeout))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            # What has left may take effect anyway. Its answer shows when that is over, usually in milliseconds. Without
            # the answer, the lease would be held for the whole deadline.
            if fence.is_on_wire(payload):
                self._outlasting.add(writing)
            else:
                writing.cancel()  # it may end by its own timeout instead
            writing.add_done_callback(self._outlasted)
            raise

    def _outlasted(self, writing: asyncio.Task[bytes]) -> None:
        self._outlasting.discard(writing)
        if not writing.cancelled():
            writing.exception()  # retrieved, so that asyncio does not log it

    async def _write(
        self,
        method: str,
        url: str,
        query: Mapping[str, str] | None,
        headers: dict[str, str],
        payload: FencedBody,
        fence: Fence,
        timeout: float,
    ) -> bytes:
        settled = query is not None and query.get("dryRun") == "All"  # changes nothing, whatever the answer
        try:
            answer = await self._send(method, url, headers, payload, timeout)
            settled = True
            return answer
        except ApiError as error:
            settled |= not isinstance(error, ServerError)
            raise
        except Unreachable as error:
            if payload.refusal is not None and not payload.left:
                raise payload.refusal from error
            raise
        finally:
            fence.ended(payload, settled=settled)

    async def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: FencedBody | None,
        timeout: float,
        most_bytes: int | None = None,
    ) -> bytes:
        transport = self._transport
        status, asked = 0, self.server_clock.asked()
        try:
            async with transport.session.request(
                method,
                URL(transport.server + url, encoded=True),
                data=body,
                headers=headers,
                timeout=_total(timeout),
                allow_redirects=False,
                **transport.options,
            ) as response:
                self.server_clock.heard(response.headers.get("Date"), asked)
                answer = await (response.read() if most_bytes is None else _read(response, most_bytes))
                status = response.status
        except _NOT_SENT as error:
            raise Unreachable(f"{method} {url}: {_describe(error)}", sent=False) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            sent = body is None or body.left
            raise Unreachable(f"{method} {url}: {_describe(error, timeout)}", sent=sent) from error
        except KubeError:
            raise
        except Exception as error:  # a fault of the client concerns one request, and must not end the process
            if transport.session.closed:
                raise  # the process ends
            logger.exception("internal error in a request, please report it: %s %s", method, url)
            sent = body is None or body.left
            raise Unreachable(f"{method} {url}: internal error: {error!r}", sent=sent) from error
        finally:
            self.traffic.requests[method, status] += 1
        self.traffic.bytes_received += len(answer)
        if status >= 300:
            raise _refusal(f"{method} {url}", status, response.headers, answer)
        if "json" in headers["Accept"] and not names_kind(answer):
            sent = body is None or body.left
            raise Misanswered(f"{method} {url}: the answer {status} is not one of an API server", sent=sent)
        return answer

    @asynccontextmanager
    async def stream(
        self,
        path: str,
        *,
        query: Mapping[str, str],
        accept: str = JSON,
        silence: float = SILENCE_SECONDS,
    ) -> AsyncIterator[Lines]:
        """Open a GET whose answer arrives line by line, for as long as a byte comes every ``silence`` seconds.

        Raises the errors of :meth:`request`; the iterator raises ``Unreachable`` if the stream breaks off.
        """
        url = _url(path, query)
        request = f"WATCH {path}"
        authorization = await self._transport.authorization()
        try:
            response = await self._open(url, request, {**self._headers, "Accept": accept, **authorization}, silence)
        except (Unauthorized, Unreachable) as error:
            if _credentials_at_fault(error):
                await self._transport.reload(authorization)  # the caller that follows a stream opens it again
            raise
        try:
            yield Lines(response.content, self.traffic, request)
        finally:
            response.close()

    async def _open(self, url: str, request: str, headers: dict[str, str], silence: float) -> aiohttp.ClientResponse:
        transport = self._transport
        status = 0
        try:
            response = await transport.session.get(
                URL(transport.server + url, encoded=True),
                headers=headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=CONNECT_SECONDS, sock_connect=CONNECT_SECONDS, sock_read=silence
                ),
                allow_redirects=False,
                **transport.options,
            )
            status = response.status
            if status < 300:
                return response
            async with response:
                answer = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"{request}: {_describe(error)}") from error
        finally:
            self.traffic.requests["WATCH", status] += 1
        raise _refusal(request, status, response.headers, answer)


async def _read(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := await response.content.readany():
        parts.append(part)
        size += len(part)
        if size > most_bytes:
            raise TooLarge(f"{response.method} {response.url.path}: an answer of more than {most_bytes} bytes")
    return b"".join(parts)


def names_kind(answer: bytes) -> bool:
    """Return whether an answer is an object of Kubernetes, or too large to check.

    Other servers behind the same load balancer may answer everything with 200.
    """
    if answer.startswith(_BEGIN_OF_MOST):
        return True
    try:
        return len(answer) > CHECKED_BYTES or bool(decoded(_kinded.decode, answer).kind)
    except REFUSED:
        return False


def decode(decoder: msgspec.json.Decoder[T], answer: bytes) -> T:
    """Decode an answer; raises ``Undecodable``."""
    try:
        return decoded(partial(decode_object, decoder), answer)
    except REFUSED as error:
        raise Undecodable(f"{error} (in an answer of {len(answer)} bytes)") from error


def _url(path: str, query: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(query)}" if query else path


@lru_cache(maxsize=256)
def _total(seconds: float) -> aiohttp.ClientTimeout:
    return aiohttp.ClientTimeout(total=seconds, sock_connect=min(seconds, CONNECT_SECONDS))


def _credentials_at_fault(error: Exception) -> bool:
    return isinstance(error, Unauthorized) or isinstance(error.__cause__, (ssl.CertificateError, ssl.SSLError))


def _describe(error: Exception, timeout: float | None = None) -> str:
    if isinstance(error, TimeoutError) and timeout is not None:
        return f"no answer within {timeout:.1f} s"
    return str(error) or type(error).__name__


def _refusal(request: str, code: int, headers: Mapping[str, str], answer: bytes) -> ApiError:
    try:
        status = decoded(_status.decode, answer)
    except REFUSED:  # plain text from a proxy, or from the server's overload filter
        status = Status(message=answer[:500].decode(errors="replace").strip())
    status.code = code
    status.reason = status.reason or _phrase(code)
    asked = headers.get("Retry-After", "")
    return api_error(status, request=request, retry_after=float(asked) if asked.isdecimal() else None)


def _phrase(code: int) -> str:
    return HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else ""
