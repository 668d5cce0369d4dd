"""Real input: the fabric of a production cluster, the pods of another, and the gangs of a third."""

import csv
import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from . import objects
from .api import Json
from .cluster import ROOT

DATA: Final = Path(os.environ.get("TOPO_DATA") or ROOT.parent / "shared" / "data")
GPUS: Final = 8
"""Of each host of that fabric."""


def data(*parts: str) -> Path:
    """Return a file of the data sets. Where there is none: skip on a user's machine, fail in CI."""
    path = DATA.joinpath(*parts)
    if not path.is_file():
        text = f"{path} is not there: set TOPO_DATA to the folder of the data sets"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)
    return path


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def lingjun_nodes() -> list[Json]:
    """The 847 hosts of Lingjun, with the labels of their switches; names of leaves repeat under their parents."""
    nodes = []
    for number, row in enumerate(_rows(data("lingjun", "topo.csv"))):
        labels = {f"{objects.PREFIX}core": row["DSW"]}
        item = objects.node(
            f"host-{number:04d}", spine=row["PSW"], leaf=row["ASW"], gpus=GPUS, model="A100", labels=labels
        )
        for amounts in (item["status"]["capacity"], item["status"]["allocatable"]):
            amounts |= {"cpu": "128", "memory": "1Ti"}
        nodes.append(item)
    return nodes


@dataclass(frozen=True)
class Work:
    """A Job to be made of a line of a trace."""

    name: str
    members: int
    gpus: int
    cpu: str = "4"

    def job(self, run: float) -> Json:
        """The Job; one of several members is a gang."""
        item = (objects.gang if self.members > 1 else objects.job)(self.name, self.members, self.gpus, run=run)
        item["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = self.cpu
        return item


def openb_pods(most: int) -> list[Work]:
    """Pods with whole GPUs, in order of arrival."""
    rows = _rows(data("openb", "openb_pod_list_default.csv"))
    whole = (row for row in rows if row["gpu_milli"] == "1000" and int(row["num_gpu"] or 0) >= 1)
    return [Work(row["name"], 1, int(row["num_gpu"]), f"{row['cpu_milli']}m") for row in islice(whole, most)]


def muri_gangs(most: int) -> list[Work]:
    """Jobs of more than one node's GPUs as pods of whole nodes, those of 2 to 8 as pods of one GPU each."""
    found: list[Work] = []
    for row in _rows(data("gangs", "muri", "trace2.csv")):
        gpus = int(row["num_gpu"])
        if gpus > 1 and len(found) < most:
            members, each = (gpus // GPUS, GPUS) if gpus > GPUS else (gpus, 1)
            found.append(Work(f"muri-{row['job_id']}", members, each))
    return found
