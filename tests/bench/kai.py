"""KAI-Scheduler as a contestant: its programs, its custom resources, and gangs as its pod grouper describes them."""

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.controlplane import ControlPlane, build
from tests.controlplane.binaries import HERE
from tests.controlplane.client import ApiError

from . import objects
from .objects import Json
from .server import Server

MODULE = "github.com/NVIDIA/KAI-scheduler"
QUEUE = "default-queue"
TOPOLOGY = "cluster-topology"
LEAF_LABEL = "topology.scheduler/leaf"
RESOURCES = {
    "queues": "/apis/scheduling.run.ai/v2/queues",
    "podgroups": "/apis/scheduling.run.ai/v2alpha2/namespaces/default/podgroups",
    "bindrequests": "/apis/scheduling.run.ai/v1alpha2/namespaces/default/bindrequests",
    "topologies": "/apis/kai.scheduler/v1alpha1/topologies",
}
"""What its scheduler and its binder read, and where."""

NO_LIMIT = ("--qps", "100000", "--burst", "100000")


@dataclass(frozen=True)
class Release:
    """A built version of KAI-Scheduler, and where its source is."""

    version: str
    programs: Path
    source: Path

    def scheduler(self, plane: ControlPlane) -> list[str]:
        """Its scheduler with its stock actions and plugins, no client-side limit, and 100 ms between two cycles."""
        return [
            # GOGC is what its operator sets; its scheduler takes the kubeconfig from the environment only.
            *("env", f"KUBECONFIG={plane.kubeconfig}", "GOGC=400", str(self.programs / "kai-scheduler"), *NO_LIMIT),
            *("--schedule-period", "100ms", "--v", "1"),
            *("--listen-address", "127.0.0.1:0", "--plugin-server-port", "0"),
        ]

    def binder(self, plane: ControlPlane) -> list[str]:
        """Its binder, which turns its scheduler's BindRequests into binds."""
        return [
            *("env", f"KUBECONFIG={plane.kubeconfig}", str(self.programs / "kai-binder"), *NO_LIMIT),
            *("--zap-log-level", "error", "--metrics-bind-address", "0", "--health-probe-bind-address", "0"),
        ]

    def definitions(self) -> list[Json]:
        """Its CustomResourceDefinitions, as released."""
        folder = self.source / "deployments" / "kai-scheduler" / "crds"
        loaded = [yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))]
        return [definition for definition in loaded if definition["spec"]["names"]["plural"] in RESOURCES]


def release() -> Release:
    """Build what is missing, and find the source in the Go module cache."""
    programs = build(modules=["go-kai"])
    download = subprocess.run(
        ["go", "mod", "download", "-json", MODULE], cwd=HERE / "go-kai", check=True, stdout=subprocess.PIPE
    )
    module = json.loads(download.stdout)
    return Release(version=module["Version"], programs=programs, source=Path(module["Dir"]))


def define(plane: ControlPlane, kai: Release) -> None:
    """Create its custom resources, and return when all of them are served."""
    for definition in kai.definitions():
        plane.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    deadline = time.monotonic() + 30
    for path in RESOURCES.values():
        while not _served(plane, path):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is not served")
            time.sleep(0.1)


async def submit(server: Server, gangs: int, members: int) -> None:
    """Create a queue without limits, the topology, and pending gangs."""
    await server.create(RESOURCES["queues"], (_queue("default-parent-queue"), _queue(QUEUE, "default-parent-queue")))
    await server.create(RESOURCES["topologies"], (_topology(),))
    names = [f"g-{i}" for i in range(gangs)]
    await server.create(RESOURCES["podgroups"], (_pod_group(name, members) for name in names))
    await server.create(
        "/api/v1/namespaces/default/pods",
        (
            objects.pod(f"{name}-{index}", 8, "kai-scheduler", annotations={"pod-group-name": name})
            for name in names
            for index in range(members)
        ),
    )


def _served(plane: ControlPlane, path: str) -> bool:
    try:
        plane.request("GET", path)
    except ApiError:
        return False
    return True


def _queue(name: str, parent: str | None = None) -> Json:
    unlimited = {"quota": 0, "limit": -1, "overQuotaWeight": 1}
    spec: Json = {"resources": dict.fromkeys(("cpu", "gpu", "memory"), unlimited)}
    if parent is not None:
        spec["parentQueue"] = parent
    return {"apiVersion": "scheduling.run.ai/v2", "kind": "Queue", "metadata": {"name": name}, "spec": spec}


def _topology() -> Json:
    # The required level alone: with spines and hosts declared as well it spends a quarter more CPU time on a pod.
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": TOPOLOGY},
        "spec": {"levels": [{"nodeLabel": LEAF_LABEL}]},
    }


def _pod_group(name: str, members: int) -> Json:
    return {
        "apiVersion": "scheduling.run.ai/v2alpha2",
        "kind": "PodGroup",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "minMember": members,
            "queue": QUEUE,
            "topologyConstraint": {"topology": TOPOLOGY, "requiredTopologyLevel": LEAF_LABEL},
        },
    }
