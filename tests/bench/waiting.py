"""What it costs in core to hold nodes for a gang that waits, and to find the pods whose move would make room."""

import gc
import random
from typing import Final

from tests.helpers import controlled_by, make_node, make_pod, owner, timestamp
from tests.scheduling.driver import Driver, configured, gang
from topo_scheduler.api.objects import Pod

from .backlog import backlog
from .objects import Json
from .placing import CLOCK

IN_LEAF = 16
STEP_SECONDS: Final = 0.005
"""As the daemon has it."""


def _torn(nodes: int) -> Driver:
    """Every node has 4 to 8 of its 8 GPUs in use, by pods of 1 to 4 GPUs that say when they end."""
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


def _slices(d: Driver) -> list[float]:
    """CPU seconds of each step, as the daemon takes them, until nothing is left to be done now."""
    # As the daemon does when its caches are filled.
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    taken: list[float] = []
    while not taken or d.engine.pending_work:
        began = CLOCK()
        d.engine.step(d.now, CLOCK, STEP_SECONDS)
        taken.append(CLOCK() - began)
    return taken


def _cut(slices: list[list[float]]) -> Json:
    """Of some times of the same work: the CPU time of all of it, and of one step."""
    steps = sorted(step for times in slices for step in times)
    return {
        "cpu_ms": round(1e3 * min(map(sum, slices)), 1),
        "step_p50_cpu_ms": round(1e3 * steps[len(steps) // 2], 1),
        "step_p99_cpu_ms": round(1e3 * steps[int(len(steps) * 0.99)], 1),
        "step_max_cpu_ms": round(1e3 * steps[-1], 1),
    }


def reservation(nodes: int, members: int, repeats: int = 6) -> Json:
    """From a gang that has waited long enough to nodes that are held for it, in steps as the daemon takes them."""
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

    slices = []
    for _ in range(repeats):
        hold()
        d.now += 60
        slices.append(_slices(d))
        assert len(d.engine.reserving.holds) == 1
    # The first loads code.
    return {"nodes": nodes, "pods": len(d.engine.world.ledger), "gang": members, **_cut(slices[1:])}


def moves(nodes: int, members: int, repeats: int = 6) -> Json:
    """The fewest pods whose move makes room for a gang of whole nodes, in steps as the daemon takes them."""
    d = _torn(nodes)
    d.engine.configure(
        configured(
            "{preemption: {enabled: false}, reservation: {enabled: false}, repair: {enabled: true, maxMoves: 64}}"
        )
    )
    pods = gang(members, name="large")
    d.apply(*pods)
    d.step()
    entry = d.engine.workloads.of_pod(pods[0].metadata.uid)
    assert entry is not None
    plan = d.engine.moving.plan(entry[0], d.now, 64)
    slices = []
    for _ in range(repeats):
        d.engine.world.improve_all()
        d.now += 600
        slices.append(_slices(d))
    return {
        "nodes": nodes,
        "pods": len(d.engine.world.ledger),
        "gang": members,
        "moved": len(plan.moves) if plan else 0,
        **_cut(slices[1:]),
    }


def waiting() -> Json:
    """All of it, and a backlog."""
    return {
        "backlog": {str(gangs): backlog(gangs=gangs) for gangs in (100, 1000, 4000)},
        "reservation": {str(nodes): reservation(nodes, 16) for nodes in (1000, 5000)},
        "moves": {str(nodes): moves(nodes, 16) for nodes in (1000, 5000)},
    }
