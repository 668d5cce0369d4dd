"""``python -m tests.bench.claims``: pods with a claim for one GPU each, by kube-scheduler and by this scheduler.

On one real API server, each in turn: the pods and their claims exist already when the scheduler starts. Counted are the
seconds from the first bound pod to the last.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any, Final

from tests.controlplane import ControlPlane
from tests.e2e import objects
from tests.e2e.api import Api, Json
from tests.e2e.cluster import Cluster
from tests.half_gangs.rounds import Scheduler

DRIVER: Final = "gpu.bench.example.com"
GROUP: Final = "resource.k8s.io/v1"
GPUS: Final = 8
LEAF_NODES: Final = 15
LOOK_SECONDS: Final = 0.05
CONFIG: Final = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: {}\n"
ACCOUNT: Final = ("kube-system", "topology-scheduler")


def _fixed(nodes: Sequence[str]) -> list[Json]:
    """A class, a template for one GPU, and a slice for each node."""
    expression = f"device.driver == '{DRIVER}'"
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}}
    spec = {"spec": {"devices": {"requests": [request]}}}
    selectors = [{"cel": {"expression": expression}}]
    return [
        {"apiVersion": GROUP, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {"selectors": selectors}},
        {
            "apiVersion": GROUP,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "one", "namespace": "default"},
            "spec": spec,
        },
        *(_slice(node) for node in nodes),
    ]


def _slice(node: str) -> Json:
    devices = [{"name": f"gpu-{number}"} for number in range(GPUS)]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
    return {"apiVersion": GROUP, "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpus"}, "spec": spec}


def _pod(number: int, scheduler: str) -> Json:
    claims = [{"name": "gpu", "resourceClaimTemplateName": "one"}]
    return objects.pod(f"p{number}", cpu="10m", scheduler=scheduler, resourceClaims=claims)


async def _round(cluster: Cluster, plane: ControlPlane, ours: Scheduler | None, count: int) -> float:
    """Return the pods per second of one scheduler; leave the cluster without pods."""
    name = objects.SCHEDULER if ours is not None else "default-scheduler"
    for begin in range(0, count, 60):
        await cluster.apply(*(_pod(number, name) for number in range(begin, min(count, begin + 60))))
    await cluster.wait_until(lambda: _have_claims(cluster, count), 120, "all claims made")
    if ours is not None:
        await ours.start(CONFIG)
    else:
        await asyncio.to_thread(plane.resume, "kube-scheduler")
    seconds = await _bound(cluster, count)
    devices = [
        (result["pool"], result["device"])
        for claim in await cluster.api.list("resourceclaims", "default")
        for result in claim["status"]["allocation"]["devices"]["results"]
    ]
    assert len(devices) == len(set(devices)) == count, "a device was given twice, or none"
    if ours is not None:
        await ours.kill()
    else:
        await asyncio.to_thread(plane.halt, "kube-scheduler")
    await cluster.api.delete_all("pods", "default", grace=0)
    await cluster.wait_until(lambda: _is_empty(cluster), 120, "pods and claims gone")
    return (count - 1) / seconds


async def _have_claims(cluster: Cluster, count: int) -> bool:
    pods = await cluster.api.list("pods", "default")
    return len(pods) == count and all(pod["status"].get("resourceClaimStatuses") for pod in pods)


async def _is_empty(cluster: Cluster) -> bool:
    return not await cluster.api.list("pods", "default") and not await cluster.api.list("resourceclaims", "default")


async def _bound(cluster: Cluster, count: int) -> float:
    """Return the seconds from the first bound pod to the last."""
    first = 0.0
    while True:
        bound = sum(bool(pod["spec"].get("nodeName")) for pod in await cluster.api.list("pods", "default"))
        now = time.monotonic()
        if bound and not first:
            first, before = now, bound
        if bound == count:
            return max(LOOK_SECONDS, (now - first) * (count - 1) / max(1, count - before))
        await asyncio.sleep(LOOK_SECONDS)


async def run(count: int, rounds: int) -> dict[str, Any]:
    """Play rounds of both schedulers in turn; return their rates."""
    fast = {"clientConnection": {"qps": 5000, "burst": 10000}}
    plane = ControlPlane(with_kwok=True, with_scheduler=True, scheduler_config=fast)
    await asyncio.to_thread(plane.start)
    try:
        async with Api(plane.kubeconfig) as api:
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            await cluster.install()
            account = await asyncio.to_thread(plane.kubeconfig_for_service_account, *ACCOUNT)
            ours = Scheduler(account, plane.directory)
            await asyncio.to_thread(plane.halt, "kube-scheduler")
            leaves = -(-count // GPUS // LEAF_NODES)
            await cluster.add_fabric({"s1": [LEAF_NODES] * leaves})
            names = [node["metadata"]["name"] for node in await api.list("nodes", None)]
            await cluster.apply(*_fixed(names))
            rates: dict[str, list[float]] = {"kube-scheduler": [], "topology-aware-scheduler": []}
            try:
                for _ in range(rounds):
                    rates["kube-scheduler"].append(await _round(cluster, plane, None, count))
                    rates["topology-aware-scheduler"].append(await _round(cluster, plane, ours, count))
            finally:
                await ours.kill()
    finally:
        await asyncio.to_thread(plane.stop)
    theirs, mine = (median(found) for found in rates.values())
    rounded = {name: [round(rate, 1) for rate in found] for name, found in rates.items()}
    return {"pods": count, "pods per second": rounded, "ratio of medians": round(mine / theirs, 2)}


def main() -> None:
    """Print the rates as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.claims", description=__doc__)
    parser.add_argument("--pods", type=int, default=480, help="pods of a round, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each scheduler")
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(run(arguments.pods, arguments.rounds)), indent=1))


if __name__ == "__main__":
    main()
