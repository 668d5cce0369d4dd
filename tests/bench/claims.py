"""``python -m tests.bench.claims``: pods with a claim for one GPU each, by kube-scheduler and by this scheduler.

Both start from the same event, with warm caches. The pods are pending: each scheduler in its turn has tried all of them
in vain because their DeviceClass does not exist, and its backoff is over. Then the class is created. Counted are the
seconds from there to the last bind. Class and slices are those of NVIDIA's driver with 8 whole H100s a node.

A pair is a round of each scheduler, one right after the other, and the order changes with each pair. The ratio is the
median over the pairs of this scheduler's rate over kube-scheduler's. Where other processes take CPU too, rates say
little: then CPU time and requests for each pod tell whether this scheduler changed.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.controlplane import ControlPlane, build
from tests.devices.driver_slices import classes, pool_of
from tests.e2e import objects
from tests.e2e.api import Api
from tests.e2e.cluster import Cluster

from . import machine
from .device_objects import GPUS, claim_template, claiming_pod, devices_of
from .race import KUBE_SCHEDULER_CONFIG, MODULES, ours, running
from .server import Server, connected
from .usage import moment

THEIRS: Final = "default-scheduler"
CLASS: Final = "gpu.nvidia.com"
LEAF_NODES: Final = 15
BACKOFF_SECONDS: Final = 11.0
"""The longest backoff of kube-scheduler is 10 s, and so is ours."""
READY_SECONDS: Final = 180.0
BOUND_SECONDS: Final = 300.0
PODS: Final = "/api/v1/namespaces/default/pods"
CLAIMS: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
TEMPLATES: Final = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
CLASSES: Final = "/apis/resource.k8s.io/v1/deviceclasses"
SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"


def _theirs(plane: ControlPlane) -> list[str]:
    """kube-scheduler as it is by default, without a limit of requests of its own."""
    config = plane.directory / "race-scheduler.yaml"
    config.write_text(KUBE_SCHEDULER_CONFIG % plane.kubeconfig)
    program = build(modules=MODULES) / "kube-scheduler"
    return [str(program), "--config", str(config), "--secure-port", "0", "--leader-elect=false"]


async def _round(plane: ControlPlane, server: Server, scheduler: str, count: int) -> dict[str, Any]:
    """Play one round of a scheduler; leave the cluster without pods."""
    await server.create(PODS, (claiming_pod(f"p{number}", scheduler) for number in range(count)))
    await _until(lambda: _have_claims(server, count), "all claims made")
    command = ours(plane) if scheduler == objects.SCHEDULER else _theirs(plane)
    async with running(command) as process:
        await _until(lambda: _were_tried(server), "all pods tried")
        await asyncio.sleep(BACKOFF_SECONDS)
        version = (await server.get(PODS, limit="1"))["metadata"]["resourceVersion"]
        watch = asyncio.create_task(server.binds(version, count, BOUND_SECONDS))
        await asyncio.sleep(0.2)
        before = await moment(plane, server, process)
        released = time.monotonic()
        await server.create(CLASSES, [item for item in classes() if item["metadata"]["name"] == CLASS])
        binds = await watch
        after = await moment(plane, server, process)
    devices = devices_of((await server.get(CLAIMS))["items"])
    if not len(devices) == len(set(devices)) == len(binds) == count:
        raise RuntimeError(f"{len(binds)} of {count} bound, {len(devices)} devices, {len(set(devices))} distinct")
    await server.delete(f"{CLASSES}/{CLASS}")
    await server.delete(PODS)
    await _until(lambda: _is_empty(server), "pods and claims gone")
    return {
        "pods_per_s": round(count / (binds[-1] - released), 1),
        "first_bind_after_s": round(binds[0] - released, 2),
        "last_bind_after_s": round(binds[-1] - released, 2),
        **after.since(before, count),
    }


async def _until(look: Any, what: str) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while not await look():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {READY_SECONDS:g} s: {what}")
        await asyncio.sleep(0.5)


async def _have_claims(server: Server, count: int) -> bool:
    pods = await server.pods()
    return len(pods) == count and all(pod["status"].get("resourceClaimStatuses") for pod in pods)


async def _were_tried(server: Server) -> bool:
    return all(
        any(
            entry["type"] == "PodScheduled" and entry["status"] == "False"
            for entry in pod["status"].get("conditions", ())
        )
        for pod in await server.pods()
    )


async def _is_empty(server: Server) -> bool:
    return not await server.pods() and not (await server.get(CLAIMS))["items"]


async def run(count: int, rounds: int, which: Sequence[str]) -> dict[str, Any]:
    """Play rounds of the schedulers in turn; return what each measured, and the ratio of their median rates."""
    plane = ControlPlane(with_kwok=True)
    await asyncio.to_thread(plane.start)
    played: dict[str, list[dict[str, Any]]] = {name: [] for name in which}
    try:
        async with Api(plane.kubeconfig) as api, connected(plane) as server:
            leaves = -(-count // GPUS // LEAF_NODES)
            cluster = Cluster(api, scheduler_kubeconfig=plane.kubeconfig, plane=plane)
            names = await cluster.add_fabric({"s1": [LEAF_NODES] * leaves})
            await server.create(SLICES, (item for name in names for item in pool_of(name, "whole", GPUS)))
            await server.create(TEMPLATES, [claim_template(device_class_name=CLASS)])
            for number in range(rounds):
                for name in which if number % 2 == 0 else reversed(which):
                    load = machine.load()
                    played[name].append({"load": load, **await _round(plane, server, name, count)})
                    print(json.dumps({name: played[name][-1]}), file=sys.stderr, flush=True)
    finally:
        await asyncio.to_thread(plane.stop)
    result: dict[str, Any] = {"pods": count, "nodes": len(names), "commit": machine.commit(), "rounds": played}
    result["median_pods_per_s"] = {name: median(_rates(played_rounds)) for name, played_rounds in played.items()}
    if len(played) > 1:
        pairs = zip(_rates(played[objects.SCHEDULER]), _rates(played[THEIRS]), strict=True)
        result["ratios_of_pairs"] = [round(rate / their_rate, 2) for rate, their_rate in pairs]
        result["ratio"] = round(median(result["ratios_of_pairs"]), 2)
    return result


def _rates(played: Sequence[Mapping[str, Any]]) -> list[float]:
    return [result["pods_per_s"] for result in played]


async def race_of_claims() -> dict[str, Any]:
    """Five pairs of rounds with 480 pods."""
    return await run(480, 5, (THEIRS, objects.SCHEDULER))


def main() -> None:
    """Print the rates as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.claims", description=__doc__)
    parser.add_argument("--pods", type=int, default=480, help="pods of a round, a multiple of 8")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each scheduler, in pairs")
    parser.add_argument("--only", choices=(THEIRS, objects.SCHEDULER), help="one scheduler alone")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    arguments = parser.parse_args()
    which = (arguments.only,) if arguments.only else (THEIRS, objects.SCHEDULER)
    text = json.dumps(asyncio.run(run(arguments.pods, arguments.rounds, which)), indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
