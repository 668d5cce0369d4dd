"""Topology and waits on real streams: the jobs of Gavel and Muri on the 847 hosts of the Lingjun fabric.

``python -m tests.simulate.streams --data DIR [--stream muri/trace2.csv,…] [--jobs N] [--load 0.95,1.1] [--gangs 1,8]
[--policy topo,greedy,…] [--seeds 42] [--durations told|untold] [--json FILE]``

As they are, the streams load the fabric by a few percent and nothing waits. So arrivals are brought closer together
until they ask for 0.95 and for 1.1 of the GPU-hours there are, with the sizes they have and with eight times the GPUs.
`greedy` is `topo` without reservations: what they bring to large gangs, and what they cost, is told below the table.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any, Final

from topo_scheduler.simulation.policies.names import TOPO, Policy, read_policies, seeds_of
from topo_scheduler.simulation.results.figures import percentile
from topo_scheduler.simulation.results.model import Run
from topo_scheduler.simulation.results.placements import decode
from topo_scheduler.simulation.tasks import Task, run
from topo_scheduler.simulation.virtual.history import History

FABRIC: Final = "lingjun/topo.csv"
STREAMS: Final = ("muri/trace2.csv", "muri/trace1.csv", "gavel/11cb48.trace")
_HEAD: Final = "apiVersion: topology.scheduler/v1alpha1\nkind: TopologySchedulerConfig\nspec:\n"
_PREFERRED: Final = "  topologyConstraints: {enforcement: preferred}\n"
_GREEDY: Final = "  reservation: {enabled: false}\n"
CONFIGURED: Final[Mapping[str, str]] = {
    "greedy": _HEAD + _GREEDY,
    "preferred": _HEAD + _PREFERRED,
    "preferred-greedy": _HEAD + _PREFERRED + _GREEDY,
}
"""Configurations of `topo` that are compared, by the name they have here."""
WITHOUT: Final[Mapping[str, str]] = {"topo": "greedy", "preferred": "preferred-greedy"}
POLICIES: Final = ("topo", *CONFIGURED, "rack", "best-fit", "random")


@dataclass(frozen=True, slots=True)
class Case:
    """One stream under one load. ``gangs`` so many times the GPUs.

    All jobs have one priority: else who waits is given room by preemption, which only some of the policies know.
    """

    stream: str
    load: float
    gangs: int
    jobs: int
    durations: str

    def workload(self, data: Path) -> str:
        """Return what the simulator is asked to read."""
        jobs = f"jobs={self.jobs}," if self.jobs else ""
        told = f"durations={self.durations},priorities=ignored,load={self.load:g}"
        return f"{data / 'gangs' / self.stream}@{jobs}gangs={self.gangs},{told}"


@dataclass(frozen=True, slots=True)
class Row:
    """What one policy came to in a case. ``large`` p50, p95 and p99 of the waits of large jobs, infinite for never."""

    case: Case
    policy: str
    run: Run
    large: tuple[float, float, float]

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        told = self.run.model_dump(exclude={"file", "complaints", "policy", "workload"})
        case = {name: getattr(self.case, name) for name in ("stream", "load", "gangs", "jobs", "durations")}
        waits = dict(zip(("p50", "p95", "p99"), (None if one == inf else one for one in self.large), strict=True))
        return {**case, "policy": self.policy, "wait_of_large": waits, **told}


def policy_of(name: str) -> Policy:
    """Return a policy by its name here."""
    if name in CONFIGURED:
        return Policy(name, TOPO, f"{name}.yaml", CONFIGURED[name])
    (one,) = read_policies(name)
    return one


def waits_of_large(history: History, gpus: int) -> tuple[float, float, float]:
    """Return p50, p95 and p99 of the waits of jobs of at least so many GPUs; those that never ran wait for ever."""
    large = sorted(one.started - one.arrived for one in history.outcomes if one.milli >= 1000 * gpus)
    return tuple(percentile(large, share) or 0.0 for share in (50, 95, 99))  # type: ignore[return-value]


def rows(data: Path, case: Case, policies: Sequence[str], seeds: Sequence[int], large: int) -> Iterator[Row]:
    """Yield what each policy comes to in a case."""
    for name in policies:
        for seed in seeds:
            done = run(Task(policy_of(name), seed, f"{data / FABRIC}@gpus=8", case.workload(data)))
            yield Row(case, name, done.run, waits_of_large(decode(done.placements), large))


HEADER: Final = (
    f"{'policy':<17}{'util %':>8}{'arriving':>9}{'leaves':>8}{'most':>5}{'spines':>7}{'most':>5}{'crossing':>9}"
    f"{'slow':>7}{'p95':>7}{'p50 s':>9}{'p95 s':>9}{'p99 s':>9}{'large p50':>10}{'p95':>9}{'p99':>9}"
    f"{'never':>6}{'s':>6}"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    one, wait = row.run, row.run.wait[0]
    span, slow = one.span, one.slowdown
    assert slow is not None
    return (
        f"{row.policy:<17}{_(one.utilisation_percent):>8}{_(one.utilisation_while_arriving_percent):>9}"
        f"{_(span.leaves_mean):>8}{_(span.leaves_max, 0):>5}{_(span.spines_mean):>7}{_(span.spines_max, 0):>5}"
        f"{span.crossing_leaf:>9}{_(slow.mean, 3):>7}{_(slow.p95, 3):>7}"
        f"{_(wait.p50, 0):>9}{_(wait.p95, 0):>9}{_(wait.p99, 0):>9}"
        f"{_(row.large[0], 0):>10}{_(row.large[1], 0):>9}{_(row.large[2], 0):>9}{wait.never:>6}{one.wall_s:>6.0f}"
    )


def _(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def verdicts(found: Sequence[Row]) -> Iterator[str]:
    """Yield what reservations bring and cost, by policy and seed."""
    by = {(row.policy, row.run.seed): row for row in found}
    for (name, seed), row in by.items():
        greedy = by.get((WITHOUT.get(name, ""), seed))
        if greedy is None:
            continue
        before, now = greedy.run, row.run
        lost = [
            _lost(getattr(before, key), getattr(now, key))
            for key in ("utilisation_while_arriving_percent", "utilisation_percent")
        ]
        ratio = f"{row.large[2] / greedy.large[2]:.2f} of it" if 0 < greedy.large[2] < inf else "-"
        yield (
            f"{name}, seed {seed}: large p99 {row.large[2]:,.0f} s, without reservations {greedy.large[2]:,.0f} s:"
            f" {ratio}; utilisation lost {lost[0]:.2f} % while jobs arrive, {lost[1]:.2f} % to the end"
        )


def _lost(before: float | None, now: float | None) -> float:
    return 100 * (1 - (now or 0.0) / before) if before else 0.0


def main(arguments: list[str]) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulate.streams")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds gangs and lingjun")
    parser.add_argument("--stream", default=",".join(STREAMS))
    parser.add_argument("--jobs", type=int, default=1000, help="so many of each stream; 0 for all")
    parser.add_argument("--load", default="0.95,1.1")
    parser.add_argument("--gangs", default="1,8")
    parser.add_argument("--durations", default="told", choices=("told", "untold"))
    parser.add_argument("--policy", default=",".join(POLICIES))
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--large", type=int, default=64, help="GPUs from which on a job is large")
    parser.add_argument("--json", type=Path)
    told = parser.parse_args(arguments)
    every: list[Row] = []
    for stream in told.stream.split(","):
        for gangs in told.gangs.split(","):
            for load in told.load.split(","):
                case = Case(stream, float(load), int(gangs), told.jobs, told.durations)
                jobs = f"{told.jobs or 'all'} jobs"
                _say(f"\n{stream}, {jobs}, GPUs x{gangs}, load {load}, durations {told.durations}\n{HEADER}")
                found = []
                for row in rows(told.data, case, told.policy.split(","), seeds_of(told.seeds), told.large):
                    found.append(row)
                    _say(line(row))
                every += found
                for one in verdicts(found):
                    _say(one)
    if told.json is not None:
        told.json.write_text(json.dumps([row.as_json() for row in every], indent=1) + "\n", encoding="utf-8")
    return 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
