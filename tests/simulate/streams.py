"""Topology and waits on real streams: the jobs of Gavel and Muri on the Lingjun fabric, or on a part that they fill.

``python -m tests.simulate.streams --data DIR [--stream muri/trace2.csv,…] [--jobs N] [--repeat N] [--leaves N]
[--warm-up SHARE] [--load 0.95,1.1] [--gangs 1,8] [--policy topo,greedy,…] [--seeds 42] [--durations annotated|unknown]
[--large-first] [--json FILE]``

As they are, the streams load the fabric by a few percent and nothing waits. So arrivals are brought closer together:
the jobs then ask for 0.95 and for 1.1 of all GPU-hours, with the sizes they have and with eight times the GPUs. That
alone does not load it either: runs are long, so most of what the first 1,000 jobs ask for is done after the last of
them has come. So they come to whole leaves of the fabric, as few as keep full for many times a mean run. Waits and
utilisation are those of the jobs that come after it has filled up.

`greedy` is `topo` without reservations, `four` with nodes reserved for four at a time. Below the table stand what
reservations bring to large gangs, and what they cost. So does the time for which the same jobs would wait on a pool of
as many GPUs, where there is neither fabric nor node.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from tests.simulate.pool import OLDEST, ORDERS, PoolJob, waits
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.policies.names import TOPO, SimulatedPolicy, read_policies, seeds_of
from topo_scheduler.simulation.results import figures
from topo_scheduler.simulation.results.figures import percentile
from topo_scheduler.simulation.results.model import Run, Wait
from topo_scheduler.simulation.results.placements import decode
from topo_scheduler.simulation.tasks import Task, run
from topo_scheduler.simulation.virtual.history import RunHistory, WorkloadOutcome

FABRIC: Final = "lingjun/topo.csv"
GPUS: Final = 8
"""Of each host."""
LEAF: Final = 8
"""Hosts of a leaf that lacks none. A gang of 64 GPUs must have such a one where any is there."""
PARTS: Final[Mapping[int, tuple[int, int]]] = {1: (4, 2000), 8: (16, 1000)}
"""Whole leaves, and how many jobs of a stream keep them full, by how many times the GPUs the jobs ask for."""
STREAMS: Final = ("muri/trace2.csv", "muri/trace1.csv", "gavel/11cb48.trace")
_HEAD: Final = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
_PREFERRED: Final = "  topologyConstraints: {enforcement: preferred}\n"
_GREEDY: Final = "  reservation: {enabled: false}\n"
CONFIGURED: Final[Mapping[str, str]] = {
    "greedy": _HEAD + _GREEDY,
    "four": _HEAD + "  reservation: {gangs: 4}\n",
    "preferred": _HEAD + _PREFERRED,
    "preferred-greedy": _HEAD + _PREFERRED + _GREEDY,
}
"""Configurations of `topo` that are compared, by the name they have here."""
WITHOUT: Final[Mapping[str, str]] = {"topo": "greedy", "four": "greedy", "preferred": "preferred-greedy"}
POLICIES: Final = ("topo", *CONFIGURED, "rack", "best-fit", "random")


@dataclass(frozen=True, slots=True)
class Case:
    """One stream under one load. ``gangs`` so many times the GPUs; ``repeat`` times, one after the other.

    ``leaves``: so many whole ones of the fabric, the first in its order; 0 for all of it, leaves that lack hosts too.
    ``warm_up``: the share of the time until the last arrival that is left out of all figures.

    All jobs have one priority: else pending jobs get room by preemption, which only some of the policies know. With
    ``large_first`` large ones have a higher one, and don't preempt.
    """

    stream: str
    load: float
    gangs: int
    jobs: int
    durations: str = "annotated"
    repeat: int = 1
    leaves: int = 0
    warm_up: float = 0.3
    large_first: bool = False

    @property
    def large(self) -> int:
        """GPUs from which on a job is large: two hosts of a stream as it is, a whole leaf of one with larger jobs."""
        return max(2 * GPUS, LEAF * self.gangs)

    def workload(self, data: Path) -> str:
        """Return what the simulator is asked to read."""
        jobs = f"jobs={self.jobs}," if self.jobs else ""
        again = f"repeat={self.repeat}," if self.repeat > 1 else ""
        options = f"durations={self.durations},priorities=ignored,load={self.load:g}"
        return f"{data / 'gangs' / self.stream}@{jobs}gangs={self.gangs},{again}{options}"

    def read(self, data: Path) -> tuple[ClusterCase, WorkloadCase]:
        """Return what it consists of."""
        cluster = fabric(data, self.leaves)
        workload = read_workload(self.workload(data), cluster=cluster)
        if self.large_first:
            workload = replace(workload, arrivals=tuple(map(self._first, workload.arrivals)))
        return cluster, workload

    def _first(self, job: Arrival) -> Arrival:
        if arrival_milli(job) < WHOLE_GPU * self.large:
            return job
        higher = {"priority": 1, "preemption_policy": "Never"}
        pods = (structs.replace(pod, spec=structs.replace(pod.spec, **higher)) for pod in job.pods)
        return replace(job, pods=tuple(pods))


@cache
def fabric(data: Path, leaves: int) -> ClusterCase:
    """Return the hosts of the fabric, or of so many whole leaves, in their order."""
    cluster = read_cluster(f"{data / FABRIC}@gpus={GPUS}")
    if not leaves:
        return cluster
    hosts: dict[tuple[str, ...], list[Any]] = {}
    for node in cluster.nodes:
        path = tuple(node.metadata.labels[f"topology.scheduler/{level}"] for level in ("core", "spine", "leaf"))
        hosts.setdefault(path, []).append(node)
    whole = [leaf_hosts for leaf_hosts in hosts.values() if len(leaf_hosts) == LEAF]
    if len(whole) < leaves:
        raise SystemExit(f"--leaves: the fabric has {len(whole)} leaves of {LEAF} hosts, not {leaves}")
    nodes = tuple(node for leaf_hosts in whole[:leaves] for node in leaf_hosts)
    return replace(cluster, name=f"{leaves} leaves of {cluster.name}", nodes=nodes)


@dataclass(frozen=True, slots=True)
class Steady:
    """What came of the jobs that arrived after the warm-up.

    ``utilisation`` in percent, until the last arrival. ``wait`` by size, of all first. ``large`` p50, p95 and p99 of
    the waits of large jobs in seconds, infinite for never; ``share`` of the GPU-hours that they ask for.
    """

    utilisation: float
    wait: tuple[Wait, ...]
    large: tuple[float, float, float]
    share: float


def steady(history: RunHistory, large: int, warm_up: float) -> Steady:
    """Return what came of jobs after the warm-up; ``large`` GPUs from which on they are large."""
    last = max(outcome.arrived for outcome in history.outcomes)
    kept = [outcome for outcome in history.outcomes if outcome.arrived >= warm_up * last]
    asked = [outcome.milli * (outcome.ended - outcome.started) for outcome in kept if outcome.ended < inf]
    of_large = [
        outcome.milli * (outcome.ended - outcome.started)
        for outcome in kept
        if outcome.ended < inf and outcome.milli >= WHOLE_GPU * large
    ]
    return Steady(
        figures.utilisation(history, last, warm_up * last) or 0.0,
        tuple(figures.waits(replace(history, outcomes=kept))),
        waits_of_large(kept, large),
        sum(of_large) / sum(asked) if asked else 0.0,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy came to in a case."""

    case: Case
    policy: str
    run: Run
    steady: Steady

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        summary = self.run.model_dump(exclude={"file", "warnings", "policy", "workload"})
        waits = {
            name: None if seconds == inf else seconds
            for name, seconds in zip(("p50", "p95", "p99"), self.steady.large, strict=True)
        }
        after = {
            "utilisation_percent": self.steady.utilisation,
            "large_from_gpus": self.case.large,
            "large_share_of_gpu_hours": round(self.steady.share, 4),
            "wait_of_large": waits,
            "wait": [wait.model_dump() for wait in self.steady.wait],
        }
        return {**asdict(self.case), "policy": self.policy, "after_warm_up": after, **summary}


