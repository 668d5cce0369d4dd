"""Costs where there is no room: the search for victims, for reasons and for remedies. All in CPU time."""

from statistics import median
from typing import Final

import msgspec

from topo_scheduler.api.objects import Pod
from topo_scheduler.scheduling.instructions import EmitEvent, Preempt

from . import objects
from .objects import Json
from .placing import CLOCK, Cluster, frozen

STARTED: Final = 1_704_067_200.0
"""Seconds since the epoch at which pods that run were made."""
SLICE: Final = 0.002
"""Seconds for which the daemon lets explanations go on before it looks at decisions again."""


def preemption(nodes: int, victims: int, per_node: int, members: int, gpus: int, repeats: int = 5) -> Json:
    """From a full cluster to a plan: one workload of high priority, and its victims.

    ``victims`` nodes hold pods of low priority, ``per_node`` each; the others are full of pods that must stay. The
    first time is left out, which loads kernels.
    """
    planned: list[float] = []
    evicted = 0
    for _ in range(repeats + 1):
        cluster = Cluster(nodes, objects.LEAF)
        running = []
        for number in range(nodes):
            low = number * victims // nodes != (number + 1) * victims // nodes
            for part in range(per_node if low else 1):
                uid = f"r{number}-{part}"
                body = objects.pod(uid, 8 // per_node if low else 8, "another", uid=uid)
                body["metadata"]["creationTimestamp"] = f"2024-01-01T{number % 24:02}:{part:02}:00Z"
                body["spec"] |= {"nodeName": f"node-{number}", "priority": number % 3 if low else 1000}
                running.append(msgspec.convert(body, Pod))
        cluster.engine.pods_applied(running, 0.0)
        cluster.gang("urgent", members, gpus, priority=100)
        with frozen():
            began = CLOCK()
            said = cluster.engine.step(0.0, CLOCK, 1e9)
            planned.append(CLOCK() - began)
        evicted = sum(isinstance(instruction, Preempt) for instruction in said)
        assert evicted, "there was room to be made"
    return {
        "nodes": nodes,
        "candidates": victims * per_node,
        "gang": members,
        "gpus_each": gpus,
        "victims": evicted,
        "p50_ms": round(1e3 * median(planned[1:]), 1),
        "max_ms": round(1e3 * max(planned[1:]), 1),
    }


def explanations(nodes: int, per_node: int, members: int, repeats: int = 3) -> Json:
    """From a gang that can't be placed to its reasons and remedies, while other decisions may go on.

    Where there are several pods on a node, nine of ten are there, and it is known of them when they end. Slices are
    as the daemon takes them: for so long no other workload is decided on. The first time is left out, which loads code.
    """
    totals: list[float] = []
    slices: list[float] = []
    ways = pods = 0
    for repeat in range(repeats + 1):
        cluster = Cluster(nodes, objects.LEAF)
        engine = cluster.engine
        running = _running(nodes, per_node)
        pods = len(running)
        engine.pods_applied(running, 0.0)
        cluster.gang("waits", members, 8)
        engine.step(0.0, CLOCK, 1e9)
        taken = []
        with frozen():
            while engine.why.waiting:
                began = CLOCK()
                said = engine.why.work(0.0, STARTED, CLOCK, SLICE)
                taken.append(CLOCK() - began)
                ways = max(
                    ways,
                    sum(instruction.message.count(") ") for instruction in said if isinstance(instruction, EmitEvent))
                    // members,
                )
        if repeat:
            totals.append(sum(taken))
            slices += taken
        assert ways, "something would help"
    slices.sort()
    return {
        "nodes": nodes,
        "pods": pods,
        "gang": members,
        "p50_ms": round(1e3 * median(totals), 1),
        "max_ms": round(1e3 * max(totals), 1),
        "slice_p50_ms": round(1e3 * slices[len(slices) // 2], 1),
        "slice_p99_ms": round(1e3 * slices[int(len(slices) * 0.99)], 1),
        "slice_max_ms": round(1e3 * slices[-1], 1),
    }


def _running(nodes: int, per_node: int) -> list[Pod]:
    running = []
    for number in range(nodes):
        for part in range(per_node):
            if (7 * number + 3 * part) % 10 == 0 and per_node > 1:
                continue
            uid = f"r{number}-{part}"
            body = objects.pod(uid, 8 // per_node, "another", uid=uid)
            body["metadata"]["creationTimestamp"] = "2024-01-01T00:00:00Z"
            minutes = 60 + 37 * (number + 11 * part) % 3000
            body["metadata"]["annotations"] = {"topology.scheduler/expected-duration": f"{minutes}m"}
            body["spec"]["nodeName"] = f"node-{number}"
            running.append(msgspec.convert(body, Pod))
    return running


def roomless() -> Json:
    """All of it."""
    return {
        "preemption": [
            preemption(2000, 700, 1, 1, 8),
            preemption(2000, 700, 1, 4, 8),
            preemption(2000, 2000, 8, 8, 8),
            preemption(2000, 2000, 8, 64, 1),
        ],
        "explanations": {
            f"{nodes}_nodes_{per_node}_each_gang_of_{members}": explanations(nodes, per_node, members)
            for nodes, per_node, members in ((1000, 1, 16), (1000, 8, 16), (1000, 8, 64), (5000, 8, 64))
        },
    }
