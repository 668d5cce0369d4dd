"""One run as a value: a task that can be sent anywhere, and what comes back of it."""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from topo_scheduler.api.config import Configuration
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.fill import Asked, asked_of, filled
from topo_scheduler.simulation.policies.names import (
    Policy,
    configuration_of,
    engine_of,
    tell_typical,
    understood,
)
from topo_scheduler.simulation.results import figures
from topo_scheduler.simulation.results.model import Run, Slowdown
from topo_scheduler.simulation.results.placements import encode, file_of
from topo_scheduler.simulation.slowdown import Assumed, network_of, slowdowns
from topo_scheduler.simulation.virtual.history import History
from topo_scheduler.simulation.virtual.objects import EPOCH, Owners
from topo_scheduler.simulation.virtual.runner import Runner


@dataclass(frozen=True)
class Task:
    """One policy with one seed on one case.

    ``cluster`` and ``workload`` as specs, read where the task runs, or as what was read of them. ``fill`` GPUs asked
    for in the end as a share of those there are; None lets workloads come at their times. ``base`` configuration of
    all policies. ``latency`` seconds from a decision until its pods run. ``assumed`` of the network and of training.
    """

    policy: Policy
    seed: int
    cluster: str | ClusterCase
    workload: str | WorkloadCase
    fill: float | None = None
    base: Configuration = field(default_factory=Configuration)
    latency: float = 0.0
    assumed: Assumed = field(default_factory=Assumed)


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a task: its figures, and its placements as the file of them holds it."""

    run: Run
    placements: bytes


def run(task: Task, progress: Callable[[int, int], None] = lambda _, __: None) -> Done:
    """Carry out a task.

    Args:
        task: which.
        progress: told how many workloads arrived since the last call, and how many there are in all.

    Raises:
        CaseError: the cluster or the workload can't be used.
    """
    began = time.perf_counter()
    history = simulate(task, progress)
    cluster, workload = cases_of(task)
    return Done(_summary(task, cluster, workload, history, time.perf_counter() - began), encode(history))


def simulate(task: Task, progress: Callable[[int, int], None] = lambda _, __: None) -> History:
    """Return what happens in a task; raises as `run`."""
    cluster, workload = cases_of(task)
    if not cluster.nodes:
        raise CaseError(f"--cluster: {cluster.name} has no nodes")
    config = configuration_of(task.policy, cluster.topology, task.base)
    owners = Owners()
    engine = engine_of(task.policy, config, owners.resolve, EPOCH, task.seed)
    levels = config.scheduler if task.policy.knows_topology else task.base.scheduler
    knows = task.policy.knows_topology
    collects = gc.isenabled()
    gc.disable()  # the objects of a run live as long as it: looking for garbage among them costs a third of the time
    try:
        runner = Runner(
            engine, owners, cluster, levels=levels, annotations=dict if knows else understood, latency=task.latency
        )
        asked = _asked(task)
        tell_typical(engine, asked.typical)
        if task.fill is None:
            total = len(workload.arrivals)
            return runner.stream(workload.arrivals, lambda count: progress(count, total))
        arrivals = filled(workload, asked, sum(runner.history.capacity), task.fill, task.seed)
        return runner.fill(arrivals, lambda count: progress(count, len(arrivals)))
    finally:
        if collects:
            gc.enable()


def _summary(task: Task, cluster: ClusterCase, workload: WorkloadCase, history: History, wall: float) -> Run:
    spans = figures.spans(history)
    slow = _slowdown(task, cluster, history)
    last = max((one.arrived for one in history.outcomes), default=0.0)
    placed = {one.job for one in history.stays}
    return Run(
        policy=task.policy.name,
        workload=workload.name,
        cluster=cluster.name,
        seed=task.seed,
        fill=task.fill,
        arrived=len(history.outcomes),
        started=sum(one.started < float("inf") for one in history.outcomes),
        ended=sum(one.ended < float("inf") for one in history.outcomes),
        pods_placed=sum(one.job >= 0 for one in history.stays) if placed else 0,
        evictions=history.evictions,
        gpu_allocated_percent=figures.allocated(history),
        utilisation_percent=figures.utilisation(history, history.end),
        utilisation_while_arriving_percent=figures.utilisation(history, last),
        end_seconds=None if history.order else history.end,
        wait=[] if history.order else figures.waits(history),
        span=spans.pop(figures.ALL),
        span_by_gpus=spans,
        slowdown=slow.pop(figures.ALL, None),
        slowdown_by_gpus=slow,
        slowdown_assumes=figures.assumptions(task.assumed),
        decisions=history.decisions,
        decisions_per_s=round(history.decisions / history.busy, 1) if history.busy else 0.0,
        wall_s=round(wall, 3),
        file=file_of(task.policy.name, task.seed),
        complaints=history.complaints,
    )


def _slowdown(task: Task, cluster: ClusterCase, history: History) -> dict[str, Slowdown]:
    if history.order:
        return {}
    # The fabric is the same for all policies, whatever each is configured with.
    told = task.base.topology.spec.links or (cluster.topology.links if cluster.topology is not None else ())
    network = network_of(cluster.nodes, task.base.scheduler, told, task.assumed)
    return figures.slowdown(history, slowdowns(history, network, task.assumed))


# ---------------------------------------------------------------- what is read once in a process


def cases_of(task: Task) -> tuple[ClusterCase, WorkloadCase]:
    """Return the cases of a task, read if they are specs; raises as `run`."""
    return _cluster(task.cluster), _workload(task)


def _cluster(given: str | ClusterCase) -> ClusterCase:
    return _read_cluster(given) if isinstance(given, str) else given


def _workload(task: Task) -> WorkloadCase:
    if not isinstance(task.workload, str):
        return task.workload
    if isinstance(task.cluster, str):
        return _read_workload(task.workload, task.seed, task.cluster)
    return read_workload(task.workload, task.seed, cluster=task.cluster)


def _asked(task: Task) -> Asked:
    if isinstance(task.workload, str) and isinstance(task.cluster, str):
        return _asked_of_specs(task.workload, task.seed, task.cluster)
    return asked_of(_workload(task))


@lru_cache(maxsize=2)
def _read_cluster(spec: str) -> ClusterCase:
    return read_cluster(spec)


@lru_cache(maxsize=2)
def _read_workload(spec: str, seed: int, cluster: str) -> WorkloadCase:
    return read_workload(spec, seed, cluster=_read_cluster(cluster))


@lru_cache(maxsize=2)
def _asked_of_specs(spec: str, seed: int, cluster: str) -> Asked:
    return asked_of(_read_workload(spec, seed, cluster))
