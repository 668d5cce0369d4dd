"""Small clusters and workloads."""

from collections.abc import Mapping, Sequence

from tests.helpers import make_node, make_pod
from topo_scheduler.api.config import Configuration
from topo_scheduler.api.objects import Node
from topo_scheduler.simulation.cases.model import Arrival, ClusterCase, WorkloadCase
from topo_scheduler.simulation.policies.names import NAMES, read_policies
from topo_scheduler.simulation.tasks import Task, simulate
from topo_scheduler.simulation.virtual.history import RunHistory

EVERY = ",".join(NAMES)


def cluster(leaves: Mapping[str, int], gpus: int = 8, *, sharing: bool = False) -> ClusterCase:
    """Return so many nodes in each leaf, named after it."""
    labels = {"topology.scheduler/gpu-sharing": "true"} if sharing else {}
    nodes = [
        make_node(f"{path.replace('/', '-')}-{number}", path, gpus=gpus, labels=labels)
        for path, count in leaves.items()
        for number in range(1, count + 1)
    ]
    return of(nodes)


def of(nodes: Sequence[Node]) -> ClusterCase:
    """Return a cluster of these nodes."""
    return ClusterCase("small", tuple(nodes))


def job(name: str, at: float = 0.0, seconds: float | None = None, *, pods: int = 1, **asked: object) -> Arrival:
    """Return a job of equal pods, a gang where there is more than one; ``asked`` as of `make_pod`."""
    annotations = dict(asked.pop("annotations", None) or {})  # type: ignore[call-overload]
    if pods > 1:
        annotations |= {"gang-name": name, "gang-size": str(pods)}
    members = tuple(
        make_pod(f"{name}-{number}", uid=f"pod/{name}-{number}", annotations=annotations, **asked)  # type: ignore[arg-type]
        for number in range(pods)
    )
    return Arrival(name, at, seconds, members)


def share(name: str, fraction: str, at: float = 0.0, seconds: float | None = None, **asked: object) -> Arrival:
    """Return a pod that asks for a share of a GPU."""
    return job(name, at, seconds, annotations={"gpu-fraction": fraction}, **asked)  # type: ignore[arg-type]


def run(
    policy: str,
    case: ClusterCase,
    arrivals: Sequence[Arrival],
    *,
    seed: int = 1,
    fill: float | None = None,
    latency: float = 0.0,
    base: Configuration | None = None,
) -> RunHistory:
    """Return what happens."""
    (parsed_policy,) = read_policies(policy)
    workload = WorkloadCase("few", tuple(arrivals))
    return simulate(Task(parsed_policy, seed, case, workload, fill, latency=latency, base=base or Configuration()))


def where(history: RunHistory) -> dict[str, list[str]]:
    """Return the nodes of each workload, in order of its pods."""
    placements: dict[str, list[tuple[str, str]]] = {}
    for stay in history.stays:
        placements.setdefault(history.outcomes[stay.job].name, []).append((stay.pod, history.nodes[stay.node]))
    return {name: [node for _, node in sorted(pods)] for name, pods in placements.items()}
