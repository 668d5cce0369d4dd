"""Real input: the fabric of a production cluster, the pods of another, and the gangs of a third."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from topo_scheduler.simulation.cases.muri import read_muri
from topo_scheduler.simulation.cases.reading import read_cluster, read_workload
from topo_scheduler.simulation.cases.what_if import place_of

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


def data_folder() -> Path:
    """Return the folder of the data sets, as `data`."""
    data("lingjun", "topo.csv")
    return DATA


def lingjun_nodes() -> list[Json]:
    """The 847 hosts of Lingjun, with the labels of their switches; names of leaves repeat under their parents."""
    nodes = []
    for number, host in enumerate(read_cluster(str(data("lingjun", "topo.csv"))).nodes):
        (_, core), (_, spine), (_, leaf) = place_of(host)
        labels = {f"{objects.PREFIX}core": core}
        item = objects.node(f"host-{number:04d}", spine=spine, leaf=leaf, gpus=GPUS, model="A100", labels=labels)
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


def openb_pods(limit: int) -> list[Work]:
    """Pods with whole GPUs, in order of arrival."""
    works: list[Work] = []
    for arrival in read_workload(str(data("openb", "openb_pod_list_default.csv"))).arrivals:
        requests = arrival.pods[0].spec.containers[0].resources.requests
        if "nvidia.com/gpu" in requests and len(works) < limit:
            works.append(Work(arrival.name, 1, int(requests["nvidia.com/gpu"]), str(requests["cpu"])))
    return works


def muri_gangs(limit: int) -> list[Work]:
    """Jobs of more than one node's GPUs as pods of whole nodes, those of 2 to 8 as pods of one GPU each."""
    works: list[Work] = []
    for job in read_muri(data("gangs", "muri", "trace2.csv")):
        if job.gpus > 1 and len(works) < limit:
            members, each = (job.gpus // GPUS, GPUS) if job.gpus > GPUS else (job.gpus, 1)
            works.append(Work(job.name.replace("job", "muri"), members, each))
    return works