def policy_of(name: str) -> SimulatedPolicy:
    """Return a policy by its name here."""
    if name in CONFIGURED:
        return SimulatedPolicy(name, TOPO, f"{name}.yaml", CONFIGURED[name])
    (parsed_policy,) = read_policies(name)
    return parsed_policy


def waits_of_large(outcomes: Sequence[WorkloadOutcome], gpus: int) -> tuple[float, float, float]:
    """Return p50, p95 and p99 of the waits of jobs of at least so many GPUs; those that never ran wait for ever."""
    large = sorted(outcome.started - outcome.arrived for outcome in outcomes if outcome.milli >= WHOLE_GPU * gpus)
    p50, p95, p99 = (percentile(large, share) or 0.0 for share in (50, 95, 99))
    return p50, p95, p99


def rows(data: Path, case: Case, policies: Sequence[str], seeds: Sequence[int]) -> Iterator[Row]:
    """Yield what each policy comes to in a case."""
    cluster, workload = case.read(data)
    for name in policies:
        for seed in seeds:
            done = run(Task(policy_of(name), seed, cluster, workload))
            yield Row(case, name, done.run, steady(decode(done.placements), case.large, case.warm_up))


HEADER: Final = (
    f"{'policy':<17}{'util %':>7}{'leaves':>8}{'most':>5}{'spines':>7}{'most':>5}{'crossing':>9}{'slow':>7}{'p95':>7}"
    f"{'p50 h':>8}{'p95 h':>8}{'p99 h':>8}{'large p50':>10}{'p95':>8}{'p99':>8}{'never':>6}{'s':>6}"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    summary, wait, large = row.run, row.steady.wait[0], row.steady.large
    span, slow = summary.span, summary.slowdown
    assert slow is not None
    return (
        f"{row.policy:<17}{row.steady.utilisation:>7.2f}"
        f"{_(span.leaves_mean):>8}{_(span.leaves_max, 0):>5}{_(span.spines_mean):>7}{_(span.spines_max, 0):>5}"
        f"{span.crossing_leaf:>9}{_(slow.mean, 3):>7}{_(slow.p95, 3):>7}"
        f"{_hours(wait.p50):>8}{_hours(wait.p95):>8}{_hours(wait.p99):>8}"
        f"{_hours(large[0]):>10}{_hours(large[1]):>8}{_hours(large[2]):>8}{wait.never_ran:>6}{summary.wall_s:>6.0f}"
    )


def by_size(results: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of a table of waits by size."""
    yield f"{'GPUs':<9}{'jobs':>6}  wait p50, p95 and p99 in hours: " + ", ".join(row.policy for row in results)
    for number, size_class in enumerate(results[0].steady.wait if results else ()):
        columns = "".join(
            f"  |{_hours(wait.p50):>7}{_hours(wait.p95):>8}{_hours(wait.p99):>8}"
            for row in results
            for wait in row.steady.wait[number : number + 1]
        )
        yield f"{size_class.gpus:<9}{size_class.workloads:>6}{columns}"


def _(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _hours(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds / 3600:.1f}"


def verdicts(results: Sequence[Row]) -> Iterator[str]:
    """Yield what reservations bring and cost, by policy and seed."""
    by = {(row.policy, row.run.seed): row for row in results}
    for (name, seed), row in by.items():
        greedy = by.get((WITHOUT.get(name, ""), seed))
        if greedy is None:
            continue
        before, now = greedy.steady, row.steady
        ratio = f"{now.large[2] / before.large[2]:.2f} of it" if 0 < before.large[2] < inf else "-"
        lost = 100 * (1 - now.utilisation / before.utilisation) if before.utilisation else 0.0
        yield (
            f"{name}, seed {seed}: from {row.case.large} GPUs on ({100 * now.share:.0f} % of GPU-hours) wait p99"
            f" {_hours(now.large[2])} h, without reservations {_hours(before.large[2])} h: {ratio};"
            f" utilisation lost {lost:.2f} %"
        )


def on_a_pool(case: Case, cluster: ClusterCase, workload: WorkloadCase) -> Iterator[str]:
    """Yield how long the jobs would wait on a pool of as many GPUs, by their order; and large ones by themselves."""
    milli = capacity_milli(cluster.nodes)
    jobs = [PoolJob(arrival.at, arrival.seconds or 0.0, arrival_milli(arrival)) for arrival in workload.arrivals]
    least = WHOLE_GPU * case.large
    large = [job for job in jobs if job.milli >= least]
    since = case.warm_up * max(job.arrived for job in jobs)
    for name, order in ORDERS.items():
        job_waits = list(zip(jobs, waits(jobs, milli, order), strict=True))
        of_large = _p99(wait for job, wait in job_waits if job.milli >= least and job.arrived >= since)
        of_all = _p99(wait for job, wait in job_waits if job.arrived >= since)
        yield f"a pool of as many GPUs, {name}: wait p99 of large {_hours(of_large)} h, of all {_hours(of_all)} h"
    alone = zip(large, waits(large, milli, ORDERS[OLDEST]), strict=True)
    yield f"a pool without any but large: {_hours(_p99(wait for job, wait in alone if job.arrived >= since))} h"


def _p99(seconds: Iterable[float]) -> float | None:
    return percentile(sorted(seconds), 99)


def cases(options: argparse.Namespace) -> Iterator[Case]:
    """Return every stream, at all sizes and loads."""
    for stream in options.stream.split(","):
        for gangs in map(int, options.gangs.split(",")):
            leaves, jobs = PARTS.get(gangs, (2 * gangs, 1000))
            leaves = leaves if options.leaves is None else options.leaves
            jobs = jobs if options.jobs is None else options.jobs
            for load in map(float, options.load.split(",")):
                yield Case(
                    stream,
                    load,
                    gangs,
                    jobs,
                    options.durations,
                    options.repeat,
                    leaves,
                    options.warm_up,
                    options.large_first,
                )


def main(arguments: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.streams")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds gangs and lingjun")
    parser.add_argument("--stream", default=",".join(STREAMS))
    parser.add_argument("--jobs", type=int, help="the first of each stream; 0 for all; 2000, with --gangs 8 1000")
    parser.add_argument("--repeat", type=int, default=1, help="let them come so many times, one after the other")
    parser.add_argument("--leaves", type=int, help="whole leaves of the fabric; 0 for all of it; 4, with --gangs 8 16")
    parser.add_argument(
        "--warm-up", type=float, default=0.3, help="share of the arrivals' time that is left out of all figures"
    )
    parser.add_argument("--load", default="0.95,1.1")
    parser.add_argument("--gangs", default="1,8")
    parser.add_argument("--durations", default="annotated", choices=("annotated", "unknown"))
    parser.add_argument("--large-first", action="store_true", help="give large jobs the higher priority")
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    every: list[Row] = []
    for case in cases(options):
        cluster, workload = case.read(options.data)
        _say(f"\n{_title(case, len(cluster.nodes), workload)}\n{HEADER}")
        results = []
        for row in rows(options.data, case, options.policy.split(","), seeds_of(options.seeds)):
            results.append(row)
            _say(line(row))
        every += results
        for text in (*by_size(results), *verdicts(results), *on_a_pool(case, cluster, workload)):
            _say(text)
    if options.json is not None:
        options.json.write_text(json.dumps([row.as_json() for row in every], indent=1) + "\n", encoding="utf-8")
    return 0


def _title(case: Case, hosts: int, workload: WorkloadCase) -> str:
    hours = max(arrival.at for arrival in workload.arrivals) / 3600
    first = "large first, " if case.large_first else ""
    return (
        f"{case.stream}, {len(workload.arrivals)} jobs within {hours:.0f} h, GPUs x{case.gangs}, load {case.load:g},"
        f" {first}durations {case.durations}, on {hosts} hosts; those that come from {case.warm_up * hours:.0f} h on"
    )


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
