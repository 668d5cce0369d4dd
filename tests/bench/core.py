"""Decisions in core: no API server, one process, the same engine."""

import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace
from typing import Any, Final

import msgspec

from topo_scheduler.api.config import Configuration, load_configuration
from topo_scheduler.api.objects import Job, Node, Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Announce, Preempt, Tell
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.scheduling.surveying.fragmentation import fragmentation
from topo_scheduler.state.decision import Verdict

from . import objects, waiting
from .backlog import backlog
from .objects import Json
from .placing import accelerators, growth, recheck, segments, targets
from .small import small_pods

LINKS = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec: {links: [{level: node, capacity: 400Gb}, {level: leaf, oversubscription: 2}, {level: spine, oversubscription: 4}]}
"""
STARTED: Final = 1_704_067_200.0
"""Seconds since the epoch at which pods that run were made."""


def _engine(jobs: dict[str, Job], config: Configuration | None = None) -> Engine:
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

    return Engine(config or Configuration(), resolve)


def _nodes(count: int) -> list[Node]:
    return [
        msgspec.convert({**objects.node(i), "metadata": {**objects.node(i)["metadata"], "uid": f"n{i}"}}, Node)
        for i in range(count)
    ]


def decisions(nodes: int, gangs: int, members: int, bandwidth: str = "") -> Json:
    """Latency of a decision on a gang of whole nodes, while the cluster fills; with ``bandwidth`` also its links."""
    jobs: dict[str, Job] = {}
    engine = _engine(jobs, load_configuration({"bench": LINKS}) if bandwidth else None)
    engine.nodes_applied(_nodes(nodes), 0.0)
    pods = []
    for number in range(gangs):
        body = objects.job(f"g-{number}", members)
        body["metadata"]["uid"] = f"j{number}"
        if bandwidth:
            body["metadata"].setdefault("annotations", {})["topology.scheduler/network-bandwidth"] = bandwidth
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
        "bandwidth": bandwidth or None,
        "decisions": len(seconds),
        "placed": sum(one.decision.verdict is Verdict.PLACED for one in said if isinstance(one, Announce)),
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


def preemption(nodes: int, victims: int, per_node: int, members: int, gpus: int, repeats: int = 5) -> Json:
    """From a full cluster to a plan: one workload of high priority, and who gives way for it.

    ``victims`` nodes hold pods of low priority, ``per_node`` each; the others are full of pods that must stay.
    """
    planned: list[float] = []
    evicted = 0
    for _ in range(repeats):
        jobs: dict[str, Job] = {}
        engine = _engine(jobs)
        engine.budgets_known()
        engine.nodes_applied(_nodes(nodes), 0.0)
        running = []
        for number in range(nodes):
            low = number * victims // nodes != (number + 1) * victims // nodes
            for part in range(per_node if low else 1):
                uid = f"r{number}-{part}"
                body = objects.pod(uid, 8 // per_node if low else 8, "another", uid=uid)
                body["metadata"]["creationTimestamp"] = f"2024-01-01T{number % 24:02}:{part:02}:00Z"
                body["spec"] |= {"nodeName": f"node-{number}", "priority": number % 3 if low else 1000}
                running.append(msgspec.convert(body, Pod))
        engine.pods_applied(running, 0.0)
        body = objects.job("urgent", members)
        body["metadata"]["uid"] = "urgent"
        jobs["urgent"] = msgspec.convert(body, Job)
        for index in range(members):
            member = objects.member_of_job(body, index)
            member["metadata"]["uid"] = f"u{index}"
            member["spec"]["priority"] = 100
            member["spec"]["containers"] = objects.pod("", gpus, "")["spec"]["containers"]
            engine.pods_applied([msgspec.convert(member, Pod)], 0.0)
        began = time.perf_counter()
        said = engine.step(0.0, time.perf_counter, 1e9)
        planned.append(time.perf_counter() - began)
        evicted = sum(isinstance(one, Preempt) for one in said)
        assert evicted, "there was room to be made"
    planned.sort()
    return {
        "nodes": nodes,
        "candidates": victims * per_node,
        "gang": members,
        "gpus_each": gpus,
        "victims": evicted,
        "p50_ms": round(1e3 * planned[len(planned) // 2], 1),
        "max_ms": round(1e3 * planned[-1], 1),
    }


def explanations(nodes: int, per_node: int, members: int, repeats: int = 5) -> Json:
    """From a gang that can't be placed to why not and what would help, while other decisions may go on.

    Nine of ten GPUs are held, by pods of which it is known when they end. Slices are as the daemon takes them, in CPU
    time: for so long nobody else is decided on.
    """
    totals, slices, busy, ways = [], [], [], 0
    for repeat in range(repeats):
        jobs: dict[str, Job] = {}
        engine = _engine(jobs)
        engine.nodes_applied(_nodes(nodes), 0.0)
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
        engine.pods_applied(running, 0.0)
        body = objects.job("waits", members)
        body["metadata"]["uid"] = "waits"
        jobs["waits"] = msgspec.convert(body, Job)
        for index in range(members):
            member = objects.member_of_job(body, index)
            member["metadata"]["uid"] = f"w{index}"
            engine.pods_applied([msgspec.convert(member, Pod)], 0.0)
        engine.step(0.0, time.perf_counter, 1e9)
        wall = STARTED
        began, cpu = time.perf_counter(), time.process_time()
        while engine.why.waiting:
            at = time.process_time()
            said = engine.why.work(0.0, wall, time.perf_counter, 0.002)
            if repeat:  # the first loads code
                slices.append(time.process_time() - at)
            ways = max(ways, sum(one.message.count(") ") for one in said if isinstance(one, Tell)) // members)
        if repeat:
            totals.append(time.perf_counter() - began)
            busy.append(time.process_time() - cpu)
        assert ways, "something would help"
    totals.sort()
    slices.sort()
    return {
        "nodes": nodes,
        "pods": len(running),
        "gang": members,
        "p50_ms": round(1e3 * totals[len(totals) // 2], 1),
        "max_ms": round(1e3 * totals[-1], 1),
        "cpu_ms": round(1e3 * min(busy), 1),
        "slice_p50_cpu_ms": round(1e3 * slices[len(slices) // 2], 1),
        "slice_p99_cpu_ms": round(1e3 * slices[int(len(slices) * 0.99)], 1),
        "slice_max_cpu_ms": round(1e3 * slices[-1], 1),
    }


def largest_gangs(nodes: int, repeats: int = 50) -> Json:
    """Measuring fragmentation, as each scrape of the metrics does."""
    engine = _engine({})
    engine.nodes_applied(_nodes(nodes), 0.0)
    for number in range(0, nodes, 3):
        body = objects.pod(f"r{number}", 2, "another", uid=f"r{number}")
        body["spec"]["nodeName"] = f"node-{number}"
        engine.pods_applied([msgspec.convert(body, Pod)], 0.0)
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        fragmentation(engine.world)
        seconds.append(time.perf_counter() - began)
    seconds.sort()
    return {"nodes": nodes, "p50_us": round(1e6 * seconds[repeats // 2]), "max_us": round(1e6 * seconds[-1])}


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
        "targets": targets(),
        "accelerators": accelerators(),
        "segments": segments(),
        "mixed_segments": segments(mixed=True),
        "recheck": recheck(),
        "growth": growth(),
        "backlog": [backlog(gangs=gangs) for gangs in (100, 1000, 4000)],
        "with_bandwidth": [
            decisions(5000, 600, members, bandwidth) for members in (8, 32) for bandwidth in ("", "100Gb")
        ],
        "preemption": [
            preemption(2000, 700, 1, 1, 8),
            preemption(2000, 700, 1, 4, 8),
            preemption(2000, 2000, 8, 8, 8),
            preemption(2000, 2000, 8, 64, 1),
        ],
        "explanations": [
            explanations(1000, 1, 16),
            explanations(1000, 8, 16),
            explanations(1000, 8, 64),
            explanations(5000, 8, 64),
        ],
        "largest_gangs": [largest_gangs(1000), largest_gangs(5000)],
        "small_pods": [
            small_pods(5000, 5000),
            small_pods(5000, 5000, "off"),
            small_pods(5000, 5000, sharing=True),
        ],
        "reservation": [waiting.reservation(1000, 16), waiting.reservation(5000, 16)],
        "moves": [waiting.moves(1000, 4), waiting.moves(1000, 16), waiting.moves(5000, 16)],
        "fabric": fabric(),
        "kernels": kernels(),
    }
