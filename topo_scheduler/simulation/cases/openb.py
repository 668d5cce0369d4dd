"""Alibaba's cluster trace with shared GPUs (openb, 2023), in the form of the FGD authors' repository.

Nodes are ``sn,cpu_milli,memory_mib,gpu,model``; columns of places may follow, which the trace does not have. Pods are
``name,cpu_milli,memory_mib,num_gpu,gpu_milli``, and where the list has them the models that will do and three moments
in seconds: a pod arrives when it was created and runs from when it was scheduled until it was deleted.

    Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
    USENIX ATC 2023; https://github.com/hkust-adsl/kubernetes-scheduler-simulator
"""

from math import inf
from pathlib import Path
from typing import Final

from topo_scheduler.api.fractions import WHOLE
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Node, Quantity
from topo_scheduler.api.quantity import MAX_VALUE
from topo_scheduler.simulation.cases.making import GPU, LEVELS, Host, is_share, make_node, make_pod, seconds_of
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.tables import Row, read_rows

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
POD_OPTIONAL: Final = ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
MOST_PODS: Final = 100_000
"""Of a node: the trace knows no limit."""
MOST_GPUS: Final = 64
MOST_MIB: Final = MAX_VALUE // 2**20


def read_openb_nodes(path: Path) -> ClusterCase:
    """Return the nodes of a list, each with its GPUs shared; nodes alone, nothing runs yet.

    Raises:
        CaseError: the list can't be used.
    """
    seen: dict[str, int] = {}
    nodes: list[Node] = []
    for row in read_rows(path, NODE_COLUMNS, LEVELS):
        name = _once(row, row.text("sn"), seen)
        host = Host(
            gpus=row.whole("gpu", high=MOST_GPUS),
            cpu=f"{row.whole('cpu_milli', low=1)}m",
            memory=f"{row.whole('memory_mib', low=1, high=MOST_MIB)}Mi",
            pods=MOST_PODS,
            model=row.fields["model"].strip(),
            sharing=True,
        )
        nodes.append(make_node(name, (), host, _place(row)))
    return ClusterCase(path.stem, tuple(nodes))


def _place(row: Row) -> dict[str, str]:
    return {PREFIX + level: row.fields[level].strip() for level in LEVELS if row.fields.get(level, "").strip()}


def _once(row: Row, name: str, seen: dict[str, int]) -> str:
    name = name.lower()
    if name in seen:
        raise row.error(f"{name} is in line {seen[name]} already", "rename one, or delete it")
    seen[name] = row.line
    return name


def read_openb_pods(path: Path) -> WorkloadCase:
    """Return the pods of a list in the order in which they were created; those without times come first.

    Raises:
        CaseError: the list can't be used.
    """
    seen: dict[str, int] = {}
    arrivals = [_arrival(row, _once(row, row.text("name"), seen)) for row in read_rows(path, POD_COLUMNS, POD_OPTIONAL)]
    first = min((one.at for one in arrivals if one.at > -inf), default=0.0)
    moved = [Arrival(one.name, max(0.0, one.at - first), one.seconds, one.pods, source=one.source) for one in arrivals]
    return WorkloadCase(path.stem, tuple(sorted(moved, key=lambda one: one.at)))


def _arrival(row: Row, name: str) -> Arrival:
    gpus, milli = row.whole("num_gpu", high=MOST_GPUS), row.whole("gpu_milli", high=WHOLE)
    if gpus and not milli:
        raise row.error(f"num_gpu is {gpus} and gpu_milli 0", "write the thousandths of each GPU, 1000 for whole ones")
    if gpus > 1 and milli != WHOLE:
        raise row.error(f"num_gpu is {gpus} and gpu_milli {milli}", "only one GPU can be shared; write 1000")
    requests: dict[str, Quantity] = {
        "cpu": f"{row.whole('cpu_milli')}m",
        "memory": f"{row.whole('memory_mib', high=MOST_MIB)}Mi",
    }
    share = milli if is_share(gpus, milli) else 0
    if gpus and not share:
        requests[GPU] = str(gpus)
    models = sorted(set(filter(None, row.fields.get("gpu_spec", "").split("|"))))
    created, deleted, scheduled = (row.maybe(f"{what}_time") for what in ("creation", "deletion", "scheduled"))
    begun = created if scheduled is None else scheduled
    if deleted is not None and begun is not None and deleted < begun:
        raise row.error(
            f"deletion_time is {deleted} and {'creation' if scheduled is None else 'scheduled'}_time {begun}: it would"
            " run for a negative time",
            "correct the times, or delete the line",
        )
    seconds = None if deleted is None or begun is None else seconds_of(begun, deleted)
    pod = make_pod(name, requests, share=share, models=models)
    return Arrival(name, -inf if created is None else float(created), seconds, (pod,), source=row.where)
