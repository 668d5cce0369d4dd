"""What is shipped, on a real API server: it takes the manifests and the examples, and RBAC is as narrow as it looks."""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from urllib.error import HTTPError

import pytest

from tests.controlplane import ControlPlane, client
from tests.controlplane.binaries import Version

from .manifests import EXAMPLES, MANIFESTS, Object, one, read
from .pod import Pod, Running, service_account

pytestmark = [pytest.mark.real, pytest.mark.timeout(3600)]

PLURALS = {
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
    "ConfigMap": "configmaps",
    "CustomResourceDefinition": "customresourcedefinitions",
    "Deployment": "deployments",
    "Job": "jobs",
    "Namespace": "namespaces",
    "NetworkPolicy": "networkpolicies",
    "Node": "nodes",
    "Pod": "pods",
    "PodDisruptionBudget": "poddisruptionbudgets",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "Service": "services",
    "ServiceAccount": "serviceaccounts",
}
CLUSTER_WIDE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "Namespace", "Node"}
WORKLOADS = sorted(EXAMPLES.glob("0*.yaml"))


def create(plane: ControlPlane, item: Object, query: str = "") -> Object:
    """Create an object; a field the server does not know is an error where the server can tell (1.25 and newer)."""
    version = item["apiVersion"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    if item["kind"] not in CLUSTER_WIDE:
        root += f"/namespaces/{item['metadata'].get('namespace', 'default')}"
    return plane.request("POST", f"{root}/{PLURALS[item['kind']]}?fieldValidation=Strict{query}", item)


def eventually(what: str, look: Callable[[], bool], seconds: float = 30) -> None:
    """Look until it is so."""
    deadline = time.monotonic() + seconds
    while not look():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.1)


@pytest.fixture(scope="module")
def installed() -> Iterator[ControlPlane]:
    """A control plane with controllers and simulated kubelets, on which install.yaml was applied."""
    with ControlPlane(with_kwok=True) as plane:
        for item in read(MANIFESTS / "install.yaml"):
            create(plane, item)
        yield plane


def _token(plane: ControlPlane, namespace: str = "kube-system", name: str = "topology-scheduler") -> str:
    """A token of a ServiceAccount, by default the scheduler's."""
    answer = plane.request(
        "POST",
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}},
    )
    return str(answer["status"]["token"])


def _may(plane: ControlPlane, verb: str, resource: str, group: str = "", namespace: str = "", name: str = "") -> bool:
    """Ask as the scheduler's ServiceAccount whether it may do something."""
    plural, _, subresource = resource.partition("/")
    asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource}
    asked |= {key: value for key, value in (("namespace", namespace), ("name", name)) if value}
    answer: dict[str, Any] = client.request(
        "POST",
        plane.url + "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        },
        token=_token(plane),
        ca_file=plane.ca_file,
    )
    return bool(answer["status"]["allowed"])


def _nodes() -> Iterator[Object]:
    """Two spines of two leaves of four nodes; leaf names repeat under the spines."""
    for spine, leaf, number in itertools.product((1, 2), (1, 2), range(4)):
        resources = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
        labels = {
            "topology.scheduler/spine": f"spine-{spine}",
            "topology.scheduler/leaf": f"leaf-{leaf}",
            "topology.scheduler/network-bandwidth": "400Gb",
            "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3" if spine == 1 else "NVIDIA-A100-SXM4-80GB",
        }
        yield {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": f"node-{spine}{leaf}{number}", "labels": labels},
            "status": {"allocatable": resources, "capacity": resources},
        }


# ------------------------------------------------------------------ it is taken


@pytest.mark.parametrize("version", ["current", "oldest"])
def test_the_api_server_takes_manifests_and_examples(version: Version) -> None:
    with ControlPlane(version=version, with_controller_manager=False) as plane:
        for path in [MANIFESTS / "install.yaml", MANIFESTS / "owner-kinds.yaml", *WORKLOADS]:
            for item in read(path):
                created = create(plane, item)
                assert created["metadata"]["uid"], f"{path.name}: {item['kind']}"


def test_everything_can_be_applied_again(installed: ControlPlane) -> None:
    """What controllers filled in must survive the next release's apply, which sends what install.yaml has."""
    path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/topology-scheduler-owners"
    eventually("rules of the owners' role", lambda: bool(installed.request("GET", path).get("rules")))
    before = installed.request("GET", path)["rules"]
    manifest = one(read(MANIFESTS / "install.yaml"), "ClusterRole", "topology-scheduler-owners")
    assert installed.request("PATCH", path, manifest)["rules"] == before


def test_the_controllers_make_the_pods_it_asks_for(installed: ControlPlane) -> None:
    """Admission of kube-system, of the priority class and of the ServiceAccount lets the pods through."""
    path = "/api/v1/namespaces/kube-system/pods?labelSelector=app%3Dtopology-scheduler"
    eventually("two pods", lambda: len(installed.request("GET", path)["items"]) == 2)
    for pod in installed.request("GET", path)["items"]:
        assert pod["spec"]["priority"] >= 2_000_000_000
        assert pod["spec"]["serviceAccountName"] == "topology-scheduler"


def test_a_migration_beyond_the_caps_is_refused(installed: ControlPlane) -> None:
    path = "/apis/topology.scheduler/v1alpha1/namespaces/default/migrations"

    def asked(pods: int) -> Object:
        named = [{"name": f"p{number}"} for number in range(pods)]
        return {
            "apiVersion": "topology.scheduler/v1alpha1",
            "kind": "Migration",
            "metadata": {"name": f"of-{pods}"},
            "spec": {"pods": named},
        }

    with pytest.raises(client.ApiError) as refused:
        installed.request("POST", path, asked(4097))
    assert refused.value.status == 422
    assert installed.request("POST", path, asked(4096))["metadata"]["uid"]


