"""Jobs of the Gavel and Muri traces as numbers, and the hosts of the Lingjun fabric, as the simulator reads them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.amounts import arrival_milli
from topo_scheduler.simulation.cases.model import ClusterCase
from topo_scheduler.simulation.cases.object_factory import shape
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload

GPUS: Final = 8
"""Of each host."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job of a trace. ``at`` when it comes and ``seconds`` how long it runs, whole seconds."""

    gpus: int
    at: float
    seconds: float
    priority: int = 0

    @property
    def members(self) -> int:
        """How many pods it has."""
        return shape(self.gpus, GPUS)[0]

    @property
    def each(self) -> int:
        """GPUs of each pod."""
        return shape(self.gpus, GPUS)[1]


def names(data: Path) -> list[str]:
    """Return the names of all streams there are, e.g. ``gavel/0e4a51``."""
    gangs = data / "gangs"
    return [
        f"{path.parent.name}/{path.stem}" for path in sorted((*gangs.glob("gavel/*.trace"), *gangs.glob("muri/*.csv")))
    ]


def read(data: Path, name: str, nodes: Sequence[Node] = (), options: str = "") -> list[Job]:
    """Return the jobs of a stream in order of arrival.

    Args:
        data: where the data sets are.
        name: of the stream.
        nodes: of which a load is.
        options: of `read_workload`, such as ``jobs=250,gangs=8,load=1.1``.
    """
    family, _, stem = name.partition("/")
    path = data / "gangs" / family / f"{stem}{'.csv' if family == 'muri' else '.trace'}"
    cluster = ClusterCase("part", tuple(nodes)) if nodes else None
    workload = read_workload(f"{path}@{options}" if options else str(path), cluster=cluster)
    return [
        Job(
            arrival_milli(arrival) // WHOLE_GPU,
            arrival.at,
            float(max(1, round(arrival.seconds or 1.0))),
            arrival.pods[0].spec.priority,
        )
        for arrival in workload.arrivals
    ]


def hosts(data: Path) -> list[Node]:
    """Return the hosts of the fabric, leaf by leaf, with 8 GPUs each."""
    return list(read_cluster(str(data / "lingjun" / "topo.csv")).nodes)
