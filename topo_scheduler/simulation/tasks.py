"""Run one task: one policy, one seed, one case. Tasks and results can be sent between processes."""

import gc
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from topo_scheduler.api.config import Configuration
from topo_scheduler.simulation.cases.model import CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.reading import check_sizes, read_cluster, read_workload
from topo_scheduler.simulation.cases.transforms import fill
from topo_scheduler.simulation.cases.what_if import what_if
from topo_scheduler.simulation.fill import CaseDemand, demand_of
from topo_scheduler.simulation.policies.names import (
    SimulatedPolicy,
    annotations_without_topology,
    configuration_of,
    engine_of,
    group_without_topology,
    set_typical_pods,
)
from topo_scheduler.simulation.results import figures
from topo_scheduler.simulation.results.model import Assumptions, Run, Slowdown
from topo_scheduler.simulation.results.placements import encode, file_of
from topo_scheduler.simulation.slowdown import Assumed, network_of, slowdowns
from topo_scheduler.simulation.virtual.history import RunHistory
from topo_scheduler.simulation.virtual.objects import EPOCH_SECONDS, Owners
from topo_scheduler.simulation.virtual.runner import VirtualRunner


@dataclass(frozen=True)
class Task:
    """One policy with one seed on one case.

    ``cluster`` and ``workload`` are specs, read where the task runs, or cases. ``fill`` is the target of the requested
    GPUs as a share of the capacity; None runs workloads at their arrival times. ``base`` is the configuration common to
    all policies. ``latency`` is in seconds from a decision until its pods run. ``assumed`` are assumptions on network
    and training. ``changes`` are applied to the cases, see `simulation.cases.what_if`; ``what_if`` is their name in the
    result, empty for unchanged cases.
    """

    policy: SimulatedPolicy
    seed: int
    cluster: str | ClusterCase
    workload: str | WorkloadCase
    fill: float | None = None
    base: Configuration = field(default_factory=Configuration)
    latency: float = 0.0
    assumed: Assumed = field(default_factory=Assumed)
    changes: tuple[str, ...] = ()
    what_if: str = ""


@dataclass(frozen=True, slots=True)
class Done:
    """The result of a task: its figures, and the content of its file of placements."""

    run: Run
    placements: bytes


def run(task: Task, progress: Callable[[int, int], None] = lambda _, __: None) -> Done:
    """Run a task.

    Args:
        task: the task.
        progress: called with the number of workloads that arrived since the last call, and the total number.

    Raises:
        CaseError: the cluster or the workload can't be used.
    """
    began = time.perf_counter()
    history = simulate(task, progress)
    cluster, workload = cases_of(task)
    return Done(_summary(task, cluster, workload, history, time.perf_counter() - began), encode(history))


def check_files(tasks: Iterable[Task]) -> None:
    """Check that no two tasks would be written to the same file.

    Raises:
        CaseError: names both tasks.
    """
    task_by_file: dict[str, Task] = {}
    for task in tasks:
        other = task_by_file.setdefault(file_of(task.policy.name, task.seed, task.what_if), task)
        if other is not task:
            names = [
                " after ".join(filter(None, (candidate.policy.name, candidate.what_if))) for candidate in (other, task)
            ]
            runs = names[0] if names[0] == names[1] else f"{names[0]} and {names[1]}"
            raise CaseError(f"{runs}: two runs would be written to one file; keep one, or rename its file")


def simulate(task: Task, progress: Callable[[int, int], None] = lambda _, __: None) -> RunHistory:
    """Simulate a task and return its history; raises as `run`."""
    cluster, workload = cases_of(task)
    if not cluster.nodes:
        raise CaseError(f"--cluster: {cluster.name} has no nodes")
    config = configuration_of(task.policy, cluster.topology, task.base)
    knows_topology = task.policy.knows_topology
    visible_annotations = dict if knows_topology else annotations_without_topology
    owners = Owners(visible_annotations)
    engine = engine_of(task.policy, config, owners.resolve, EPOCH_SECONDS, task.seed, task.base)
    levels = config.scheduler if knows_topology else task.base.scheduler
    gc_was_enabled = gc.isenabled()
    gc.disable()  # the objects live until the end of the run; garbage collection would cost a third of the time
    try:
        group_seen = (lambda group: group) if knows_topology else group_without_topology
        runner = VirtualRunner(
            engine,
            owners,
            cluster,
            levels=levels,
            annotations=visible_annotations,
            group_seen=group_seen,
            latency=task.latency,
        )
        demand = _demand(task)
        set_typical_pods(engine, demand.typical)
        if task.fill is None:
            total = len(workload.arrivals)
            return runner.stream(workload.arrivals, lambda count: progress(count, total))
        arrivals = fill(workload, sum(runner.history.capacity), task.fill, task.seed, demand.milli).arrivals
        return runner.fill(arrivals, lambda count: progress(count, len(arrivals)))
    finally:
        if gc_was_enabled:
            gc.enable()


