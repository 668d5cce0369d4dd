"""Read Alibaba's cluster trace with shared GPUs (openb, 2023), in the format of the FGD authors' repository.

Nodes are ``sn,cpu_milli,memory_mib,gpu,model``; optional columns of network levels may follow, which the trace does not
have. Pods are ``name,cpu_milli,memory_mib,num_gpu,gpu_milli``. Optional columns list the acceptable GPU models and
three times in seconds. A pod arrives at its creation, and runs from its scheduling until its deletion.

    Weng et al., Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent,
    USENIX ATC 2023; https://github.com/hkust-adsl/kubernetes-scheduler-simulator
"""

from math import inf
from pathlib import Path
from typing import Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import Node, Quantity
from topo_scheduler.api.quantity import MAX_VALUE
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import GPU, LEVELS, Host, make_node, make_pod, seconds_of
from topo_scheduler.simulation.cases.tables import Row, read_rows

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
POD_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
POD_OPTIONAL: Final = ("gpu_spec", "qos", "pod_phase", "creation_time", "deletion_time", "scheduled_time")
MAX_PODS: Final = 100_000
"""Pods per node: the trace has no limit."""
MAX_GPUS: Final = 64
MAX_MIB: Final = MAX_VALUE // 2**20


def read_openb_nodes(path: Path) -> ClusterCase:
    """Return an empty cluster of the listed nodes, all with GPU sharing.

    Raises:
        CaseError: the list can't be used.
    """
    seen: dict[str, int] = {}
    nodes: list[Node] = []
    for row in read_rows(path, NODE_COLUMNS, LEVELS):
        name = row.text("sn").lower()
        row.once(seen, name, name)
        host = Host(
            gpus=row.whole_number("gpu", high=MAX_GPUS),
            cpu=f"{row.whole_number('cpu_milli', low=1)}m",
            memory=f"{row.whole_number('memory_mib', low=1, high=MAX_MIB)}Mi",
            pods=MAX_PODS,
            model=row.fields["model"].strip(),
            sharing=True,
        )
        place = {level: row.fields.get(level, "").strip() for level in LEVELS}
        nodes.append(make_node(name, (), host, {PREFIX + level: domain for level, domain in place.items() if domain}))
    return ClusterCase(path.stem, tuple(nodes))


def read_openb_pods(path: Path) -> WorkloadCase:
    """Return the listed pods in order of creation; pods without times come first.

    Raises:
        CaseError: the list can't be used.
    """
    seen: dict[str, int] = {}
    arrivals = []
    for row in read_rows(path, POD_COLUMNS, POD_OPTIONAL):
        name = row.text("name").lower()
        row.once(seen, name, name)
        arrivals.append(_arrival(row, name))
    first = min((arrival.at for arrival in arrivals if arrival.at > -inf), default=0.0)
    shifted = [
        Arrival(arrival.name, max(0.0, arrival.at - first), arrival.seconds, arrival.pods, source=arrival.source)
        for arrival in arrivals
    ]
    return WorkloadCase(path.stem, tuple(sorted(shifted, key=lambda arrival: arrival.at)))


def _arrival(row: Row, name: str) -> Arrival:
    gpus, milli = row.whole_number("num_gpu", high=MAX_GPUS), row.whole_number("gpu_milli", high=WHOLE_GPU)
    if gpus and not milli:
        raise row.error(f"num_gpu is {gpus} and gpu_milli 0", "write the thousandths of each GPU, 1000 for whole ones")
    if gpus > 1 and milli != WHOLE_GPU:
        raise row.error(f"num_gpu is {gpus} and gpu_milli {milli}", "only one GPU can be shared; write 1000")
    requests: dict[str, Quantity] = {
        "cpu": f"{row.whole_number('cpu_milli')}m",
        "memory": f"{row.whole_number('memory_mib', high=MAX_MIB)}Mi",
    }
    share = milli if gpus == 1 and 0 < milli < WHOLE_GPU else 0
    if gpus and not share:
        requests[GPU] = str(gpus)
    models = sorted(set(filter(None, row.fields.get("gpu_spec", "").split("|"))))
    created, deleted, scheduled = (row.maybe(f"{event}_time") for event in ("creation", "deletion", "scheduled"))
    begun = created if scheduled is None else scheduled
    if deleted is not None and begun is not None and deleted < begun:
        raise row.error(
            f"deletion_time is {deleted} and {'creation' if scheduled is None else 'scheduled'}_time {begun}: it would"
            " run for a negative time",
            "correct the times, or delete the line",
        )
    seconds = None if deleted is None or begun is None else seconds_of(begun, deleted)
    pod = make_pod(name, requests, share=share, models=models)
    return Arrival(name, -inf if created is None else float(created), seconds, (pod,), source=row.location)
