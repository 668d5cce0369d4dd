"""Whatever kubeconfig or service account there is, it is used, kept fresh, and complained about in plain words."""

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import certifi
import pytest
import yaml
from aiohttp import web

from topo_scheduler.kube.connection import transport as transport_module
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import Misconfigured
from topo_scheduler.kube.connection.library import library
from topo_scheduler.kube.connection.transport import Transport

from .stub import kubeconfig, stubbed
from .virtual import real_time, virtual_time

CERTIFICATES = Path(certifi.where()).read_text()
SERVER = "http://127.0.0.1:1"


@pytest.fixture(autouse=True)
def no_surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("KUBE"):
            monkeypatch.delenv(name)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def opened(path: Path | None, context: str | None = None) -> Transport:
    transport = await Transport.open(str(path) if path else None, context, 10)
    await transport.close()
    return transport


@virtual_time
async def test_a_kubeconfig_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="missing does not exist, and this is not a pod"):
        await opened(folder / "missing")


@virtual_time
async def test_a_context_that_is_not_there_is_named(folder: Path) -> None:
    with pytest.raises(Misconfigured, match="production"):
        await opened(kubeconfig(folder, SERVER), "production")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "it has no current-context; its contexts are none: name one by --context"),
        ("contexts: [{name: a}, {name: b}]", "it has no current-context; its contexts are a, b: name one by --context"),
        ("current-context: c\ncontexts: [{name: a}]", "it has no context 'c'; its contexts are a: name one"),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: x}}]\nclusters: 3",
            "its context 'a' names cluster 'x', which is not below clusters",
        ),
        (
            "current-context: a\ncontexts: [{name: a, context: {cluster: x, user: y}}]\nclusters: [{name: x}]",
            "its context 'a' names user 'y', which is not below users",
        ),
    ],
)
@virtual_time
async def test_what_a_context_lacks_is_named(folder: Path, text: str, words: str) -> None:
    (folder / "config").write_text(text)
    with pytest.raises(Misconfigured, match=words):
        await opened(folder / "config")


@virtual_time
async def test_a_context_may_be_in_another_file_than_its_cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = kubeconfig(folder, SERVER, {"token": "mine"})
    lists = yaml.safe_load(whole.read_text())
    rest = folder / "contexts"
    rest.write_text(
        yaml.safe_dump({"contexts": lists.pop("contexts"), "current-context": lists.pop("current-context")})
    )
    whole.write_text(yaml.safe_dump(lists))
    monkeypatch.setenv("KUBECONFIG", f"{rest}:{whole}")
    assert (await opened(None)).server == SERVER


@virtual_time
async def test_a_kubeconfig_that_is_none_is_refused(folder: Path) -> None:
    (folder / "config").write_text("a: [\n")
    with pytest.raises(Misconfigured, match="cannot use"):
        await opened(folder / "config")


@virtual_time
async def test_kubectls_default_is_used_outside_of_a_pod(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(folder, SERVER, {"token": "mine"})))
    transport = await opened(None)
    assert transport.server == SERVER
    assert await transport.authorization() == {"Authorization": "Bearer mine"}


