"""What it takes to place gangs, every domain looked at: the targets of speed.md, and how the cost grows with nodes."""

import gc
import time
from collections.abc import Sequence
from types import SimpleNamespace

import msgspec

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.contention import Contention
from topo_scheduler.api.objects import Job, Node, Pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import Announce
from topo_scheduler.scheduling.intake.understand import Lineage
from topo_scheduler.state.decision import Verdict

from . import objects
from .objects import Json

SPINE = 8
"""Leaves below a spine."""
CLOCK = time.thread_time
"""CPU time: a decision waits for nothing, and what else the machine does is not its cost."""


class Cluster:
    """An engine on nodes of 8 GPUs in leaves of one size, and the Jobs of its pods."""

    def __init__(self, nodes: int, per_leaf: int, per_rack: int = 0) -> None:
        """``per_rack`` nodes of an accelerator domain, 0 for none."""
        self._jobs: dict[str, Job] = {}
        self.engine = Engine(Configuration(), self._resolve)
        self.engine.contested.config = Contention(pods=0)  # who fills nodes here places nothing more
        self.engine.nodes_applied([_node(number, per_leaf, per_rack) for number in range(nodes)], 0.0)

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
        """Let pods of somebody else take so many GPUs of the nodes, in order."""
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
            member["spec"]["containers"] = objects.pod("", asked, "")["spec"]["containers"]
            pods.append(msgspec.convert(member, Pod))
        self.engine.pods_applied(pods, 0.0)

    def decide(self) -> list[Announce]:
        """Try all that wait; nothing that was there before is looked at by the garbage collector meanwhile."""
        gc.collect()
        gc.freeze()
        try:
            said = self.engine.step(0.0, CLOCK, 1e9)
        finally:
            gc.unfreeze()
        return [one for one in said if isinstance(one, Announce)]


def _node(number: int, per_leaf: int, per_rack: int) -> Node:
    body = objects.node(number)
    leaf = number // per_leaf
    labels = {"topology.scheduler/spine": f"spine-{leaf // SPINE}", "topology.scheduler/leaf": f"leaf-{leaf}"}
    if per_rack:
        labels["nvidia.com/gpu.clique"] = f"uuid.{number // per_rack}"
    body["metadata"]["labels"] |= labels
    body["metadata"]["uid"] = f"n{number}"
    return msgspec.convert(body, Node)


def _quantiles(seconds: Sequence[float]) -> Json:
    ordered = sorted(seconds)
    return {
        "p50_us": round(1e6 * ordered[len(ordered) // 2]),
        "p99_us": round(1e6 * ordered[int(len(ordered) * 0.99)]),
        "max_us": round(1e6 * ordered[-1]),
    }


def latency(nodes: int, per_leaf: int, members: int, gangs: int) -> Json:
    """A decision on a gang of whole nodes, while the cluster fills; the first is left out, which makes the caches."""
    cluster = Cluster(nodes, per_leaf)
    for number in range(gangs):
        cluster.gang(f"g{number}", members, 8)
    said = cluster.decide()
    placed = sum(one.decision.verdict is Verdict.PLACED for one in said)
    quantiles = _quantiles([one.seconds for one in said[1:]])
    return {"nodes": nodes, "leaves": -(-nodes // per_leaf), "gang": members, "placed": placed, **quantiles}


def accelerators(nodes: int = 5000, gangs: int = 200) -> list[Json]:
    """The same on racks of 18 nodes that are two leaves each: gangs of 16 that ask for one, and that ask for none."""
    found = []
    for per_rack, asked in ((0, ""), (18, ""), (18, "required-level"), (18, "preferred-level")):
        cluster = Cluster(nodes, 9, per_rack)
        told = {f"topology.scheduler/{asked}": "accelerator-domain"} if asked else {}
        for number in range(gangs):
            cluster.gang(f"g{number}", 16, 8, told)
        said = cluster.decide()
        placed = sum(one.decision.verdict is Verdict.PLACED for one in said)
        quantiles = _quantiles([one.seconds for one in said[1:]])
        found.append({"nodes": nodes, "racks": per_rack and -(-nodes // per_rack), "asks": asked, "placed": placed})
        found[-1] |= quantiles
    return found


def targets() -> list[Json]:
    """What the project promises."""
    return [latency(5000, 100, 4, 1000), latency(100_000, 16, 64, 400)]


def growth() -> list[Json]:
    """One gang, from small clusters to large ones."""
    return [
        latency(nodes, 16, members, min(200, nodes // members))
        for members in (4, 64)
        for nodes in (1000, 10_000, 100_000)
    ]


def segments(repeats: int = 5, *, mixed: bool = False) -> Json:
    """One gang of 1,000 pods in 100 segments, on 1,000 nodes in 100 leaves of which half the room is taken.

    ``mixed``: the first pod of each segment asks for no GPU.
    """
    seconds = []
    for _ in range(repeats):
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
    return {"nodes": 1000, "leaves": 100, "gang": 1000, "segments": 100, **_quantiles(seconds)}


def recheck(nodes: int = 5000, gangs: int = 100, members: int = 64) -> Json:
    """Gangs that found no room, while pods end on nodes where that helps none of them: what it costs for each gang."""
    cluster = Cluster(nodes, 100)
    cluster.run([number % 2 + 5 for number in range(nodes)])
    for number in range(gangs):
        cluster.gang(f"g{number}", members, 8)
    assert all(one.decision.verdict is Verdict.UNSCHEDULABLE for one in cluster.decide())
    engine = cluster.engine
    body = objects.pod("", 1, "another")
    seconds = []
    for number in range(300):
        body["metadata"] |= {"name": f"e{number}", "uid": f"e{number}"}
        body["spec"]["nodeName"] = f"node-{number}"
        engine.pods_applied([msgspec.convert(body, Pod)], 0.0)
        engine.step(0.0, CLOCK, 1e9)
        engine.pod_deleted(f"e{number}", 0.0)
        began = CLOCK()
        said = engine.step(0.0, CLOCK, 1e9)
        seconds.append((CLOCK() - began) / gangs)
        assert not any(isinstance(one, Announce) for one in said)
    ordered = sorted(seconds)
    return {
        "nodes": nodes,
        "gangs": gangs,
        "gang": members,
        "p50_us": round(1e6 * ordered[len(ordered) // 2], 1),
        "p99_us": round(1e6 * ordered[int(len(ordered) * 0.99)], 1),
    }
