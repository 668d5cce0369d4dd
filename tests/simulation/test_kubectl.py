"""kubectl, as users have it, against the embedded server. Only its absence is an excuse."""

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store
from topo_scheduler.simulation.apiserver.objects import key_of
from topo_scheduler.simulation.apiserver.pods import bind
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.kubelet import Kubelet

from .conftest import pod, replicated

KUBECTL = shutil.which("kubectl")
pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")

Run = Callable[..., Awaitable[str]]


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedAPIServer]:
    """A cluster of two nodes in which every pod is bound to the first as soon as it appears."""
    async with EmbeddedAPIServer() as server, controllers(server.store), Kubelet(server.store):
        for name in ("node-1", "node-2"):
            capacity = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
            server.store.create("nodes", {"metadata": {"name": name}, "status": {"capacity": capacity}})
        binder = asyncio.create_task(_bind_all(server.store))
        yield server
        binder.cancel()


async def _bind_all(store: Store) -> None:
    watch = store.watch("pods")
    while True:
        for kind, record in await watch.next():
            if kind == "ADDED" and not record["spec"].get("nodeName"):
                target = {"metadata": {"name": record.key.name}, "target": {"name": "node-1"}}
                bind(store, record.key.namespace, record.key.name, target)


@pytest.fixture
async def kubectl(server: EmbeddedAPIServer, tmp_path: Path) -> Run:
    config = server.write_kubeconfig(tmp_path / "kubeconfig")
    environment = {**os.environ, "KUBECONFIG": str(config), "HOME": str(tmp_path)}

    async def run(*arguments: str, stdin: Any = None, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            KUBECTL or "", *arguments, env=environment,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        given = yaml.safe_dump_all(stdin if isinstance(stdin, list) else [stdin]).encode() if stdin else None
        output, _ = await asyncio.wait_for(process.communicate(given), 30)
        assert process.returncode == code, f"kubectl {' '.join(arguments)}\n{output.decode()}"
        return output.decode()

    return run


def manifest(api_version: str, kind: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": api_version, "kind": kind, **body}


async def test_apply_get_and_delete(kubectl: Run, server: EmbeddedAPIServer) -> None:
    objects = [manifest("v1", "Pod", pod("a")), manifest("apps/v1", "Deployment", replicated("web", 2))]
    assert await kubectl("apply", "-f", "-", stdin=objects) == "pod/a created\ndeployment.apps/web created\n"
    assert await kubectl("apply", "-f", "-", stdin=objects) == "pod/a unchanged\ndeployment.apps/web unchanged\n"
    objects[1]["spec"]["replicas"] = 3
    assert "web configured" in await kubectl("apply", "-f", "-", stdin=objects)
    assert "serverside-applied" in await kubectl(
        "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=objects
    )
    await kubectl("rollout", "status", "deployment/web", "--timeout=10s")
    lines = (await kubectl("get", "pods", "-o", "wide")).splitlines()
    assert lines[0].split()[:7] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE", "IP", "NODE"]
    assert len(lines) == 5
    assert lines[1].split()[:4] == ["a", "1/1", "Running", "0"]
    assert "node-1" in lines[1]
    assert "web" in (await kubectl("get", "all"))
    described = await kubectl("describe", "pod", "a")
    assert "Node:" in described
    assert "QoS Class:" in described
    assert await kubectl("delete", "pod", "a", "--timeout=10s") == 'pod "a" deleted\n'
    assert "not found" in await kubectl("get", "pod", "a", code=1)
    await kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=10s")
    assert server.store.list("pods") == []


async def test_a_kind_that_is_not_served_is_reported_as_by_a_real_server(kubectl: Run) -> None:
    group = manifest("scheduling.x-k8s.io/v1alpha1", "PodGroup", {"metadata": {"name": "g"}, "spec": {"minMember": 2}})
    output = await kubectl("apply", "-f", "-", stdin=group, code=1)
    assert 'no matches for kind "PodGroup" in version "scheduling.x-k8s.io/v1alpha1"' in output
    assert "ensure CRDs are installed first" in output


async def test_wait_label_annotate_patch_and_scale(kubectl: Run, server: EmbeddedAPIServer) -> None:
    await kubectl("create", "deployment", "web", "--image=busybox", "--replicas=2")
    await kubectl("wait", "--for=condition=Available", "deployment/web", "--timeout=10s")
    await kubectl("scale", "deployment/web", "--replicas=4")
    await kubectl("rollout", "status", "deployment/web", "--timeout=10s")
    assert len(server.store.list("pods")) == 4
    await kubectl("label", "node", "node-1", "zone=a")
    await kubectl("annotate", "node", "node-1", "note=x")
    await kubectl("taint", "node", "node-1", "gpu=broken:NoSchedule")
    await kubectl("patch", "node", "node-1", "-p", '{"metadata":{"labels":{"zone":"b"}}}')
    node = json.loads(await kubectl("get", "node", "node-1", "-o", "json"))
    assert (node["metadata"]["labels"]["zone"], node["metadata"]["annotations"]["note"]) == ("b", "x")
    assert node["spec"]["taints"][0]["key"] == "gpu"


async def test_drain(kubectl: Run, server: EmbeddedAPIServer) -> None:
    server.store.create("pods", pod("a"))
    output = await kubectl("drain", "node-1", "--force", "--ignore-daemonsets", "--timeout=10s")
    assert "pod/a evicted" in output
    assert "SchedulingDisabled" in await kubectl("get", "nodes")
    await kubectl("uncordon", "node-1")
    assert "SchedulingDisabled" not in await kubectl("get", "nodes")


async def test_creating_what_kubectl_sends_in_protobuf(kubectl: Run, server: EmbeddedAPIServer) -> None:
    await kubectl("create", "namespace", "team")
    await kubectl("create", "serviceaccount", "robot")
    assert len((await kubectl("create", "token", "robot")).strip()) > 20
    await kubectl("create", "configmap", "settings", "--from-literal=a=b")
    await kubectl("create", "secret", "generic", "keys", "--from-literal=a=b")
    assert await kubectl("get", "secret", "keys", "-o", "jsonpath={.data}") == '{"a":"Yg=="}'
    await kubectl("create", "priorityclass", "high", "--value=-5", "--description=low")
    assert server.store.get("priorityclasses.scheduling.k8s.io", "high")["value"] == -5
    await kubectl("create", "job", "work", "--image=busybox", "--", "sleep", "1")
    job = server.store.get("jobs.batch", "work", "default")
    assert job["spec"]["template"]["spec"]["containers"][0]["command"] == ["sleep", "1"]
    await kubectl("create", "role", "reader", "--verb=get", "--verb=list", "--resource=pods")
    await kubectl("create", "rolebinding", "readers", "--role=reader", "--serviceaccount=default:robot")
    robot = "--as=system:serviceaccount:default:robot"
    assert await kubectl("auth", "can-i", "list", "pods", robot) == "yes\n"
    assert await kubectl("auth", "can-i", "delete", "pods", robot, code=1) == "no\n"
    await kubectl("delete", "namespace", "team", "--timeout=10s")
    assert server.store.find("namespaces", "team") is None


async def test_custom_resources_have_the_columns_of_their_definition(kubectl: Run) -> None:
    columns = [
        {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
        {"name": "Ready", "type": "string", "jsonPath": '.status.conditions[?(@.type=="Ready")].status'},
    ]
    version = {"name": "v1", "served": True, "storage": True, "additionalPrinterColumns": columns}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "shortNames": ["wd"]}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    crd = manifest(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        {"metadata": {"name": "widgets.example.com"}, "spec": spec},
    )
    await kubectl("apply", "-f", "-", stdin=crd)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=5s")
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    body = {"metadata": {"name": "a"}, "spec": {"size": 3}, "status": status}
    await kubectl("apply", "-f", "-", stdin=manifest("example.com/v1", "Widget", body))
    lines = (await kubectl("get", "wd")).splitlines()
    assert [line.split() for line in lines] == [["NAME", "SIZE", "READY"], ["a", "3", "True"]]
    assert "widgets" in await kubectl("api-resources", "--api-group=example.com")


async def test_watching(kubectl: Run, server: EmbeddedAPIServer) -> None:
    async def later() -> None:
        await asyncio.sleep(0.7)
        server.store.create("pods", pod("later"))

    task = asyncio.create_task(later())
    output = await kubectl("get", "pods", "--watch", "--request-timeout=2s")
    await task
    assert "later" in output
    assert "Running" in output


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("nodes", ["NAME", "STATUS", "ROLES", "AGE", "VERSION"]),
        ("events", ["LAST", "SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE"]),
        ("jobs", ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"]),
        ("leases", ["NAME", "HOLDER", "AGE"]),
        ("pc", ["NAME", "VALUE", "GLOBAL-DEFAULT", "AGE", "PREEMPTIONPOLICY"]),
        ("rolebindings", ["NAME", "ROLE", "AGE"]),
    ],
)
async def test_columns(kubectl: Run, server: EmbeddedAPIServer, kind: str, columns: list[str]) -> None:
    await _one_of_each(server.store)
    assert (await kubectl("get", kind)).splitlines()[0].split() == columns


async def _one_of_each(store: Store) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "busybox"}]}}
    event = {
        "metadata": {"name": "e"}, "reason": "R", "type": "Normal", "message": "m",
        "involvedObject": {"kind": "Pod", "name": "a"}, "lastTimestamp": "2030-01-01T00:00:00Z",
    }  # fmt: skip
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    for kind, body in (
        ("jobs.batch", {"metadata": {"name": "j"}, "spec": {"template": template}}),
        ("events", event),
        ("leases.coordination.k8s.io", {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}),
        ("rolebindings.rbac.authorization.k8s.io", {"metadata": {"name": "b"}, "roleRef": ref}),
    ):
        assert key_of(store.create(kind, body).obj).namespace == "default"