def _summary(task: Task, cluster: ClusterCase, workload: WorkloadCase, history: RunHistory, wall: float) -> Run:
    spans = figures.spans(history)
    slow = _slowdown(task, cluster, history)
    last = max((outcome.arrived for outcome in history.outcomes), default=0.0)
    placed = {stay.job for stay in history.stays}
    return Run(
        policy=task.policy.name,
        workload=workload.name,
        cluster=cluster.name,
        seed=task.seed,
        fill=task.fill,
        what_if=task.what_if or None,
        arrived=len(history.outcomes),
        started=sum(outcome.started < float("inf") for outcome in history.outcomes),
        ended=sum(outcome.ended < float("inf") for outcome in history.outcomes),
        pods_placed=sum(stay.job >= 0 for stay in history.stays) if placed else 0,
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
        slowdown_assumes=Assumptions(
            communication=task.assumed.communication,
            network_gbits=task.assumed.network / 1000,
            oversubscription=task.assumed.oversubscription,
        ),
        decisions=history.decisions,
        decisions_per_s=round(history.decisions / history.busy, 1) if history.busy else 0.0,
        wall_s=round(wall, 3),
        file=file_of(task.policy.name, task.seed, task.what_if),
        warnings=history.complaints,
        never_ran_reasons=[] if history.order else figures.reasons(history),
    )


def _slowdown(task: Task, cluster: ClusterCase, history: RunHistory) -> dict[str, Slowdown]:
    if history.order:
        return {}
    # The links are the same for all policies, whatever their own configuration.
    links = task.base.topology.spec.links or (cluster.topology.links if cluster.topology is not None else ())
    network = network_of(cluster.nodes, task.base.scheduler, links, task.assumed)
    return figures.slowdown(history, slowdowns(history, network, task.assumed))


# ---------------------------------------------------------------- cached input


def cases_of(task: Task) -> tuple[ClusterCase, WorkloadCase]:
    """Return the cases of a task, read if they are specs, with its changes applied; raises as `run`."""
    if isinstance(task.cluster, str) and isinstance(task.workload, str):
        return _cases_of_specs(task.cluster, task.workload, task.seed, task.changes)
    cluster = _read_cluster(task.cluster) if isinstance(task.cluster, str) else task.cluster
    if isinstance(task.workload, str):
        return _changed(task.changes, cluster, read_workload(task.workload, task.seed, cluster=cluster))
    return _changed(task.changes, cluster, task.workload)


def _demand(task: Task) -> CaseDemand:
    if isinstance(task.workload, str) and isinstance(task.cluster, str):
        return _demand_of_specs(task.cluster, task.workload, task.seed, task.changes)
    return demand_of(cases_of(task)[1])


def _changed(
    changes: tuple[str, ...], cluster: ClusterCase, workload: WorkloadCase
) -> tuple[ClusterCase, WorkloadCase]:
    for change in changes:
        try:
            cluster, workload = what_if(change, cluster, workload)
            check_sizes(workload, cluster)
        except CaseError as error:
            raise CaseError(f"--what-if: {error}") from error
    return cluster, workload


_read_cluster = lru_cache(maxsize=2)(read_cluster)


@lru_cache(maxsize=2)
def _read_workload(spec: str, seed: int, cluster: str) -> WorkloadCase:
    return read_workload(spec, seed, cluster=_read_cluster(cluster))


@lru_cache(maxsize=2)
def _cases_of_specs(
    cluster: str, workload: str, seed: int, changes: tuple[str, ...]
) -> tuple[ClusterCase, WorkloadCase]:
    return _changed(changes, _read_cluster(cluster), _read_workload(workload, seed, cluster))


@lru_cache(maxsize=2)
def _demand_of_specs(cluster: str, workload: str, seed: int, changes: tuple[str, ...]) -> CaseDemand:
    return demand_of(_cases_of_specs(cluster, workload, seed, changes)[1])
