"""Readers of Alibaba's cluster trace with shared GPUs (openb, 2023), in the form of the FGD authors' repository."""

import csv
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Machine:
    """A node: milli-CPU, MiB of memory, GPUs and their model."""

    name: str
    cpu: int
    memory: int
    gpus: int
    model: str


@dataclass(frozen=True, slots=True)
class Want:
    """A pod: milli-CPU, MiB of memory, GPUs, thousandths of each, and the models that will do (none: any)."""

    name: str
    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...]

    @property
    def asked(self) -> int:
        """GPU-thousandths it asks for."""
        return self.gpus * self.milli


def machines(data: Path) -> list[Machine]:
    """Return the nodes of the trace."""
    with (data / "openb_node_list_gpu_node.csv").open(newline="") as file:
        return [
            Machine(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
            for row in csv.DictReader(file)
        ]


def wants(data: Path, trace: str) -> list[Want]:
    """Return the pods of one of its lists, such as ``default`` or ``gpushare40``."""
    with (data / f"openb_pod_list_{trace}.csv").open(newline="") as file:
        return [
            Want(
                row["name"],
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["num_gpu"]),
                int(row["gpu_milli"]),
                tuple(sorted(set(filter(None, (row.get("gpu_spec") or "").split("|"))))),
            )
            for row in csv.DictReader(file)
        ]
