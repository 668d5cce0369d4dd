"""The server of health and metrics: clients that are slow, silent, many, or without a right."""

import asyncio
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvloop

from topo_scheduler.observability import certificates, health, serving
from topo_scheduler.observability.certificates import CertificateError, Certificates, self_signed

BIG = b"x" * 40_000_000
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(params=["plain", "tls"])
def secure(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "tls")


@asynccontextmanager
async def served(
    secure: bool = False, authorize: health.Authorize | None = None, metrics: Callable[[], bytes] = lambda: b"some 1\n"
) -> AsyncIterator[int]:
    app = health.application({"loop": lambda: ""}, {"caches": lambda: "not yet"}, metrics, authorize)
    certs = Certificates()
    if secure:
        certs.load()
    context = (lambda: certs.context) if secure else None
    async with serving.serving(app, "127.0.0.1", 0, context) as port:
        yield port


def trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connect(port: int, secure: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", port, ssl=trusting() if secure else None)


async def get(port: int, path: str, secure: bool = False, **headers: str) -> tuple[int, str]:
    url = f"{'https' if secure else 'http'}://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trusting(), headers=headers) as answer:
        return answer.status, await answer.text()


async def ends(reader: asyncio.StreamReader, seconds: float = 10) -> bool:
    """Whether the server ends the connection in time, answered or not."""
    try:
        async with asyncio.timeout(seconds):
            while await reader.read(65536):
                pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


async def test_health_and_metrics_are_served(secure: bool) -> None:
    async with served(secure) as port:
        assert await get(port, "/livez", secure) == (200, "ok")
        assert await get(port, "/healthz?verbose", secure) == (200, "[+]loop ok\nhealthz check passed\n")
        assert await get(port, "/readyz", secure) == (500, "[-]caches failed: not yet\nreadyz check failed\n")
        assert await get(port, "/metrics", secure) == (200, "some 1\n")
        assert (await get(port, "/", secure))[0] == 404


async def test_other_methods_and_bodies_are_refused(secure: bool) -> None:
    async with served(secure) as port:
        reader, writer = await connect(port, secure)
        writer.write(b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000000\r\n\r\nabc")
        assert (await reader.readline()).startswith(b"HTTP/1.1 405")
        assert await ends(reader), "the body is not waited for"
        writer.close()


# ---------------------------------------------------------------- slow clients


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HANDSHAKE_SECONDS", "HEADER_SECONDS", "RESPONSE_SECONDS"):
        monkeypatch.setattr(serving, name, 0.3)


@pytest.mark.parametrize("beginning", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\nX-", GET + b"GET /li"])
@pytest.mark.usefixtures("short")
async def test_headers_must_arrive_in_time_however_often_a_byte_comes(secure: bool, beginning: bytes) -> None:
    async with served(secure) as port:
        reader, writer = await connect(port, secure)
        writer.write(beginning)

        async def trickle() -> None:
            while True:
                writer.write(b"a")
                await asyncio.sleep(0.05)

        trickling = asyncio.create_task(trickle())
        try:
            assert await ends(reader)
        finally:
            trickling.cancel()
            writer.close()


@pytest.mark.usefixtures("short")
async def test_a_handshake_must_end_in_time() -> None:
    async with served(secure=True) as port:
        reader, writer = await connect(port, secure=False)
        writer.write(b"\x16\x03\x01")
        assert await ends(reader)
        writer.close()
        assert await get(port, "/livez", secure=True) == (200, "ok")


@pytest.mark.usefixtures("short")
async def test_an_answer_that_is_not_read_is_given_up(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if secure:
        # A TLS transport does not say what the one below holds: there the end of the whole connection is what helps.
        monkeypatch.setattr(serving, "CONNECTION_SECONDS", 0.3)
        monkeypatch.setattr(serving, "LAST_SECONDS", 0.3)
    async with served(secure, metrics=lambda: BIG) as port:
        reader, writer = await connect(port, secure)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await asyncio.sleep(1.5)  # takes nothing of it but what buffers hold
        taken = 0
        try:
            async with asyncio.timeout(10):
                while data := await reader.read(65536):
                    taken += len(data)
        except ConnectionError:
            pass
        assert taken < len(BIG)
        writer.close()


async def test_a_connection_ends_some_day(secure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTION_SECONDS", 0.5)
    async with served(secure) as port:
        reader, writer = await connect(port, secure)

        async def ask() -> None:
            while True:
                writer.write(GET)
                await asyncio.sleep(0.05)

        asking = asyncio.create_task(ask())
        try:
            assert await ends(reader)
        finally:
            asking.cancel()
            writer.close()


async def test_many_silent_clients_keep_no_other_client_from_being_answered(secure: bool) -> None:
    async with served(secure) as port:
        # In the handshake for ever, where there is one: nothing is sent.
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(serving.MAX_CONNECTIONS * 3)]
        for _ in range(5):
            assert await get(port, "/livez", secure) == (200, "ok")
        assert await ends(silent[0][0]), "the oldest went"
        for _, writer in silent:
            writer.close()


async def test_connections_are_forgotten_when_they_end(secure: bool) -> None:
    certs = Certificates()
    certs.load()
    app = health.application({}, {}, lambda: b"")
    listener = serving.Connections(app, (lambda: certs.context) if secure else None)
    (listening,) = await serving._listening("127.0.0.1", 0)
    accepting = asyncio.create_task(listener.accept(listening))
    port = listening.getsockname()[1]
    for _ in range(3):
        assert (await get(port, "/livez", secure))[0] == 200
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"no TLS, and no HTTP either\r\n\r\n")
        writer.close()
    async with asyncio.timeout(10):
        while listener.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    accepting.cancel()
    await asyncio.gather(accepting, return_exceptions=True)
    listening.close()
    await listener.close()


async def test_headers_are_limited() -> None:
    async with served() as port:
        reader, writer = await connect(port, secure=False)
        writer.write(
            b"GET /livez HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: 1\r\n" % n for n in range(1000)) + b"\r\n"
        )
        assert (await reader.readline()).startswith(b"HTTP/1.0 400")
        writer.close()


@pytest.mark.parametrize(
    "check",
    [
        test_health_and_metrics_are_served,
        test_other_methods_and_bodies_are_refused,
        test_many_silent_clients_keep_no_other_client_from_being_answered,
        test_connections_are_forgotten_when_they_end,
    ],
)
def test_the_same_on_uvloop(check: Callable[[bool], Coroutine[Any, Any, None]], secure: bool) -> None:
    """The daemon runs on it where there is one, and its transports are others."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(check(secure))


# ---------------------------------------------------------------- who may read metrics


async def test_metrics_are_for_authorized_clients_only(secure: bool) -> None:
    asked: list[str] = []

    async def authorize(token: str) -> health.ScrapeVerdict:
        asked.append(token)
        return {"good": health.ScrapeVerdict.ALLOWED, "poor": health.ScrapeVerdict.FORBIDDEN}.get(
            token, health.ScrapeVerdict.UNAVAILABLE
        )

    async with served(secure, authorize) as port:
        assert await get(port, "/livez", secure) == (200, "ok"), "the kubelet has no token"
        assert (await get(port, "/readyz?verbose", secure))[0] == 500
        assert not asked
        assert (await get(port, "/metrics", secure))[0] == 401
        assert (await get(port, "/metrics", secure, Authorization="Basic good"))[0] == 401
        assert (await get(port, "/metrics", secure, Authorization="Bearer "))[0] == 401
        assert not asked
        assert await get(port, "/metrics", secure, Authorization="Bearer good") == (200, "some 1\n")
        code, text = await get(port, "/metrics", secure, Authorization="bearer poor")
        assert code == 403 and "nonResourceURLs /metrics" in text
        assert (await get(port, "/metrics", secure, Authorization="Bearer lost"))[0] == 503
        assert asked == ["good", "poor", "lost"]


# ---------------------------------------------------------------- certificates


def write_pair(folder: Path) -> tuple[Path, Path]:
    certificate, key = self_signed()
    (folder / "tls.crt").write_bytes(certificate)
    (folder / "tls.key").write_bytes(key)
    return folder / "tls.crt", folder / "tls.key"


async def peer(port: int) -> bytes | None:
    _, writer = await connect(port, secure=True)
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return bytes(certificate)


async def test_certificates_of_files_are_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = write_pair(tmp_path)
    certs = Certificates(str(cert), str(key))
    certs.load()
    app = health.application({}, {}, lambda: b"")
    async with serving.serving(app, "127.0.0.1", 0, lambda: certs.context) as port:
        first = await peer(port)
        assert first == ssl.PEM_cert_to_DER_cert(cert.read_text())
        certs.refresh()
        assert await peer(port) == first
        write_pair(tmp_path)
        certs.refresh()
        second = await peer(port)
        assert second == ssl.PEM_cert_to_DER_cert(cert.read_text()) != first
        key.write_text("half of a rotation")
        certs.refresh()
        certs.refresh()
        assert await peer(port) == second, "the old one stays"
        assert sum("the old one stays" in text for text in caplog.messages) == 1
        key.unlink()
        certs.refresh()
        assert await peer(port) == second
        write_pair(tmp_path)
        certs.refresh()
        assert await peer(port) not in (first, second)


def test_a_self_signed_certificate_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    certs = Certificates()
    certs.load()
    first = certs.context
    certs.refresh()
    assert certs.context is first
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + certificates.VALID_SECONDS * 0.7)
    certs.refresh()
    assert certs.context is not first


@pytest.mark.parametrize("how", ["none", "garbage", "others", "password"])
def test_files_that_can_not_be_used_are_named(how: str, tmp_path: Path) -> None:
    cert, key = write_pair(tmp_path)
    if how == "none":
        key.unlink()
    elif how == "garbage":
        key.write_text("-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\n")
    elif how == "others":
        key.write_bytes(self_signed()[1])
    else:
        from cryptography.hazmat.primitives import serialization

        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        locked = serialization.BestAvailableEncryption(b"secret")
        pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        key.write_bytes(loaded.private_bytes(pem, pkcs8, locked))
    with pytest.raises(CertificateError, match=str(key)):
        Certificates(str(cert), str(key)).load()


def test_the_cryptography_library_is_imported_only_where_needed() -> None:
    program = "import sys, topo_scheduler.daemon; print('cryptography' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
