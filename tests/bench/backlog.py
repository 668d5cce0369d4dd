"""What it costs that many wait: a full cluster in which a pod ends each second, and a backlog of gangs."""

from collections import Counter
from typing import Any, Final

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import Bind, RecordDecision

from . import objects
from .objects import Json
from .placing import CLOCK, Cluster

SIZES: Final = ((2, 8), (4, 8), (8, 8), (16, 8), (32, 8), (4, 4), (1, 8), (8, 2))
"""Pods of a gang and the GPUs of each, in turn."""
WARM: Final = 5
"""Seconds that are not counted: the first load code and make the caches."""
STEP_SECONDS: Final = 0.005


def backlog(nodes: int = 5000, gangs: int = 1000, seconds: int = 60, *, dated: bool = True, spaces: int = 5) -> Json:
    """CPU seconds for each second in which one pod of a whole node ends and as many as find room start.

    ``dated``: the pods that run say how long, so that nodes are reserved for what has been pending longest.
    """
    cluster = Cluster(nodes, 16)
    engine = cluster.engine
    running = []
    for number in range(nodes):
        body = objects.pod(f"r{number}", 8, "another", uid=f"r{number}")
        body["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
        if dated:
            lasts = 1000 + 37 * number % 90_000
            body["metadata"]["annotations"] = {"topology.scheduler/expected-duration": f"{lasts}s"}
        body["spec"] |= {"nodeName": f"node-{number}", "restartPolicy": "Never"}
        body["status"] = {"phase": "Running", "startTime": "1970-01-01T00:00:00Z"}
        running.append(msgspec.convert(body, Pod))
    engine.pods_applied(running, 0.0)
    for number in range(gangs):
        members, gpus = SIZES[number % len(SIZES)]
        cluster.gang(f"g{number}", members, gpus, namespace=f"team-{number % spaces}")
    cluster.decide()
    used: list[float] = []
    tried: Counter[str] = Counter()
    bound: list[Any] = []
    for second in range(1, WARM + seconds + 1):
        now = 60.0 + second
        began = CLOCK()
        engine.pod_deleted(f"r{(second * 613) % nodes}", now)
        while True:
            said = engine.step(now, CLOCK, STEP_SECONDS)
            if second > WARM:
                tried.update(
                    instruction.decision.verdict.value
                    for instruction in said
                    if isinstance(instruction, RecordDecision)
                )
            bound += [instruction for instruction in said if isinstance(instruction, Bind)]
            if not engine.pending_work:
                break
        if second > WARM:
            used.append(CLOCK() - began)
    used.sort()
    return {
        "nodes": nodes,
        "gangs": gangs,
        "pods_end": "dated" if dated else "undated",
        "cpu_ms_per_second": round(1e3 * sum(used) / seconds, 1),
        "p50_ms": round(1e3 * used[len(used) // 2], 1),
        "max_ms": round(1e3 * used[-1], 1),
        "attempts_per_second": round(sum(tried.values()) / seconds, 1),
        "pods_bound": len(bound),
    }
