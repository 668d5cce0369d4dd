"""A cluster for the command line: a server in a thread of its own, since commands bring their own event loop."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from tests.helpers import leaf_spine
from topo_scheduler.cli.main import main
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer
from topo_scheduler.simulation.apiserver.pods import bind
from topo_scheduler.simulation.demo import embedded_cluster, submit, until

T = TypeVar("T")

ROOT = Path(__file__).parent.parent.parent
RECOVERS = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  recovery:
    enabled: true
"""
"""The configuration that is mounted in the cluster."""


def run(*arguments: str) -> Result:
    """Call a command in this process."""
    return CliRunner().invoke(main, list(arguments))


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "topo_scheduler.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster of three leaves with four, two and two nodes, one of them down, and no scheduler."""

    loop: asyncio.AbstractEventLoop
    server: EmbeddedAPIServer
    kubeconfig: str

    def wait(self, work: Callable[[], Awaitable[T]], seconds: float = 20.0) -> T:
        """Do something on the server's loop."""

        async def on_loop() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(on_loop(), self.loop).result(seconds)

    def call(self, work: Callable[[], T]) -> T:
        """Do something on the server's loop that does not wait."""

        async def at_once() -> T:
            return work()

        return self.wait(at_once)

    def submit(self, path: Path, pods: int) -> list[str]:
        """Create the objects of a file; the names of all pods, once there are so many."""
        store = self.server.store

        async def work() -> list[str]:
            submit(store, path)
            assert await until(store, lambda: len(store.list("pods")) >= pods, 10)
            return [pod.key.name for pod in store.list("pods")]

        return self.wait(work)

    def create_pod(self, name: str, **spec: Any) -> None:
        """Create a pod of one container; ``annotations`` and ``owner`` are metadata."""
        annotations = spec.pop("annotations", {})
        owners = [spec.pop("owner")] if "owner" in spec else []
        gpus = spec.pop("gpus", 1)
        container = {"name": "main", "image": "busybox", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        body = {
            "metadata": {"name": name, "annotations": annotations, "ownerReferences": owners},
            "spec": {"schedulerName": "topology-aware-scheduler", "containers": [container], **spec},
        }
        self.call(lambda: self.server.store.create("pods", body, "default"))

    def configure(self, text: str, name: str = "topology-scheduler-config", namespace: str = "kube-system") -> None:
        """Create the ConfigMap of a scheduler, or replace it."""
        body = {"metadata": {"name": name}, "data": {"config.yaml": text, "README.md": "not read"}}
        store = self.server.store

        def write() -> None:
            if store.find("configmaps", name, namespace) is None:
                store.create("configmaps", body, namespace)
            else:
                store.modify("configmaps", name, namespace, lambda obj: {**obj, "data": body["data"]})

        self.call(write)

    def bind(self, name: str, node: str, **annotations: str) -> None:
        """Bind a pod, as a scheduler does."""
        written = {f"topology.scheduler/{key.replace('_', '-')}": value for key, value in annotations.items()}
        body = {"metadata": {"name": name, "annotations": written}, "target": {"name": node}}
        self.call(lambda: bind(self.server.store, "default", name, body))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """The cluster."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="server")
    thread.start()
    description = leaf_spine([[4, 2], [2]], gpu_model="NVIDIA-A100-SXM4-80GB", bandwidth="200Gb", down=(2,))
    context = embedded_cluster(description)

    async def enter() -> EmbeddedAPIServer:
        return await context.__aenter__()

    async def leave() -> None:
        await context.__aexit__(None, None, None)

    try:
        server = asyncio.run_coroutine_threadsafe(enter(), loop).result(20)
        try:
            harness = Served(loop, server, str(server.write_kubeconfig(tmp_path / "kubeconfig")))
            harness.configure(RECOVERS)
            yield harness
        finally:
            asyncio.run_coroutine_threadsafe(leave(), loop).result(20)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
