"""What it takes to place gangs, every domain looked at: what is promised of it, and how the cost grows with nodes.

All times are CPU time: a decision waits for nothing, and what else the machine does is not its cost.
"""

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Final

import msgspec

from topo_scheduler.api.config import Configuration, load_configuration
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.objects import Job, Node, Pod
from topo_scheduler.api.process import PendingPodsSettings, SchedulerConfig
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.state.decision import Verdict

from . import objects
from .objects import Json

SPINE = 8
"""Leaves below a spine."""
CLOCK = time.thread_time
LINKS: Final = """
apiVersion: topology.scheduler/v1alpha1
kind: TopologySchedulerConfig
spec: {links: [{level: node, capacity: 400Gb}, {level: leaf, oversubscription: 2}, {level: spine, oversubscription: 4}]}
"""


BACKLOG = Configuration(SchedulerConfig(pending_pods=PendingPodsSettings(max_per_namespace=1_000_000, memory=1 << 40)))
"""Benchmarks of backlogs are of all their pods."""


class Cluster:
    """An engine on nodes of 8 GPUs in leaves of one size, and the Jobs of its pods."""

    def __init__(self, nodes: int, per_leaf: int, per_rack: int = 0, *, links: bool = False) -> None:
        """``per_rack`` nodes of an accelerator domain, 0 for none; ``links``: their bandwidth is known."""
        self._jobs: dict[str, Job] = {}
        self.engine = Engine(load_configuration({"bench": LINKS}) if links else BACKLOG, self._resolve)
        self.engine.contention.configure(
            Contention(reserved_pods_per_node=0)
        )  # a scheduler that fills nodes here places nothing more
        self.engine.budgets_known()
        self.engine.nodes_applied([node(number, per_leaf, per_rack) for number in range(nodes)], 0.0)

    def _resolve(self, pod: Pod) -> Lineage:
        controller = pod.metadata.controller
        if controller is None:
            return Lineage()
        job = self._jobs[controller.uid]
        meta = job.metadata
        owner = SimpleNamespace(
            kind="Job", namespace=meta.namespace, name=meta.name, uid=meta.uid, annotations=meta.annotations, job=job
        )
        return Lineage((owner,))

    def run(self, gpus: Sequence[int]) -> None:
        """Let pods of another scheduler take so many GPUs of the nodes, in order."""
        pods = []
        for number, many in enumerate(gpus):
            if many:
                body = objects.pod(f"r{number}", many, "another", uid=f"r{number}")
                body["spec"]["nodeName"] = f"node-{number}"
                pods.append(msgspec.convert(body, Pod))
        self.engine.pods_applied(pods, 0.0)

    def gang(
        self,
        name: str,
        members: int,
        gpus: int,
        annotations: dict[str, str] | None = None,
        *,
        without: int = 0,
        namespace: str = "default",
        priority: int = 0,
    ) -> None:
        """Let a gang appear; ``without``: every so many pods, the first among them, one asks for no GPU."""
        body = objects.job(name, members)
        body["metadata"] |= {"uid": name, "namespace": namespace, "annotations": annotations or {}}
        self._jobs[name] = msgspec.convert(body, Job)
        pods = []
        for index in range(members):
            member = objects.member_of_job(body, index)
            member["metadata"] |= {"uid": f"{name}-{index}", "namespace": namespace}
            asked = 0 if without and index % without == 0 else gpus
            member["spec"] |= {"containers": objects.pod("", asked, "")["spec"]["containers"], "priority": priority}
            pods.append(msgspec.convert(member, Pod))
        self.engine.pods_applied(pods, 0.0)

    def decide(self) -> list[RecordDecision]:
        """Try all pending pods; meanwhile the garbage collector skips what was there before."""
        with frozen():
            said = self.engine.step(0.0, CLOCK, 1e9)
        return [instruction for instruction in said if isinstance(instruction, RecordDecision)]


