"""GPU amounts of nodes and pods, in thousandths of a GPU."""

from collections.abc import Iterable

from topo_scheduler.api.annotations import GPU_COUNT, GPU_FRACTION, written_number
from topo_scheduler.api.fractions import WHOLE_GPU, written_share
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Job, Node, PartialObject, Pod, Quantity
from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.simulation.cases.model import Arrival


def node_milli(node: Node) -> int:
    """Return the allocatable GPUs of a node; 0 if the quantity can't be read."""
    return WHOLE_GPU * sum(_count(node.status.allocatable.get(name, 0)) for name in GPU_RESOURCES)


def capacity_milli(nodes: Iterable[Node]) -> int:
    """Return the allocatable GPUs of all nodes together."""
    return sum(node_milli(node) for node in nodes)


def pod_milli(pod: Pod) -> int:
    """Return the GPUs that a pod requests by requests, limits, or its own annotations."""
    gpus = 0
    for container in pod.spec.containers:
        requests = container.resources.requests or container.resources.limits
        gpus += sum(_count(requests.get(name) or container.resources.limits.get(name, 0)) for name in GPU_RESOURCES)
    if gpus:
        return WHOLE_GPU * gpus
    annotations = pod.metadata.annotations
    if GPU_FRACTION in annotations:
        return written_share(annotations, GPU_FRACTION)
    return WHOLE_GPU * (written_number(annotations, GPU_COUNT) or 0)


def arrival_milli(arrival: Arrival) -> int:
    """Return the GPUs that all pods of a workload request together."""
    milli = sum(pod_milli(pod) for pod in arrival.pods)
    return milli or WHOLE_GPU * sum(_by_owner(owner, len(arrival.pods)) for owner in arrival.owners.values())


def _by_owner(owner: Job | PartialObject, pods: int) -> int:
    """Return the GPUs that an owner's annotation requests: on a Job for all its pods, on other kinds for each pod."""
    gpus = written_number(owner.metadata.annotations, GPU_COUNT) or 0
    return gpus if isinstance(owner, Job) or owner.kind == "CronJob" else gpus * pods


def _count(quantity: Quantity) -> int:
    try:
        return parse_quantity(quantity)
    except QuantityError:
        return 0