# ------------------------------------------------------------------ what it may do


def test_it_may_do_what_it_must(installed: ControlPlane) -> None:
    lease = {"group": "coordination.k8s.io", "namespace": "kube-system"}
    eventually("the owners' role filled in", lambda: _may(installed, "watch", "statefulsets", "apps"))
    assert _may(installed, "watch", "nodes")
    assert _may(installed, "list", "pods")
    assert _may(installed, "create", "pods/binding", namespace="team-a", name="any")
    assert _may(installed, "patch", "pods/status", namespace="team-a", name="any")
    assert _may(installed, "create", "pods/eviction", namespace="team-a", name="any")
    assert _may(installed, "create", "events", "events.k8s.io", "team-a")
    assert _may(installed, "patch", "events", "events.k8s.io", "team-a", "any")
    assert _may(installed, "list", "jobs", "batch")
    assert _may(installed, "create", "leases", **lease)
    assert _may(installed, "update", "leases", **lease, name="topology-scheduler")


@pytest.mark.parametrize(
    ("verb", "resource", "group", "namespace", "name"),
    [
        ("get", "secrets", "", "kube-system", "any"),
        ("get", "configmaps", "", "kube-system", "topology-scheduler-config"),
        ("create", "pods", "", "default", ""),
        ("delete", "pods", "", "default", "any"),
        ("update", "pods", "", "default", "any"),
        ("patch", "pods", "", "default", "any"),
        ("create", "pods/exec", "", "default", "any"),
        ("patch", "nodes", "", "", "any"),
        ("patch", "nodes/status", "", "", "any"),
        ("update", "deployments", "apps", "default", "any"),
        ("update", "jobs/status", "batch", "default", "any"),
        ("update", "leases", "coordination.k8s.io", "kube-system", "kube-scheduler"),
        ("create", "leases", "coordination.k8s.io", "default", ""),
        ("get", "leases", "coordination.k8s.io", "kube-node-lease", "node-1"),
        ("create", "serviceaccounts/token", "", "kube-system", "topology-scheduler"),
        ("create", "clusterrolebindings", "rbac.authorization.k8s.io", "", ""),
    ],
)
def test_it_may_not_do_more(
    installed: ControlPlane, verb: str, resource: str, group: str, namespace: str, name: str
) -> None:
    assert not _may(installed, verb, resource, group, namespace, name)


def test_further_owner_kinds_take_effect_by_their_label(installed: ControlPlane) -> None:
    assert not _may(installed, "get", "jobsets", "jobset.x-k8s.io", "default", "any")
    for item in read(MANIFESTS / "owner-kinds.yaml"):
        create(installed, item)
    eventually("the rule", lambda: _may(installed, "get", "jobsets", "jobset.x-k8s.io", "default", "any"))
    assert _may(installed, "get", "rayclusters", "ray.io", "default", "any")
    assert not _may(installed, "list", "jobsets", "jobset.x-k8s.io")


# ------------------------------------------------------------------ it works so


def _refusal(running: Running, token: str) -> int:
    with pytest.raises(HTTPError) as refused:
        running.get("/metrics", token)
    refused.value.close()
    return refused.value.code


def _check_who_may_read_metrics(plane: ControlPlane, running: Running) -> None:
    """By TLS, and as RBAC says: of the ServiceAccount that the overlay binds, and of no other account."""
    assert running.get("/livez") == "ok", "the kubelet has no token"
    for namespace, name in (("monitoring", "prometheus-k8s"), ("default", "tenant")):
        if namespace != "default":
            create(plane, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        create(
            plane, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}}
        )
    for item in read(MANIFESTS / "overlays" / "monitoring" / "metrics-reader.yaml"):
        create(plane, item)
    assert _refusal(running, "") == 401
    assert _refusal(running, "made-up") == 401
    assert _refusal(running, _token(plane, "default", "tenant")) == 403
    metrics = running.get("/metrics", _token(plane, "monitoring", "prometheus-k8s"))
    assert "topology_scheduler_leader 1.0" in metrics
    assert 'code="403"' not in metrics


def test_the_pod_places_the_examples_with_no_right_beyond_these(installed: ControlPlane, pod: Pod) -> None:
    """Image, manifests, RBAC and examples at once: all as a cluster has them."""
    eventually("the owners' role filled in", lambda: _may(installed, "watch", "statefulsets", "apps"))
    for node in _nodes():
        create(installed, node)
    token = service_account(pod.scratch / "token", token=_token(installed), authority=installed.ca_file.read_bytes())
    with replace(pod, mounts=[token]).start(installed.url) as running:
        running.wait_ready()
        for item in (item for path in WORKLOADS for item in read(path)):
            create(installed, item)

        def placed() -> dict[str, str]:
            pods = installed.request("GET", "/api/v1/namespaces/default/pods")["items"]
            return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in pods}

        eventually("13 pods bound", lambda: len(placed()) == 13 and all(placed().values()))
        training = {node[:-1] for name, node in placed().items() if name.startswith("training-")}
        assert len(training) == 1, "the gang shares a leaf"
        assert {node[:-1] for name, node in placed().items() if name.startswith("eight-gpus-")} == {"node-11"}
        _check_who_may_read_metrics(installed, running)
        assert running.terminate() == 0, running.said()
    lease = installed.request("GET", "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/topology-scheduler")
    assert not lease["spec"].get("holderIdentity"), "given back, so that the other replica need not wait"
