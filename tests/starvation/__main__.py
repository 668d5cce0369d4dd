"""Prove on every stream that waiting ends: ``python -m tests.starvation --data DIR``."""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Final, get_args

from tests.docs.results import keep
from tests.starvation.proof import Outcome, Proof, Told
from tests.starvation.streams import GPUS, hosts, names, read

FILLS: Final = 2
"""How many times the GPUs of the whole fabric are asked for in all."""


@dataclass(frozen=True, slots=True)
class Case:
    """One run. ``times`` the GPUs of the trace; ``job_limit`` jobs, the first of the stream, 0 for all.

    ``part``: on so few hosts that they must queue. Elsewhere they come one time after the other, until all together
    have asked for so many times the GPUs there are.
    """

    stream: str
    load: float
    times: int
    estimates: Told
    part: bool = False
    priorities: bool = False
    job_limit: int = 0

    def __str__(self) -> str:
        where = "part" if self.part else "whole"
        ranks = ", with priorities" if self.priorities else ""
        return f"{self.stream:20} x{self.times} load {self.load:4} on the {where:5} told {self.estimates:5}{ranks}"


def prove(data: Path, case: Case) -> tuple[Case, Outcome, int, float]:
    """Run a case; return it, what came of it, on how many hosts, and the seconds it took.

    Where no job waits on the whole fabric, it is run on a part.
    """
    began = time.perf_counter()
    options = f"gangs={case.times}" + (f",jobs={case.job_limit}" if case.job_limit else "")
    nodes, jobs = hosts(data), read(data, case.stream, options=options)
    asked, largest = (of(job.gpus for job in jobs) // GPUS for of in (sum, max))
    if case.part:
        # An eighth of what all jobs ask for together, and room for three of the largest.
        nodes = nodes[: min(len(nodes), max(asked // 8, 3 * largest, 16))]
    elif FILLS * len(nodes) > asked:
        options += f",repeat={-(-FILLS * len(nodes) // asked)}"
    jobs = read(data, case.stream, nodes, f"{options},load={case.load}")
    outcome = Proof(nodes, jobs, case.estimates, priorities=case.priorities).run()
    if not outcome.waited and not case.part:
        return prove(data, replace(case, part=True))
    return case, outcome, len(nodes), time.perf_counter() - began


def cases(
    streams: list[str], loads: list[float], sizes: list[int], estimates: list[Told], job_limit: int, whole: bool
) -> Iterator[Case]:
    """Return every stream at all loads and sizes, where it queues.

    As they are, the jobs of a stream ask for fewer GPUs in all than the fabric has, however fast they come: they come
    to a part of it, and with ``whole`` again and again to all of it.
    """
    for load, times, says, stream in product(loads, sizes, estimates, streams):
        part = times == 1
        yield Case(stream, load, times, says, part, job_limit=job_limit)
        if stream.startswith("muri/") and says == "exact":
            yield Case(stream, load, times, says, part, priorities=True, job_limit=job_limit)
        if part and says == "exact" and whole:
            yield Case(stream, load, times, says, job_limit=job_limit)


TOLD: Final = {"exact": "correct", "wrong": "wrong", "learned": "learned", "not": "none"}
Done = tuple[Case, Outcome, int, float]


def figures(ended: list[Done]) -> dict[str, Any]:
    """Return what is kept of all cases: a row for each kind of run lengths and each size."""
    rows = []
    for estimates, times in product(TOLD, sorted({case.times for case, *_ in ended})):
        group = [entry for entry in ended if entry[0].estimates == estimates and entry[0].times == times]
        if group:
            outcomes = [outcome for _, outcome, _, _ in group]
            limit = group[0][0].job_limit
            extent = f"{limit} jobs" if limit else "whole streams"
            rows.append(
                {
                    "told": f"{TOLD[estimates]}, {extent}",
                    "gpus": "as they are" if times == 1 else f"times {times}",
                    "nodes": _nodes([count for _, _, count, _ in group], part=times == 1),
                    "cases": len(group),
                    "jobs": sum(outcome.jobs for outcome in outcomes),
                    "waited": sum(outcome.waited for outcome in outcomes),
                    "most_at_once": max(outcome.most_waiting for outcome in outcomes),
                    "longest_h": round(max(outcome.longest_wait for outcome in outcomes) / 3600),
                }
            )
    return {"groups": rows, "pending_at_least": min(outcome.waited for _, outcome, _, _ in ended)}


def _nodes(counts: list[int], *, part: bool) -> str:
    low, high = min(counts), max(counts)
    if part:
        return f"{low} to {high} nodes"
    return f"{high} nodes" if low == high else f"{high} nodes, or fewer"


def hours(seconds: float) -> str:
    """Return a time in words."""
    return f"{seconds / 3600:.1f} h"


def main() -> int:
    """Run all cases; return 1 if anything did not hold, or proves nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("TOPO_DATA", "../shared/data")))
    parser.add_argument("--stream", action="append", help="e.g. gavel/0e4a51; all by default")
    parser.add_argument("--load", action="append", type=float)
    parser.add_argument("--times", action="append", type=int, help="GPUs of each job, times this")
    parser.add_argument("--told", action="append", choices=get_args(Told), help="what jobs say of how long they run")
    parser.add_argument("--jobs", type=int, default=250, help="the first of each stream; 0 for all, which takes hours")
    parser.add_argument("--whole", action="store_true", help="let jobs as they are come to the whole fabric too")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="keep the result in docs/reference/results")
    given = parser.parse_args()
    chosen = list(
        cases(
            given.stream or names(given.data),
            given.load or [0.95, 1.1],
            given.times or [1, 8],
            given.told or list(get_args(Told)),
            given.jobs,
            given.whole,
        )
    )
    began, failed, empty, ended = time.perf_counter(), 0, 0, list[Done]()
    with ProcessPoolExecutor(given.workers) as pool:
        running = [pool.submit(prove, given.data, case) for case in chosen]
        for done in as_completed(running):
            ended.append(done.result())
            case, outcome, count, seconds = ended[-1]
            failed += bool(outcome.wrong)
            empty += not outcome.waited
            print(
                f"{case}: {count:3} hosts, {outcome.jobs} jobs, {outcome.waited} waited,"
                f" {outcome.most_waiting} at once,"
                f" {hours(outcome.wait / max(1, outcome.waited))} on average, {hours(outcome.longest_wait)} at most;"
                f" {outcome.held} held (moved {outcome.moves} times at most), {100 * outcome.utilisation:.0f} % used;"
                f" headed {outcome.slowest / outcome.longest:.2f} longest runs, promise + {outcome.late:.0f} s;"
                f" {seconds:.1f} s",
                flush=True,
            )
            if not outcome.waited:
                print("  PROVES NOTHING: no job waited", flush=True)
            for wrong in outcome.wrong[:5]:
                print(f"  WRONG: {wrong}", flush=True)
    print(f"{len(chosen)} cases, {failed} failed, {empty} prove nothing, {time.perf_counter() - began:.0f} s")
    if given.write:
        result = f"{failed} cases failed" if failed else "every check held"
        keep("starvation" if given.jobs else "starvation_whole", result, figures(ended))
    return 1 if failed or empty else 0


if __name__ == "__main__":
    sys.exit(main())