@virtual_time
async def test_inside_a_pod_the_service_account_is_used_and_its_token_followed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, certificate = folder / "token", folder / "ca.crt"
    token.write_text("first")
    certificate.write_text(CERTIFICATES)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(transport_module, "SERVICE_ACCOUNT", folder)
    load = library().load_incluster_config
    monkeypatch.setattr(load, "__kwdefaults__", None)
    monkeypatch.setitem(load.__globals__, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setitem(load.__globals__, "SERVICE_CERT_FILENAME", str(certificate))
    monkeypatch.setitem(load.__globals__, "TOKEN_REFRESH_PERIOD", timedelta(0))
    transport = await opened(None)
    assert transport.server == "https://10.0.0.1:443"
    assert await transport.authorization() == {"Authorization": "Bearer first"}
    token.write_text("second\n")
    assert await transport.authorization() == {"Authorization": "Bearer first"}, "looked at once a minute"
    transport._next_check = 0
    assert await transport.authorization() == {"Authorization": "Bearer second"}
    token.unlink()
    transport._next_check = 0
    assert await transport.authorization() == {"Authorization": "Bearer second"}, "kept while it cannot be read"


PLUGIN = """
import json, pathlib, sys
count = pathlib.Path(sys.argv[1])
number = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(number))
status = {"token": f"token-{number}", "expirationTimestamp": sys.argv[2]}
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
"""


def plugin(folder: Path, expires: float) -> dict[str, object]:
    script = folder / "plugin.py"
    script.write_text(PLUGIN)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires))
    command = [str(script), str(folder / "count"), when]
    return {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": command}}


@real_time
async def test_an_exec_plugin_is_run_again_before_its_token_ends(folder: Path) -> None:
    transport = await opened(kubeconfig(folder, SERVER, plugin(folder, time.time() + 3600)))
    transport._next_check = 0
    assert await transport.authorization() == {"Authorization": "Bearer token-1"}, "good for an hour"
    transport = await opened(kubeconfig(folder, SERVER, plugin(folder, time.time() + 60)))
    assert await transport.authorization() == {"Authorization": "Bearer token-2"}
    transport._next_check = 0
    assert await transport.authorization() == {"Authorization": "Bearer token-3"}, "ends within five minutes"


@real_time
async def test_an_exec_plugin_that_fails_says_so(folder: Path) -> None:
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "false"}}
    with pytest.raises(Misconfigured, match="process returned 1"):
        await opened(kubeconfig(folder, SERVER, user))


@virtual_time
async def test_a_reload_that_changes_nothing_says_so_and_is_not_repeated_at_once(folder: Path) -> None:
    path = kubeconfig(folder, SERVER, {"token": "a"})
    transport = await Transport.open(str(path), None, 10)
    try:
        assert not await transport.reload(await transport.authorization())
        kubeconfig(folder, SERVER, {"token": "b"})
        assert not await transport.reload(await transport.authorization()), "just done"
        transport._next_reload = 0
        used = await transport.authorization()
        assert await transport.reload(used)
        assert await transport.reload(used), "another request did it"
        path.write_text("{}")
        transport._next_reload = 0
        assert not await transport.reload(await transport.authorization())
        assert await transport.authorization() == {"Authorization": "Bearer b"}
    finally:
        await transport.close()


@virtual_time
async def test_new_certificates_are_a_new_session(folder: Path) -> None:
    certificate = folder / "ca.crt"
    certificate.write_text(CERTIFICATES)
    path = kubeconfig(folder, "https://127.0.0.1:1", None, **{"certificate-authority": str(certificate)})
    transport = await Transport.open(str(path), None, 10)
    try:
        session = transport.session
        certificate.write_text(CERTIFICATES + "\n")
        assert await transport.reload(await transport.authorization())
        assert transport.session is not session
        assert not session.closed, "what uses it may end"
    finally:
        await transport.close()
    assert session.closed


@pytest.mark.parametrize(
    ("environment", "cluster", "expected"),
    [
        ({}, {}, {}),
        ({"HTTP_PROXY": "http://proxy:3128"}, {}, {"proxy": "http://proxy:3128"}),
        ({"HTTP_PROXY": "http://proxy:3128", "NO_PROXY": "10.0.0.1"}, {}, {}),
        ({"HTTP_PROXY": "http://a:1"}, {"proxy-url": "http://b:2"}, {"proxy": "http://b:2"}),
        ({}, {"tls-server-name": "kubernetes"}, {"server_hostname": "kubernetes"}),
    ],
)
@virtual_time
async def test_proxies_are_read_once(
    environment: dict[str, str],
    cluster: dict[str, str],
    expected: dict[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    transport = await opened(kubeconfig(folder, "http://10.0.0.1:8080", None, **cluster))
    assert transport.options == expected


@virtual_time
async def test_a_server_may_live_below_a_path() -> None:
    paths: list[str] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        paths.append(request.path)
        return web.json_response({"kind": "Status"})

    async with stubbed(handler) as client:
        with tempfile.TemporaryDirectory() as name:
            below = await Client.connect(str(kubeconfig(Path(name), f"{client.server}/k8s/clusters/c-1/")))
            await below.request("GET", "/version", timeout=5)
            await below.close()
    assert paths == ["/k8s/clusters/c-1/version"]
