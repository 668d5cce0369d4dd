"""What kubelets write: statuses of nodes with images and conditions, and of pods while they start.

Sizes and rates are those of kubelets at their defaults. A node has 50 images, and writes its status every 5 minutes if
nothing changed. Each pod gets a status when its containers are created and another when they run.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from .objects import Json
from .server import Server

IMAGES: Final = 50
"""Of a node, as `nodeStatusMaxImages` is by default."""
STATUS_SECONDS: Final = 300.0
"""`nodeStatusReportFrequency`."""
MERGE: Final = "application/strategic-merge-patch+json"


def reporting(node: Json) -> Json:
    """Return a node as its kubelet reports it."""
    version = {"kubeletVersion": "v1.36.3", "osImage": "Ubuntu 24.04.2 LTS", "architecture": "amd64"}
    version |= {"containerRuntimeVersion": "containerd://2.1.4", "kernelVersion": "6.8.0-60-generic"}
    images = [_image(number) for number in range(IMAGES)]
    return {**node, "status": {**node["status"], "conditions": _conditions(), "images": images, "nodeInfo": version}}


def _image(number: int) -> Json:
    name = f"registry.example.com/team-{number % 7}/training-{number}"
    return {"names": [f"{name}@sha256:{number:064x}", f"{name}:2026.11.{number}"], "sizeBytes": 10**9 + number}


def _conditions() -> list[Json]:
    now = _now()
    kinds = ("MemoryPressure", "DiskPressure", "PIDPressure", "Ready")
    return [
        {
            "type": kind,
            "status": "True" if kind == "Ready" else "False",
            "reason": f"KubeletReports{kind}",
            "message": f"kubelet reports {kind}",
            "lastHeartbeatTime": now,
        }
        for kind in kinds
    ]


def status(uid: str, *, runs: bool) -> Json:
    """Return the status of a pod whose containers run, or are being created."""
    now = _now()
    ready = "True" if runs else "False"
    kinds = {"PodReadyToStartContainers": ready, "Initialized": "True", "Ready": ready, "ContainersReady": ready}
    state: Json = {"running": {"startedAt": now}} if runs else {"waiting": {"reason": "ContainerCreating"}}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "imageID": "", "ready": runs, "state": state}
    pod_status: Json = {
        "phase": "Running" if runs else "Pending",
        "conditions": [{"type": kind, "status": is_so, "lastTransitionTime": now} for kind, is_so in kinds.items()],
        "containerStatuses": [{**container, "restartCount": 0, "started": runs}],
        "hostIP": "10.0.0.1",
        "startTime": now,
    }
    if runs:
        address = f"10.{'.'.join(str(byte) for byte in uid.encode()[:3])}"
        pod_status |= {"podIP": address, "podIPs": [{"ip": address}]}
    return pod_status


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Kubelets:
    """All of a cluster's."""

    def __init__(self, server: Server, nodes: Iterable[str]) -> None:
        self._server = server
        self._nodes = list(nodes)
        self.statuses = 0
        """Statuses of pods that were written."""
        self.heartbeats = 0

    async def run_already(self, pods: Iterable[Json]) -> None:
        """Report that pods run which were bound before."""
        await self._server.each(pods, lambda pod: self._report(pod["metadata"]["name"], pod["metadata"]["uid"], True))

    async def start_pod(self, name: str, uid: str) -> None:
        """Start a pod that was bound."""
        for runs in (False, True):
            await self._report(name, uid, runs)

    @asynccontextmanager
    async def reporting(self, version: str) -> AsyncIterator[None]:
        """While the context lasts, nodes report as often as they do, and pods that are bound after a version start."""
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._heartbeats()), group.create_task(self._start_pods(version, group))]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def _heartbeats(self) -> None:
        for node in itertools.cycle(self._nodes):
            body = {"status": {"conditions": _conditions()}}
            await self._server.patch(f"/api/v1/nodes/{node}/status", body, MERGE)
            self.heartbeats += 1
            await asyncio.sleep(STATUS_SECONDS / len(self._nodes))

    async def _start_pods(self, version: str, group: asyncio.TaskGroup) -> None:
        started: set[str] = set()
        async for name, uid in self._server.bound(version):
            if uid not in started:
                started.add(uid)
                group.create_task(self.start_pod(name, uid))

    async def _report(self, name: str, uid: str, runs: bool) -> None:
        body = {"status": status(uid, runs=runs)}
        await self._server.patch(f"/api/v1/namespaces/default/pods/{name}/status", body, MERGE)
        self.statuses += 1
