"""Decisions in core on pods that are placed alone, whole GPUs and shares of them."""

import random
import time

import msgspec

from topo_scheduler.api.config import load_configuration
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Announce
from topo_scheduler.scheduling.intake.understand import Lineage

from . import objects
from .objects import Json

SPEC = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec: {smallPods: {scoring: '%s'}}"


def small_pods(nodes: int, pods: int, scoring: str = "fragmentation", *, sharing: bool = False) -> Json:
    """Latency of a decision on a pod alone, of mixed sizes, while the cluster fills."""
    engine = Engine(load_configuration({"bench": SPEC % scoring}), lambda pod: Lineage())
    listed = [objects.node(number) for number in range(nodes)]
    for number, node in enumerate(listed):
        node["metadata"]["uid"] = f"n{number}"
        if sharing:
            node["metadata"]["labels"]["topology.scheduler/gpu-sharing"] = "true"
    engine.nodes_applied([msgspec.convert(node, Node) for node in listed], 0.0)
    draw = random.Random(42)
    waiting = []
    for number in range(pods):
        gpus = draw.choice((1, 1, 1, 2, 4, 8))
        fraction = draw.choice(("", "0.5", "0.25")) if sharing and gpus == 1 else ""
        body = objects.pod(f"p{number}", 0 if fraction else gpus, "topology-aware-scheduler", uid=f"p{number}")
        if fraction:
            body["metadata"]["annotations"] = {"topology.scheduler/gpu-fraction": fraction}
        waiting.append(msgspec.convert(body, Pod))
    engine.pods_applied(waiting, 0.0)
    said = engine.step(0.0, time.perf_counter, 1e9)
    seconds = sorted(one.seconds for one in said if isinstance(one, Announce))[:-2]  # the first load the kernels
    return {
        "nodes": nodes,
        "pods": pods,
        "scoring": scoring,
        "sharing": sharing,
        "p50_us": round(1e6 * seconds[len(seconds) // 2]),
        "p99_us": round(1e6 * seconds[int(len(seconds) * 0.99)]),
        "max_us": round(1e6 * seconds[-1]),
    }
