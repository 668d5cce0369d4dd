"""A store, and a cluster around it that runs without HTTP."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from topo_scheduler.simulation.apiserver import ObjectVersion, Store
from topo_scheduler.simulation.apiserver.pods import bind
from topo_scheduler.simulation.controllers import controllers
from topo_scheduler.simulation.kubelet import Kubelet

Json = dict[str, Any]
START = datetime(2030, 1, 1, tzinfo=UTC)


def loop_clock() -> datetime:
    """The loop's time as a date, so that virtual seconds are seen in timestamps too."""
    try:
        return START + timedelta(seconds=asyncio.get_running_loop().time())
    except RuntimeError:
        return START


class Cluster:
    """What tests do with a cluster."""

    def __init__(self, store: Store, kubelet: Kubelet) -> None:
        self.store = store
        self.kubelet = kubelet

    def add_node(self, name: str, *, labels: dict[str, str] | None = None, **allocatable: str) -> ObjectVersion:
        resources = {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "8"}
        resources |= {name.replace("gpu", "nvidia.com/gpu"): value for name, value in allocatable.items()}
        metadata: Json = {"name": name, **({"labels": labels} if labels else {})}
        return self.store.create("nodes", {"metadata": metadata, "status": {"capacity": resources}})

    def bind(self, name: str, node: str = "node-1", namespace: str = "default") -> None:
        bind(self.store, namespace, name, {"metadata": {"name": name}, "target": {"name": node}})

    def bind_all(self, node: str = "node-1") -> int:
        """Bind every pod that waits."""
        waiting = [pod for pod in self.pods() if not pod["spec"].get("nodeName")]
        for pod in waiting:
            self.bind(pod.key.name, node, pod.key.namespace)
        return len(waiting)

    def pods(self) -> list[ObjectVersion]:
        return self.store.list("pods")

    def phases(self) -> dict[str, str]:
        return {pod.key.name: pod["status"]["phase"] for pod in self.pods()}

    def status(self, kind: str, name: str) -> Json:
        return dict(self.store.get(kind, name, "default").get("status") or {})

    async def settle(self) -> None:
        """Return when no component has anything left to do at this moment."""
        quiet, revision = 0, self.store.revision
        while quiet < 20:
            await asyncio.sleep(0)
            quiet = quiet + 1 if revision == self.store.revision else 0
            revision = self.store.revision


@pytest.fixture(scope="session", autouse=True)
def no_loop_by_accident() -> None:
    """Otherwise the first asynchronous test after an ordinary one makes a loop that is never closed."""
    asyncio.set_event_loop(None)


@pytest.fixture
def store() -> Store:
    return Store(clock=loop_clock, seed=1)


@pytest.fixture
async def cluster(store: Store) -> AsyncIterator[Cluster]:
    """Controllers, a kubelet and a node."""
    kubelet = Kubelet(store)
    async with controllers(store), kubelet:
        cluster = Cluster(store, kubelet)
        cluster.add_node("node-1")
        await cluster.settle()
        yield cluster


def pod(name: str, *, annotations: dict[str, str] | None = None, gpu: int = 0, **spec: Any) -> Json:
    """A pod of one container."""
    resources = {"limits": {"nvidia.com/gpu": str(gpu)}} if gpu else {}
    container = {"name": "main", "image": "busybox:1", "resources": resources}
    metadata = {"name": name, "labels": {"app": name}, **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"containers": [container], **spec}}


def template(**labels: str) -> Json:
    """A pod template."""
    containers = [{"name": "main", "image": "busybox:1"}]
    return {"metadata": {"labels": labels}, "spec": {"containers": containers}}


def job(name: str, *, annotations: dict[str, str] | None = None, **spec: Any) -> Json:
    """A job whose pods may carry annotations."""
    body = template(app=name)
    body["spec"]["restartPolicy"] = "Never"
    if annotations:
        body["metadata"]["annotations"] = annotations
    return {"metadata": {"name": name}, "spec": {"template": body, **spec}}


def replicated(name: str, replicas: int, **spec: Any) -> Json:
    """A Deployment, ReplicaSet or StatefulSet."""
    selector = {"matchLabels": {"app": name}}
    body = {"replicas": replicas, "selector": selector, "template": template(app=name), **spec}
    return {"metadata": {"name": name}, "spec": body}