@contextmanager
def frozen() -> Iterator[None]:
    """Leave what is there to itself while garbage is collected, as the daemon does once its caches are filled."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def node(number: int, per_leaf: int, per_rack: int = 0) -> Node:
    """A decoded node of 8 GPUs; its place follows from its number."""
    body = objects.node(number)
    leaf = number // per_leaf
    labels = {"topology.scheduler/spine": f"spine-{leaf // SPINE}", "topology.scheduler/leaf": f"leaf-{leaf}"}
    if per_rack:
        labels["nvidia.com/gpu.clique"] = f"uuid.{number // per_rack}"
    body["metadata"]["labels"] |= labels
    body["metadata"]["uid"] = f"n{number}"
    return msgspec.convert(body, Node)


def quantiles(seconds: Sequence[float]) -> Json:
    """Median, 99th percentile and the most of some times, in microseconds."""
    ordered = sorted(seconds)
    return {
        "p50_us": round(1e6 * ordered[len(ordered) // 2]),
        "p99_us": round(1e6 * ordered[int(len(ordered) * 0.99)]),
        "max_us": round(1e6 * ordered[-1]),
    }


def latency(nodes: int, per_leaf: int, members: int, gangs: int, bandwidth: str = "", *, links: bool = False) -> Json:
    """A decision on a gang of whole nodes, while the cluster fills; the first is left out, which makes the caches.

    With ``links`` capacities are known, and each gang asks for ``bandwidth``, if for any.
    """
    cluster = Cluster(nodes, per_leaf, links=links)
    said = filled(cluster, members, gangs, {"topology.scheduler/network-bandwidth": bandwidth} if bandwidth else {})
    times = quantiles([record.seconds for record in said[1:]])
    return {"nodes": nodes, "leaves": -(-nodes // per_leaf), "gang": members, "placed": _placed(said), **times}


def filled(cluster: Cluster, members: int, gangs: int, asks: dict[str, str], name: str = "g") -> list[RecordDecision]:
    """Let gangs of whole nodes appear, and decide on all of them."""
    for number in range(gangs):
        cluster.gang(f"{name}{number}", members, 8, asks)
    return cluster.decide()


def _placed(said: Sequence[RecordDecision]) -> int:
    return sum(record.decision.verdict is Verdict.PLACED for record in said)


def accelerators(nodes: int = 5000, gangs: int = 200) -> Json:
    """The same on racks of 18 nodes that are two leaves each: gangs of 16 that ask for one, and that ask for none."""
    results: Json = {}
    for name, per_rack, level in (
        ("no_racks", 0, ""),
        ("not_asked", 18, ""),
        ("required", 18, "required-level"),
        ("preferred", 18, "preferred-level"),
    ):
        asks = {f"topology.scheduler/{level}": "accelerator-domain"} if level else {}
        said = filled(Cluster(nodes, 9, per_rack), 16, gangs, asks)
        times = quantiles([record.seconds for record in said[1:]])
        results[name] = {"nodes": nodes, "racks": per_rack and -(-nodes // per_rack), "placed": _placed(said), **times}
    return results


def growth(members: int) -> Json:
    """One gang, from small clusters to large ones."""
    sizes = (1000, 10_000, 100_000)
    return {str(nodes): latency(nodes, 16, members, min(200, nodes // members)) for nodes in sizes}


def segments(repeats: int = 5, *, mixed: bool = False) -> Json:
    """One gang of 1,000 pods in 100 segments, on 1,000 nodes in 100 leaves of which half the room is taken.

    ``mixed``: the first pod of each segment asks for no GPU. The first time is left out, which loads kernels.
    """
    seconds = []
    for _ in range(repeats + 1):
        cluster = Cluster(1000, 10)
        cluster.run([number % 8 for number in range(1000)])
        without = 10 if mixed else 0
        cluster.gang("first", 10, 1, {"topology.scheduler/segment-size": "10"}, without=without)
        cluster.decide()
        how = {"topology.scheduler/segment-size": "10", "topology.scheduler/placement": "preferred"}
        cluster.gang("large", 1000, 1, how, without=without)
        (said,) = cluster.decide()
        assert said.decision.verdict is Verdict.PLACED
        seconds.append(said.seconds)
    return {"nodes": 1000, "leaves": 100, "gang": 1000, "segments": 100, **quantiles(seconds[1:])}


def recheck(nodes: int = 5000, gangs: int = 100, members: int = 64, repeats: int = 300) -> Json:
    """Gangs that found no room, while pods end on nodes where that helps none of them: what it costs for each gang."""
    cluster = Cluster(nodes, 100)
    cluster.run([number % 2 + 5 for number in range(nodes)])
    for number in range(gangs):
        cluster.gang(f"g{number}", members, 8)
    assert all(record.decision.verdict is Verdict.UNSCHEDULABLE for record in cluster.decide())
    engine = cluster.engine
    body = objects.pod("", 1, "another")
    seconds = []
    for number in range(repeats):
        body["metadata"] |= {"name": f"e{number}", "uid": f"e{number}"}
        body["spec"]["nodeName"] = f"node-{number}"
        engine.pods_applied([msgspec.convert(body, Pod)], 0.0)
        engine.step(0.0, CLOCK, 1e9)
        engine.pod_deleted(f"e{number}", 0.0)
        began = CLOCK()
        said = engine.step(0.0, CLOCK, 1e9)
        seconds.append((CLOCK() - began) / gangs)
        assert not any(isinstance(instruction, RecordDecision) for instruction in said)
    ordered = sorted(seconds)
    return {
        "nodes": nodes,
        "gangs": gangs,
        "gang": members,
        "p50_us": round(1e6 * ordered[len(ordered) // 2], 1),
        "p99_us": round(1e6 * ordered[int(len(ordered) * 0.99)], 1),
    }


def decisions() -> Json:
    """All of it."""
    return {
        "gang_of_8": {str(n): latency(n, 16, 8, many) for n, many in ((1000, 110), (5000, 600), (10_000, 1200))},
        "growth": {"gang_of_4": growth(4), "gang_of_64": growth(64)},
        "targets": {
            "gang_of_4": latency(5000, 100, 4, 1000),
            "gang_of_64": latency(100_000, 16, 64, 400),
            "gang_in_segments": segments(),
            "recheck": recheck(),
        },
        "mixed_segments": segments(mixed=True),
        "bandwidth": {
            f"gang_of_{members}": {
                "no_links": latency(5000, 16, members, 2400 // members),
                "not_asked": latency(5000, 16, members, 2400 // members, links=True),
                "asked": latency(5000, 16, members, 2400 // members, "100Gb", links=True),
            }
            for members in (8, 32)
        },
        "accelerators": accelerators(),
    }
