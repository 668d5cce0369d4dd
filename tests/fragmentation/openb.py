"""Nodes and pods of Alibaba's cluster trace with shared GPUs (openb, 2023) as plain numbers."""

from dataclasses import dataclass
from pathlib import Path

from tests.helpers import MODEL
from topo_scheduler.api.annotations import GPU_FRACTION, GPU_MODEL
from topo_scheduler.api.fractions import parse_fraction
from topo_scheduler.api.quantity import parse_quantity
from topo_scheduler.simulation.cases.object_factory import GPU
from topo_scheduler.simulation.cases.openb import read_openb_nodes, read_openb_pods


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
    trace_nodes = []
    for node in read_openb_nodes(data / "openb_node_list_gpu_node.csv").nodes:
        has, labels = node.status.allocatable, node.metadata.labels
        cpu, memory = parse_quantity(has["cpu"], 1000), parse_quantity(has["memory"]) >> 20
        trace_nodes.append(Machine(node.metadata.name, cpu, memory, parse_quantity(has.get(GPU, 0)), labels[MODEL]))
    return trace_nodes


def wants(data: Path, trace: str) -> list[Want]:
    """Return the pods of one of its lists, such as ``default`` or ``gpushare40``, by name."""
    trace_pods = []
    for arrival in read_openb_pods(data / f"openb_pod_list_{trace}.csv").arrivals:
        (pod,) = arrival.pods
        asks, share = pod.spec.containers[0].resources.requests, pod.metadata.annotations.get(GPU_FRACTION)
        gpus = 1 if share else parse_quantity(asks.get(GPU, 0))
        milli = parse_fraction(share) if share else 1000 * bool(gpus)
        models = tuple(filter(None, pod.metadata.annotations.get(GPU_MODEL, "").split(",")))
        cpu, memory = parse_quantity(asks["cpu"], 1000), parse_quantity(asks["memory"]) >> 20
        trace_pods.append(Want(arrival.name, cpu, memory, gpus, milli, models))
    return sorted(trace_pods, key=lambda want: want.name)
