"""A request ends in an answer or in one of our errors, and a stream in lines."""

import asyncio
import gc
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.kube.connection import client as client_module
from topo_scheduler.kube.connection.client import CHECKED_BYTES, Client, Lines, WireTraffic
from topo_scheduler.kube.connection.errors import (
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    KubeError,
    Misanswered,
    NotFound,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Undecodable,
    Unreachable,
)

from .stub import Handler, fault, kubeconfig, serving, status, stubbed, success
from .virtual import now, run_virtually, virtual_time


def answering(answer: Callable[[], web.StreamResponse]) -> Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        return answer()

    return handler


async def get(client: Client, path: str = "/api/v1/pods", timeout: float = 5.0) -> bytes:
    return await client.request("GET", path, timeout=timeout)


@virtual_time
async def test_a_request_arrives_as_it_was_meant_and_is_counted() -> None:
    seen: list[web.BaseRequest] = []
    bodies: list[bytes] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request)
        bodies.append(await request.read())
        return success(201)

    async with stubbed(handler, {"token": "secret"}) as client:
        answer = await client.request(
            "PATCH", "/api/v1/pods/a%20b", body=b"{}", content_type="x/y", query={"dryRun": "All"}, timeout=5
        )
        assert json.loads(answer) == {"kind": "Status", "status": "Success"}
        assert client.traffic.requests == {("PATCH", 201): 1}
        assert client.traffic.bytes_received == len(answer)
    request = seen[0]
    assert (request.method, bodies[0]) == ("PATCH", b"{}")
    assert request.path_qs == "/api/v1/pods/a%20b?dryRun=All&timeout=5000ms"
    assert request.headers["Authorization"] == "Bearer secret"
    assert request.headers["Content-Type"] == "x/y"
    assert request.headers["User-Agent"].startswith("topo-scheduler/")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (429, TooManyRequests),
        (500, ServerError),
        (503, ServerError),
        (422, ApiError),
    ],
)
@virtual_time
async def test_every_refusal_has_its_error_with_the_servers_words(code: int, kind: type[ApiError]) -> None:
    async with stubbed(answering(lambda: status(code, "Because", "no"))) as client:
        with pytest.raises(ApiError) as caught:
            await get(client)
    assert type(caught.value) is kind
    assert str(caught.value) == f"GET /api/v1/pods: {code} Because: no"
    assert caught.value.message == "no"


