"""The server as a thing to start, stop and reach, and what each user may do on it."""

import stat
from pathlib import Path

import aiohttp
import pytest
import yaml

from topo_scheduler.simulation.apiserver import ADMIN, EmbeddedAPIServer, Store

PODS = "/api/v1/namespaces/default/pods"


async def _code(server: EmbeddedAPIServer, path: str, **headers: str) -> int:
    async with aiohttp.ClientSession(server.url) as client, client.get(path, headers=headers) as response:
        return response.status


async def test_a_server_that_was_not_started_has_no_address() -> None:
    with pytest.raises(RuntimeError):
        _ = EmbeddedAPIServer().url


async def test_a_kubeconfig_is_for_its_owner_only(tmp_path: Path) -> None:
    async with EmbeddedAPIServer() as server:
        path = server.write_kubeconfig(tmp_path / "config")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        config = yaml.safe_load(path.read_text())
        assert config["clusters"][0]["cluster"]["server"] == server.url
        assert config["users"][0]["user"]["token"]


async def test_two_servers_and_one_store() -> None:
    store = Store()
    async with EmbeddedAPIServer(store) as first, EmbeddedAPIServer(store) as other:
        assert first.url != other.url
        store.create("configmaps", {"metadata": {"name": "a"}})
        for server in (first, other):
            assert await _code(server, "/api/v1/namespaces/default/configmaps/a") == 200


async def test_without_rbac_no_authorization_is_checked() -> None:
    async with EmbeddedAPIServer() as server:
        assert await _code(server, PODS) == 200
        assert await _code(server, PODS, Authorization="Bearer nonsense") == 200


async def test_with_rbac_a_token_is_needed() -> None:
    async with EmbeddedAPIServer(rbac=True) as server:
        admin = server.kubeconfig()["users"][0]["user"]["token"]
        assert await _code(server, PODS) == 403
        assert await _code(server, "/readyz") == 200
        assert await _code(server, PODS, Authorization=f"Bearer {admin}") == 200
        robot = {"Impersonate-User": "system:serviceaccount:default:robot"}
        assert await _code(server, PODS, Authorization=f"Bearer {admin}", **robot) == 403


async def test_whoever_brings_no_token_may_be_trusted() -> None:
    async with EmbeddedAPIServer(rbac=True, anonymous=ADMIN) as server:
        assert await _code(server, PODS) == 200
        assert await _code(server, PODS, Authorization="Bearer nonsense") == 401


async def test_roles_for_the_whole_cluster() -> None:
    async with EmbeddedAPIServer(rbac=True) as server:
        rbac = "rbac.authorization.k8s.io"
        rules = [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["list"]},
            {"nonResourceURLs": ["/debug/*"], "verbs": ["get"]},
        ]
        server.store.create(f"clusterroles.{rbac}", {"metadata": {"name": "lister"}, "rules": rules})
        group = {"kind": "Group", "name": "system:serviceaccounts:default"}
        ref = {"apiGroup": rbac, "kind": "ClusterRole", "name": "lister"}
        server.store.create(
            f"clusterrolebindings.{rbac}", {"metadata": {"name": "b"}, "roleRef": ref, "subjects": [group]}
        )
        admin = server.kubeconfig()["users"][0]["user"]["token"]
        robot = {"Authorization": f"Bearer {admin}", "Impersonate-User": "system:serviceaccount:default:robot"}
        assert await _code(server, "/api/v1/nodes", **robot) == 200
        assert await _code(server, "/api/v1/nodes/n", **robot) == 403
        assert await _code(server, "/debug/x", **robot) == 404, "allowed, but not there"
        assert await _code(server, "/metrics", **robot) == 403
