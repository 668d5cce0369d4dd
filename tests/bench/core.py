"""Decisions in core: no API server, one process, the same engine."""

import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any

import msgspec

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Job, Node, Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Announce
from topo_scheduler.scheduling.understand import Lineage

from . import objects
from .objects import Json


def _engine(jobs: dict[str, Job]) -> Engine:
    def resolve(pod: Pod) -> Lineage:
        controller = pod.metadata.controller
        if controller is None:
            return Lineage()
        job = jobs[controller.uid]
        meta = job.metadata
        owner = SimpleNamespace(
            kind="Job", namespace="default", name=meta.name, uid=meta.uid, annotations=meta.annotations, job=job
        )
        return Lineage((owner,))

    return Engine(Configuration(), resolve)


def _nodes(count: int) -> list[Node]:
    return [
        msgspec.convert({**objects.node(i), "metadata": {**objects.node(i)["metadata"], "uid": f"n{i}"}}, Node)
        for i in range(count)
    ]


def decisions(nodes: int, gangs: int, members: int) -> Json:
    """Latency of a decision on a gang of whole nodes, while the cluster fills."""
    jobs: dict[str, Job] = {}
    engine = _engine(jobs)
    engine.nodes_applied(_nodes(nodes), 0.0)
    pods = []
    for number in range(gangs):
        body = objects.job(f"g-{number}", members)
        body["metadata"]["uid"] = f"j{number}"
        jobs[f"j{number}"] = msgspec.convert(body, Job)
        for index in range(members):
            member = objects.member_of_job(body, index)
            member["metadata"]["uid"] = f"p{number}-{index}"
            pods.append(msgspec.convert(member, Pod))
    engine.pods_applied(pods, 0.0)
    said = engine.step(0.0, time.perf_counter, 1e9)
    seconds = sorted(one.seconds for one in said if isinstance(one, Announce))[:-1]  # the first loads the kernels
    return {
        "nodes": nodes,
        "gpus": 8 * nodes,
        "gang": members,
        "decisions": len(seconds),
        "p50_us": round(1e6 * seconds[len(seconds) // 2]),
        "p99_us": round(1e6 * seconds[int(len(seconds) * 0.99)]),
        "max_us": round(1e6 * seconds[-1]),
    }


def fabric(nodes: int = 10_000) -> Json:
    """Taking over a whole list of decoded nodes, and one node's changed labels."""
    listed = _nodes(nodes)
    engine = _engine({})
    began = time.perf_counter()
    engine.nodes_applied(listed, 0.0)
    _ = engine.world.layout
    first = time.perf_counter() - began
    for one in listed:
        one.metadata.labels = {**one.metadata.labels, "changed": "yes"}
    began = time.perf_counter()
    engine.nodes_applied(listed, 0.0)
    _ = engine.world.layout
    again = time.perf_counter() - began
    singles = []
    for number in range(200):
        node = listed[number * 37 % nodes]
        node.metadata.labels = {**node.metadata.labels, "topology.scheduler/leaf": f"leaf-{number}"}
        began = time.perf_counter()
        engine.nodes_applied([node], 0.0)
        _ = engine.world.layout
        singles.append(time.perf_counter() - began)
    singles.sort()
    return {
        "nodes": nodes,
        "first_list_ms": round(1e3 * first, 1),
        "relist_all_changed_ms": round(1e3 * again, 1),
        "one_change_p50_us": round(1e6 * singles[100]),
        "one_change_p99_us": round(1e6 * singles[198]),
    }


def kernels() -> Json:
    """Compiling every kernel cold, and loading them from the cache."""
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("cold", "cached"):
            command = [sys.executable, "-m", "topo_scheduler.kernels.warm", folder]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result[f"{name}_s"] = float(said.split("ready in ")[1].split(" s")[0])
    return result


def core() -> Json:
    """All measurements in core."""
    return {
        "decisions": [decisions(1000, 110, 8), decisions(5000, 600, 8), decisions(10_000, 1200, 8)],
        "fabric": fabric(),
        "kernels": kernels(),
    }