@virtual_time
async def test_the_server_says_when_to_come_back() -> None:
    answers = [
        web.Response(status=429, text="Too many requests, please try again later.\n", headers={"Retry-After": "7"}),
        status(429, "TooManyRequests", "busy", details={"retryAfterSeconds": 3}),
        web.Response(
            status=503, text="<html>" + "x" * 10_000, headers={"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}
        ),
    ]
    async with stubbed(answering(lambda: answers.pop(0))) as client:
        for asked, message in [(7.0, "Too many requests, please try again later."), (3.0, "busy"), (None, "<html>")]:
            with pytest.raises(ApiError) as caught:
                await get(client)
            assert caught.value.retry_after == asked
            assert caught.value.message.startswith(message)
            assert len(caught.value.message) <= 500


@virtual_time
async def test_redirects_are_not_followed_with_our_credentials() -> None:
    async with stubbed(
        answering(lambda: web.Response(status=302, headers={"Location": "http://elsewhere/"}))
    ) as client:
        with pytest.raises(ApiError, match="302 Found"):
            await get(client)


@virtual_time
async def test_a_refused_connection_was_never_sent() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with serving(answering(web.Response)) as address:
            client = await Client.connect(str(kubeconfig(Path(folder), address)))
        with pytest.raises(Unreachable, match="Connect call failed") as caught:
            await get(client)
        assert not caught.value.sent
        assert client.traffic.requests == {("GET", 0): 1}
        await client.close()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("strange", [b"", b"<html>", b"{}", b'{"kind": ""}', b"[]"])
@virtual_time
async def test_an_answer_that_names_no_kind_is_none_of_the_api_server(method: str, strange: bytes) -> None:
    async with stubbed(answering(lambda: web.Response(body=strange))) as client:
        with pytest.raises(Misanswered, match="the answer 200 is not one of an API server") as caught:
            await client.request(method, "/x", body=b"{}" if method == "POST" else None, timeout=5)
        assert caught.value.sent


@virtual_time
async def test_large_answers_are_checked_by_their_readers() -> None:
    """To skip through a list of 24 MiB would occupy the event loop."""
    large = b" " * CHECKED_BYTES + b"{}"
    async with stubbed(answering(lambda: web.Response(body=large))) as client:
        assert await get(client) == large


@pytest.mark.internal_errors
@virtual_time
async def test_a_fault_of_the_http_library_is_the_failure_of_one_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stubbed(answering(success)) as client:
        with monkeypatch.context() as patched:
            patched.setattr(aiohttp.ClientSession, "request", fault)
            with pytest.raises(Unreachable, match="internal error: KeyError"):
                await get(client)
        assert "internal error in a request, please report it: GET /api/v1/pods" in caplog.text
        await get(client)


async def test_a_write_that_is_cancelled_right_before_its_time_is_up_ends_without_an_unretrieved_error() -> None:
    async def silent(_: web.BaseRequest) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    loop, reported = asyncio.get_running_loop(), list[str]()
    loop.set_exception_handler(lambda _, context: reported.append(context["message"]))
    async with stubbed(silent) as client:
        writing = asyncio.create_task(client.request("PUT", "/api/v1/nodes/a", body=b"{}", timeout=0.3))
        await asyncio.sleep(0.1)
        loop.call_later(0.1, writing.cancel)
        loop.call_soon(time.sleep, 0.4)  # so that the loop finds both due at once, in this order
        with pytest.raises(asyncio.CancelledError):
            await writing
        await asyncio.sleep(0.05)
    del writing
    gc.collect()
    assert not [message for message in reported if "never retrieved" in message]


@virtual_time
async def test_no_answer_in_time_may_have_been_sent() -> None:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        await asyncio.sleep(100)
        return web.Response()

    async with stubbed(handler) as client:
        began = now()
        with pytest.raises(Unreachable, match=r"no answer within 2\.5 s") as caught:
            await get(client, timeout=2.5)
        assert caught.value.sent
        assert now() - began < 3


def cut(after: bytes) -> Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 100
        if after:
            await response.prepare(request)
            await response.write(after)
        assert request.transport is not None
        request.transport.close()
        return response

    return handler


@pytest.mark.parametrize("after", [b"", b'{"half":'])
@virtual_time
async def test_an_answer_that_breaks_off_may_have_been_sent(after: bytes) -> None:
    async with stubbed(cut(after)) as client:
        with pytest.raises(Unreachable) as caught:
            await client.request("POST", "/x", body=b"{}", timeout=5)
        assert caught.value.sent
        assert isinstance(caught.value.__cause__, aiohttp.ClientError)


@virtual_time
async def test_a_refused_token_is_read_again_once_however_many_are_refused() -> None:
    token = "new"
    asked: list[str] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.headers["Authorization"])
        return success() if asked[-1] == f"Bearer {token}" else status(401, "Unauthorized")

    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "token"
        secret.write_text("old\n")
        async with stubbed(handler, {"tokenFile": str(secret)}) as client:
            secret.write_text("new\n")
            await asyncio.gather(*[get(client) for _ in range(5)])
            assert asked.count("Bearer old") == 5
            assert asked.count("Bearer new") == 5
            token = "newer"
            with pytest.raises(Unauthorized):
                await get(client)
            assert asked[10:] == ["Bearer new"], "the same token is not tried twice"


async def collect(client: Client, silence: float = 70.0) -> list[list[bytes]]:
    async with client.stream("/watch", query={"watch": "1"}, silence=silence) as lines:
        return [batch async for batch in lines]


