"""``topo-scheduler filter``: Kubernetes' rules on a file, without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import run

Json = dict[str, Any]


def node(name: str, zone: str, cpu: str = "4") -> Json:
    return {
        "kind": "Node",
        "metadata": {"name": name, "labels": {"zone": zone}},
        "status": {"allocatable": {"cpu": cpu, "pods": "10"}, "conditions": [{"type": "Ready", "status": "False"}]},
    }


def pod(name: str, *, at: str = "", **spec: Any) -> Json:
    containers = [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "labels": {"app": "web"}},
        "spec": {"containers": containers, **({"nodeName": at} if at else {}), **spec},
    }


APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}
        ]
    }
}
SNAPSHOT: Json = {
    "nodes": [node("a", "one"), node("b", "two"), node("c", "two", "1")],
    "pods": [pod("there", at="a")],
    "pending": [pod("plain"), pod("apart", affinity=APART)],
    "namespaces": [{"metadata": {"name": "team"}}],
    "pvs": [],
    "pvcs": [],
    "storageClasses": [],
}
FEASIBLE = {"team/plain": ["a", "b"], "team/apart": ["b"]}


def written(folder: Path, content: object, name: str = "snapshot.json") -> str:
    path = folder / name
    path.write_text(json.dumps(content) if name.endswith("json") else yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["snapshot.json", "snapshot.yaml"])
def test_feasible_nodes_and_reasons_by_pod(tmp_path: Path, name: str) -> None:
    result = run("filter", "--snapshot", written(tmp_path, SNAPSHOT, name), "-o", "json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["feasible"] == FEASIBLE, "readiness is no rule of kube-scheduler: it goes by taints"
    assert answer["reasons"] == {
        "team/plain": {"c": "Insufficient cpu"},
        "team/apart": {"a": "node(s) didn't match pod anti-affinity rules", "c": "Insufficient cpu"},
    }


def test_a_list_as_kubectl_writes_it(tmp_path: Path) -> None:
    nodes = [{**node, "status": {**node["status"], "images": [{"names": None}]}} for node in SNAPSHOT["nodes"]]
    items = [*nodes, *SNAPSHOT["pods"], *SNAPSHOT["pending"], {"kind": "Secret", "metadata": {"name": "x"}}]
    path = written(tmp_path, {"apiVersion": "v1", "kind": "List", "items": items}, "list.yaml")
    answer = json.loads(run("filter", "--snapshot", path, "-o", "json").stdout)
    assert answer["feasible"] == FEASIBLE


def test_text_for_people(tmp_path: Path) -> None:
    out = run("filter", "--snapshot", written(tmp_path, SNAPSHOT)).stdout
    assert "team/apart: 1 of 3 nodes\n  b\n  a  node(s) didn't match pod anti-affinity rules\n" in out


def test_a_pod_that_can_not_be_read_has_no_node_and_the_reason(tmp_path: Path) -> None:
    broken = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}}
    term = broken["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    term["labelSelector"] = {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["web"]}]}  # type: ignore[assignment]
    path = written(tmp_path, {**SNAPSHOT, "pending": [pod("odd", affinity=broken), pod("plain")]})
    answer = json.loads(run("filter", "--snapshot", path, "-o", "json").stdout)
    assert answer["feasible"] == {"team/odd": [], "team/plain": ["a", "b"]}
    assert "affinity.podAffinity term 1: 'Like' is not an operator" in answer["reasons"]["team/odd"]["a"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "snapshot.json"),
        ("[]", "an object with lists was expected"),
        ("[" * 5000, "nested too deeply"),
        ('{"nodes": ' + "[" * 100_000, "nested too deeply"),
        ("nodes: [!!int x]", "invalid literal for int()"),
        ('{"nods": []}', "unknown key 'nods'"),
        ('{"nodes": 3}', "nodes: expected a list of objects, found int"),
        ('{"items": [{"kind": "Pod", "metadata": {"name": "p"}, "spec": 3}]}', "pending: p: Expected `object`"),
        ('{"nodes": [{"metadata": {"name": 7}}]}', "nodes: 7: Expected `str`"),
        ('{"pending": [{"metadata": {"name": "p", "namespace": "n"}, "spec": 1}]}', "pending: n/p: Expected `object`"),
        ('{"nodes": [{"metadata": {"name": 7}}]}', "correct the object, or leave it out"),
        ('{"items": [{"kind": {"a": 1}}, {"kind": "Node", "metadata": {"name": 7}}]}', "nodes: 7: Expected `str`"),
        (r'{"resourceClaims": [{"metadata": {"name": "c", "labels": {"a": "\ud800"}}}]}', "resourceClaims: c: 'utf-8'"),
    ],
)
def test_what_can_not_be_read_is_named(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "snapshot.json"
    path.write_text(content, encoding="utf-8")
    result = run("filter", "--snapshot", str(path))
    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


def test_a_snapshot_without_pending_pods_says_so(tmp_path: Path) -> None:
    raw_list = {"kind": "PodList", "items": [{"metadata": {"name": "p"}}]}  # as `kubectl get --raw` prints it
    for content in ({**SNAPSHOT, "pending": []}, raw_list):
        result = run("filter", "--snapshot", written(tmp_path, content))
        assert result.exit_code == 0
        assert "no pod is pending" in result.stdout


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = run("filter", "--snapshot", str(tmp_path / "none.json"))
    assert result.exit_code == 2
    assert "No such file" in result.output


def test_devices_of_claims_are_filtered_as_kubectl_writes_them(tmp_path: Path) -> None:
    def claiming(name: str) -> Json:
        item = pod(name, resourceClaims=[{"name": "gpus", "resourceClaimName": name}])
        item["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpus"}]
        return item

    def claim(name: str, count: int) -> Json:
        exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count}
        devices = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        return {"kind": "ResourceClaim", "metadata": {"name": name, "namespace": "team"}, "spec": devices}

    pool = {"name": "b", "generation": 1, "resourceSliceCount": 1}
    devices = {"driver": "d", "nodeName": "b", "pool": pool, "devices": [{"name": "gpu-0"}]}
    listed = [
        *SNAPSHOT["nodes"],
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {"kind": "ResourceSlice", "metadata": {"name": "b"}, "spec": devices},
        *(claim("one", 1), claim("two", 2)),
        *(claiming("one"), claiming("two"), claiming("none")),
    ]
    result = run("filter", "--snapshot", written(tmp_path, {"kind": "List", "items": listed}), "-o", "json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert answer["feasible"] == {"team/one": ["b"], "team/two": [], "team/none": []}
    assert answer["reasons"]["team/two"] == {
        "a": "cannot allocate all claims: no driver publishes devices for the node",
        "b": "cannot allocate all claims",
        "c": "Insufficient cpu",
    }
    assert answer["reasons"]["team/none"]["a"].startswith('resourceclaim "none" not found in namespace team')


def test_extended_resources_are_filtered_by_the_devices_that_back_them(tmp_path: Path) -> None:
    def asking(name: str, resource: str, count: int) -> Json:
        item = pod(name)
        item["spec"]["containers"][0]["resources"]["requests"][resource] = str(count)
        return item

    pool = {"name": "b", "generation": 1, "resourceSliceCount": 1}
    devices = {"driver": "d", "nodeName": "b", "pool": pool, "devices": [{"name": "gpu-0"}]}
    listed = [
        *SNAPSHOT["nodes"],
        {"kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"extendedResourceName": "example.com/gpu"}},
        {"kind": "ResourceSlice", "metadata": {"name": "b"}, "spec": devices},
        asking("one", "example.com/gpu", 1),
        asking("two", "example.com/gpu", 2),
        asking("implied", "deviceclass.resource.kubernetes.io/gpu", 1),
        asking("other", "example.com/other", 1),
    ]
    result = run("filter", "--snapshot", written(tmp_path, {"kind": "List", "items": listed}), "-o", "json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.output)
    assert answer["feasible"] == {"team/one": ["b"], "team/two": [], "team/implied": ["b"], "team/other": []}
    assert answer["reasons"]["team/two"] == {
        "a": "cannot allocate all claims: no driver publishes devices for the node",
        "b": "cannot allocate all claims",
        "c": "Insufficient cpu",
    }
    assert answer["reasons"]["team/other"]["b"] == "Insufficient example.com/other"
