"""A real control plane with an audit log, replicas of the daemon as processes, and a load that fills the cluster."""

import asyncio
import itertools
import random
import shutil
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from tests.controlplane import ControlPlane
from tests.controlplane.binaries import Version
from tests.e2e import objects
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster
from topo_scheduler.api.process import LeaderElection

from . import audit
from .replica import ReplicaProcess

LEASE: Final = "topology-scheduler"
RUN_SECONDS: Final = 2.0


def election_flags(election: LeaderElection) -> list[str]:
    """Return the flags of the daemon for these times."""
    return [
        f"--leader-elect-lease-duration={election.lease_duration:g}s",
        f"--leader-elect-renew-deadline={election.renew_deadline:g}s",
        f"--leader-elect-retry-period={election.retry_period:g}s",
    ]


class Scene:
    """Use it within `scene`."""

    def __init__(self, plane: ControlPlane, cluster: Cluster, folder: Path, flags: list[str]) -> None:
        self.plane = plane
        self.cluster = cluster
        self.folder = folder
        self.flags = flags
        self.replicas: list[ReplicaProcess] = []
        self._numbers = itertools.count()

    async def start(self) -> ReplicaProcess:
        """Start a replica."""
        replica = await asyncio.to_thread(ReplicaProcess, self.plane, len(self.replicas) + 1, self.folder, self.flags)
        self.replicas.append(replica)
        return replica

    def leader(self) -> ReplicaProcess:
        """Return the replica that holds the Lease, by who wrote it last in the audit log."""
        holder = audit.lease_holder(self.writes())
        return next(replica for replica in self.replicas if replica.name == holder)

    async def submit(self, count: int) -> list[str]:
        """Create bare pods of 1 to 8 GPUs that run for a while; return their names."""
        names = [f"load-{next(self._numbers)}" for _ in range(count)]
        pods = [objects.pod(name, random.choice((1, 2, 4, 8)), run=RUN_SECONDS) for name in names]
        await asyncio.gather(*(self.cluster.api.create("pods", pod) for pod in pods))
        return names

    async def clear_done(self) -> None:
        """Delete the pods that have run."""
        done = {"fieldSelector": "status.phase=Succeeded"}
        await self.cluster.api.request("DELETE", "/api/v1/namespaces/default/pods", query=done)

    async def next_bind(self, timeout: float = 90.0) -> float:
        """Submit a pod; return when it is bound, as `bound` does."""
        (name,) = await self.submit(1)
        return await self.bound(name, timeout)

    async def bound(self, name: str, timeout: float = 90.0) -> float:
        """Return when a pod is bound, by the API server's clock, which is that of this machine: seconds since 1970."""
        recorder = self.cluster.recorder
        end = time.monotonic() + timeout

        async def passing(seconds: float) -> None:
            assert time.monotonic() < end, f"{name} was not bound within {timeout:g} s\n{self.logs()}"
            await asyncio.sleep(seconds)

        while not any(pod["metadata"]["name"] == name and uid in recorder.bound for uid, pod in recorder.pods.items()):
            await passing(0.01)
        # The API server logs a write right after watches have told of it.
        while (when := audit.bound_at(self.writes(), name)) is None:
            await passing(0.1)
        return when

    def logs(self) -> str:
        """Return the ends of the logs."""
        return "\n".join(f"{replica.name}:\n" + replica.log.read_text()[-3000:] for replica in self.replicas)

    def zombies(self) -> list[str]:
        """Return what was written by a replica after another one had taken the Lease."""
        return [f"{write.what} {write.name}" for write in audit.zombies(self.writes())]

    def writes(self) -> list[audit.Write]:
        """Return what replicas wrote so far."""
        return audit.writes(self.folder)


@asynccontextmanager
async def scene(
    election: LeaderElection, shape: dict[str, list[int]], version: Version = "current", config: str = ""
) -> AsyncIterator[Scene]:
    """A control plane of its own, with nodes, and no replica yet; ``config`` the replicas' configuration."""
    folder = Path(tempfile.mkdtemp(prefix="topo-failover-"))
    flags = [*election_flags(election), "--log-format=text"]
    if config:
        file = folder / "config.yaml"
        await asyncio.to_thread(file.write_text, config)
        flags.append(f"--config={file}")
    arguments = {"kube-apiserver": audit.flags(folder)}
    plane = ControlPlane(version=version, with_kwok=True, arguments=arguments)
    try:
        await asyncio.to_thread(plane.start)
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            await cluster.add_namespace("default")
            await cluster.add_fabric(shape)
            await cluster.recorder.start()
            it = Scene(plane, cluster, folder, flags)
            try:
                yield it
            finally:
                for replica in it.replicas:
                    if replica.alive:
                        replica.kill()
                await cluster.recorder.stop()
    finally:
        await asyncio.to_thread(plane.stop)
        shutil.rmtree(folder, ignore_errors=True)