def streaming(*pieces: bytes, pause: float = 0.1) -> Handler:
    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(pause)
        return response

    return handler


@virtual_time
async def test_lines_come_in_the_batches_in_which_they_arrived() -> None:
    async with stubbed(streaming(b"a\nb\nc", b"c\n", b"d", b"d", b"\ne")) as client:
        assert await collect(client) == [[b"a", b"b"], [b"cc"], [b"dd"], [b"e"]]
        assert client.traffic.requests == {("WATCH", 200): 1}
        assert client.traffic.bytes_received == 11


@virtual_time
async def test_a_silent_stream_is_given_up() -> None:
    async with stubbed(streaming(b"a\n", b"b\n", b"c\n", pause=30)) as client:
        began = now()
        with pytest.raises(Unreachable, match="stream broke off"):
            await collect(client, silence=20)
        assert now() - began < 22


@virtual_time
async def test_a_stream_that_is_refused_raises_as_a_request_does() -> None:
    async with stubbed(answering(lambda: status(410, "Expired", "too old"))) as client:
        with pytest.raises(Gone, match="WATCH /watch: 410 Expired: too old"):
            await collect(client)
        assert client.traffic.requests == {("WATCH", 410): 1}


class _Pieces:
    """Stands for a stream reader."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def readany(self) -> Awaitable[bytes]:
        async def read() -> bytes:
            return self.pieces.pop(0) if self.pieces else b""

        return read()


def lines_of(pieces: list[bytes]) -> list[bytes]:
    lines: list[bytes] = []

    async def read() -> None:
        stream = cast(aiohttp.StreamReader, _Pieces([piece for piece in pieces if piece]))
        async for batch in Lines(stream, WireTraffic(), "WATCH"):
            assert batch
            lines.extend(batch)

    run_virtually(read())
    return lines


@given(st.lists(st.binary(max_size=5).map(lambda data: data.replace(b"\x00", b"\n")), max_size=20))
def test_lines_do_not_depend_on_how_they_were_cut(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    expected = whole.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines_of(pieces) == expected


def test_a_long_line_is_not_copied_again_with_every_piece() -> None:
    piece = b"x" * 65_536
    assert lines_of([piece] * 512 + [b"\n"]) == [piece * 512]  # 32 MiB: seconds, if it were quadratic


def test_an_endless_line_is_no_kubernetes_object(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "LONGEST_LINE_BYTES", 1_000)
    with pytest.raises(Undecodable, match="a line of more than 1000 bytes"):
        lines_of([b"x" * 600, b"x" * 600])


def test_all_errors_are_one_tree() -> None:
    for error in (Unreachable("x"), Undecodable("x"), ApiError(418)):
        assert isinstance(error, KubeError)
    assert str(ApiError(418)) == "418"
    assert json.dumps(ApiError(429, details={"a": 1}).details) == '{"a": 1}'


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (lambda: status(404, "NotFound", 'pods "a" not found', details={"name": "a", "kind": "pods"}), NotFound),
        (lambda: status(404, "NotFound", "no such path"), Misanswered),
        (lambda: status(404, "NotFound", 'namespaces "b" not found', details={"name": "b"}), Misanswered),
        (lambda: web.Response(status=404, text="default backend - 404"), Misanswered),
        (lambda: web.Response(status=404, text="[]", content_type="application/json"), Misanswered),
        (lambda: status(403, "Forbidden"), Forbidden),
    ],
)
@virtual_time
async def test_only_an_answer_that_names_the_object_says_that_it_does_not_exist(
    answer: Callable[[], web.Response], error: type[KubeError]
) -> None:
    async with stubbed(answering(answer)) as client:
        with pytest.raises(KubeError) as raised:
            await client.read("/api/v1/namespaces/default/pods/a", "a", timeout=5)
    assert type(raised.value) is error
