"""Work of every kind that the Lease protects: binds, conditions, nominations, evictions, and Migrations.

Nodes of two pools carry a taint each, so that other pods stay away: in one, pods of high priority preempt those of a
ReplicaSet; from one to another node of the other pool, Migrations move pods of a second ReplicaSet.
"""

import asyncio
import itertools
import time
from functools import partial
from typing import Final

import pytest

from tests.crds import migration_definition
from tests.e2e import objects
from tests.e2e.api import Json

from .audit import BINDING, NOMINATION
from .replica import ReplicaProcess
from .scene import RUN_SECONDS, Scene

KINDS: Final = frozenset({BINDING, "patch pods/status", NOMINATION, "create pods/eviction", "update migrations/status"})
CONFIG: Final = """\
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec:
  recovery: {enabled: true}
"""
BURST_PODS: Final = 60
VICTIMS: Final = 4
MOVERS: Final = 2
_POOL: Final = "failover.test/pool"
_PRIORITIES: Final = {"failover-low": 10, "failover-high": 1000}


def _in(pool: str) -> Json:
    tolerations = [{"key": _POOL, "operator": "Exists", "effect": "NoSchedule"}]
    return {"nodeSelector": {_POOL: pool}, "tolerations": tolerations}


_RESIDENTS: Final = (
    ("victims", VICTIMS, {**_in("victims"), "priorityClassName": "failover-low"}),
    ("movers", MOVERS, _in("movers")),
)


class Work:
    """Use `prepare` before the first replica starts."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._numbers = itertools.count()

    async def prepare(self) -> None:
        """Create both pools, priorities, the definition of Migrations, and both ReplicaSets."""
        cluster = self._scene.cluster
        await cluster.define(migration_definition())
        await cluster.add_nodes(
            objects.node(
                f"{pool}-{number}",
                spine="s2",
                leaf=pool,
                labels={_POOL: pool},
                taints=[{"key": _POOL, "value": pool, "effect": "NoSchedule"}],
            )
            for pool, size in (("victims", VICTIMS), ("movers", 2 * MOVERS))
            for number in range(size)
        )
        for name, value in _PRIORITIES.items():
            metadata = {"name": name}
            body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": metadata, "value": value}
            await cluster.api.create("priorityclasses", body)
        if cluster.plane.controllers:
            await cluster.apply(
                *(objects.replicated("ReplicaSet", name, size, 8, **spec) for name, size, spec in _RESIDENTS)
            )

    async def settled(self) -> None:
        """Wait until both ReplicaSets are whole. Without controllers pods take their place, and none of them moves."""
        for name, size, spec in _RESIDENTS:
            await self._scene.cluster.wait_until(partial(self._whole, name, size, spec), 30, f"{size} {name} bound")

    async def _whole(self, name: str, size: int, spec: Json) -> bool:
        cluster = self._scene.cluster
        pods = await cluster.pods_of(name)
        if not cluster.plane.controllers:
            lacking = {f"{name}-{number}" for number in range(size)} - {pod["metadata"]["name"] for pod in pods}
            await cluster.apply(*(objects.pod(pod_name, 8, **spec) for pod_name in lacking))
        alive = [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]
        return len(alive) == size and all(pod["spec"].get("nodeName") for pod in alive)

    async def burst(self) -> None:
        """Ask for everything at once: binds, pods that fit nowhere, preemption, and a Migration."""
        api, number = self._scene.cluster.api, next(self._numbers)
        movers = [pod["metadata"]["name"] for pod in await self._scene.cluster.pods_of("movers")]
        urgent = {"priorityClassName": "failover-high", **_in("victims")}
        pods = [
            *(objects.pod(f"too-large-{number}-{n}", 9) for n in range(3)),
            *(objects.pod(f"urgent-{number}-{n}", 8, run=RUN_SECONDS, **urgent) for n in range(VICTIMS)),
        ]
        await asyncio.gather(
            self._scene.submit(BURST_PODS),
            *(api.create("pods", pod) for pod in pods),
            *(api.create("migrations", _migration(f"move-{number}-{name}", name)) for name in movers[:MOVERS]),
        )

    async def written(self, replica: ReplicaProcess, timeout: float = 60.0) -> None:
        """Wait until a replica has written all of `KINDS`."""
        cluster = self._scene.cluster
        deadline = time.monotonic() + timeout * cluster.slow
        while lacking := KINDS - self.kinds(replica):
            if time.monotonic() > deadline:
                state, logs = await cluster.describe(), self._scene.logs()
                pytest.fail(f"{replica.name} did not {', '.join(sorted(lacking))}\n{state}\n{logs}")
            await asyncio.sleep(0.2)

    def kinds(self, replica: ReplicaProcess) -> frozenset[str]:
        """Return which of `KINDS` a replica has written."""
        return KINDS & {write.what for write in self._scene.writes() if write.credential == replica.name}


def _migration(name: str, pod: str) -> Json:
    return {
        "apiVersion": "topology.scheduler/v1alpha1",
        "kind": "Migration",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"cause": "a test asks for it", "pods": [{"name": pod}]},
    }
