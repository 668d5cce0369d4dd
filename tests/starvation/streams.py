"""Jobs of the Gavel and Muri traces, and the hosts of the Lingjun fabric.

Gavel tells steps, not seconds. One of its streams is the same tenant's as Muri's first trace: where arrival and GPUs
match, the seconds of Muri over the steps of Gavel are what a step of that model takes, and these hold for all streams.
"""

import csv
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from tests.helpers import make_node
from topo_scheduler.api.objects import Node

GPUS: Final = 8
"""Of each host."""
COMMON: Final = ("7f04ca.trace", "trace1.csv")
"""The stream that both have."""


@dataclass(frozen=True, slots=True)
class Job:
    """A line of a trace. ``at`` when it comes and ``seconds`` how long it runs, whole seconds."""

    gpus: int
    at: float
    seconds: float
    priority: int = 0
    model: str = ""
    """What it trains."""

    @property
    def members(self) -> int:
        """Pods: one, or as many whole hosts."""
        return max(1, self.gpus // GPUS)

    @property
    def large(self) -> bool:
        """Whether nodes may be held for it."""
        return self.gpus > 1


def names(data: Path) -> list[str]:
    """Return the names of all streams there are, e.g. ``gavel/0e4a51``."""
    gangs = data / "gangs"
    return [
        f"{path.parent.name}/{path.stem}" for path in sorted((*gangs.glob("gavel/*.trace"), *gangs.glob("muri/*.csv")))
    ]


def read(data: Path, name: str) -> list[Job]:
    """Return the jobs of a stream in order of arrival, by its own clock."""
    family, _, stem = name.partition("/")
    if family == "muri":
        jobs = _muri(data / "gangs" / "muri" / f"{stem}.csv")
    else:
        pace = _seconds_per_step(data)
        jobs = [
            Job(gpus, at, float(max(1, round(steps * pace[model]))), model=model)
            for model, steps, at, gpus in _gavel(data / "gangs" / "gavel" / f"{stem}.trace")
        ]
    return sorted(jobs, key=lambda job: job.at)


def loaded(jobs: Sequence[Job], gpus: int, load: float, times: int = 1) -> list[Job]:
    """Return jobs of so many times the GPUs, which come so fast that they ask for ``load`` times what there is.

    Offered load is the GPU-seconds of all jobs over those that so many GPUs have until the last comes.
    """
    work = sum(times * job.gpus * job.seconds for job in jobs)
    pace = work / (load * gpus) / max(job.at for job in jobs)
    return [replace(job, gpus=times * job.gpus, at=job.at * pace) for job in jobs]


def hosts(data: Path, count: int | None = None) -> list[Node]:
    """Return the first hosts of the fabric, leaf by leaf; names of leaves repeat, so that their path counts."""
    leaves = defaultdict(list)
    with (data / "lingjun" / "topo.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            leaves[f"{row['DSW']}/{row['PSW']}/{row['ASW']}"].append(row["ip"][:12])
    nodes = [make_node(name, path, gpus=GPUS) for path, some in sorted(leaves.items()) for name in some]
    return nodes[:count]


def _muri(path: Path) -> list[Job]:
    with path.open(encoding="utf-8", newline="") as file:
        return [
            Job(
                int(row["num_gpu"]),
                int(row["submit_time"]) / 1000,
                float(max(1, round(int(row["duration"]) / 1000))),
                int(row["priority"]),
                f"{row['model_name']}-{row['batch_size']}",
            )
            for row in csv.DictReader(file)
        ]


def _gavel(path: Path) -> list[tuple[str, int, float, int]]:
    """Return model, steps, arrival and GPUs of each job."""
    lines = (line.split("\t") for line in path.read_text(encoding="utf-8").splitlines())
    return [(line[0], int(line[4]), float(line[-2]), int(line[-1])) for line in lines]


def _seconds_per_step(data: Path) -> dict[str, float]:
    steps, seconds = COMMON
    runs = defaultdict(list)
    for job in _muri(data / "gangs" / "muri" / seconds):
        runs[int(job.at), job.gpus].append(job.seconds)
    found = defaultdict(list)
    for model, count, at, gpus in _gavel(data / "gangs" / "gavel" / steps):
        if len(same := runs[int(at), gpus]) == 1:
            found[model].append(same[0] / count)
    return {model: median(some) for model, some in found.items()}
