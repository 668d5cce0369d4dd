"""What it costs in core to hold nodes for a gang that waits, and to find the pods whose move would make room."""

import random
import time
from collections.abc import Callable

from tests.helpers import controlled_by, make_node, make_pod, owner, timestamp
from tests.scheduling.driver import Driver, configured, gang
from topo_scheduler.api.objects import Pod

from .objects import Json

IN_LEAF = 16


def _torn(nodes: int) -> Driver:
    """Every node has 4 to 8 of its 8 GPUs in use, by pods of 1 to 4 of which it is known when they end."""
    dice = random.Random(1)
    listed = [make_node(f"n{n}", f"s{n // IN_LEAF // 8}/l{n // IN_LEAF}") for n in range(nodes)]
    d = Driver(listed, configured("{preemption: {enabled: false}, reservation: {enabled: false}}"))
    d.engine.budgets_known()
    pods: list[Pod] = []
    where: list[str] = []
    for node in listed:
        left = 8
        while left > 4:
            gpus = dice.randint(1, min(4, left))
            left -= gpus
            name = f"p-{len(pods)}"
            pod = make_pod(name, gpus=gpus, owner=controlled_by("StatefulSet", name))
            pod.metadata.annotations["topology.scheduler/expected-duration"] = f"{dice.randint(600, 90_000)}s"
            pod.status.start_time = timestamp(0)
            d.own(owner("StatefulSet", name))
            pods.append(pod)
            where.append(node.metadata.name)
    d.engine.pods_applied(pods, 0.0)
    for pod, name in zip(pods, where, strict=True):
        pod.spec.node_name, pod.status.phase = name, "Running"
    d.apply(*pods)
    return d


def _measured(what: Callable[[], object], times: int = 5) -> Json:
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    taken.sort()
    return {"p50_ms": round(1e3 * taken[times // 2], 1), "max_ms": round(1e3 * taken[-1], 1)}


def reservation(nodes: int, members: int) -> Json:
    """From a gang that has waited long enough to nodes that are held for it."""
    d = _torn(nodes)
    d.apply(*gang(members, name="large"))
    d.step()
    d.now = 60.0
    off, on = d.engine.config, configured("{preemption: {enabled: false}}")

    def hold() -> None:
        d.engine.configure(off)
        d.step(60)
        assert not d.engine.reserving.holds
        d.engine.configure(on)

    results = []
    for _ in range(5):
        hold()
        began = time.perf_counter()
        d.step(60)
        results.append(time.perf_counter() - began)
        assert len(d.engine.reserving.holds) == 1
    results.sort()
    return {
        "nodes": nodes,
        "pods": len(d.engine.world.ledger),
        "gang": members,
        "p50_ms": round(1e3 * results[2], 1),
        "max_ms": round(1e3 * results[-1], 1),
    }


def moves(nodes: int, members: int) -> Json:
    """The fewest pods whose move makes room for a gang of whole nodes."""
    d = _torn(nodes)
    pods = gang(members, name="large")
    d.apply(*pods)
    d.step()
    found = d.engine.workloads.of_pod(pods[0].metadata.uid)
    assert found is not None
    plan = d.engine.moving.plan(found[0], d.now, 64)
    took = _measured(lambda: d.engine.moving.plan(found[0], d.now, 64))
    return {
        "nodes": nodes,
        "pods": len(d.engine.world.ledger),
        "gang": members,
        "moved": len(plan.moves) if plan else 0,
        **took,
    }
