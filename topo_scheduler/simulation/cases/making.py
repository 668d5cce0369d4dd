"""Nodes and pods as an API server would show them, made of what a trace tells."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from topo_scheduler.api.annotations import EXPECTED_DURATION, GPU_FRACTION, GPU_MODEL
from topo_scheduler.api.durations import written_duration
from topo_scheduler.api.fractions import WHOLE, write_fraction
from topo_scheduler.api.groups import JOB_INDEX
from topo_scheduler.api.labels import BANDWIDTH_LABELS, GPU_MODEL_LABELS, GPU_RESOURCES, GPU_SHARING, PREFIX
from topo_scheduler.api.objects import (
    Container,
    Job,
    JobSpec,
    Node,
    NodeCondition,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.api.process import SCHEDULER_NAME
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth, parse_quantity
from topo_scheduler.simulation.cases.model import Arrival
from topo_scheduler.simulation.cases.options import Options, one_of, whole, word

GPU: Final = GPU_RESOURCES[0]
LEVELS: Final = ("fabric", "core", "spine", "leaf")
NAMESPACE: Final = "default"
HOSTNAME: Final = "kubernetes.io/hostname"
CPU_A_GPU: Final = 4
GIB_A_GPU: Final = 32
"""What pods of traces that tell of GPUs only ask for beside each."""
LEAST_SECONDS: Final = 1.0
"""What ended in the second it began ran for so long."""


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Host:
    """What sources that tell of places only do not tell of a node; given as options behind them."""

    gpus: int = 8
    cpu: str = "128"
    memory: str = "1Ti"
    pods: int = 110
    model: str = ""
    bandwidth: str = ""
    sharing: bool = False


def take_host(options: Options) -> Host:
    """Read what a node has from options."""
    return Host(
        gpus=options.take("gpus", whole(1, 64), 8),
        cpu=options.take("cpu", _cpu, "128"),
        memory=options.take("memory", _memory, "1Ti"),
        pods=options.take("pods", whole(1, 100_000), 110),
        model=options.take("model", word, ""),
        bandwidth=options.take("bandwidth", _bandwidth, ""),
        sharing=options.take("sharing", one_of("true", "false"), "false") == "true",
    )


def _cpu(text: str) -> str:
    parse_quantity(text, 1000)
    return text


def _memory(text: str) -> str:
    parse_quantity(text)
    return text


def _bandwidth(text: str) -> str:
    try:
        parse_bandwidth(text)
    except QuantityError as error:
        raise ValueError(str(error)) from error
    return text


def make_node(name: str, place: Sequence[str], host: Host, labels: Mapping[str, str] | None = None) -> Node:
    """Return a node that is ready.

    Args:
        name: its name.
        place: the domains it is in, the leaf last, at most one of each of `LEVELS`.
        host: what it has.
        labels: further ones.
    """
    told = {HOSTNAME: name}
    if place:
        levels = LEVELS[-len(place) :]
        told |= {PREFIX + level: part for level, part in zip(levels, place, strict=True)}
    if host.model:
        told[GPU_MODEL_LABELS[0]] = host.model
    if host.bandwidth:
        told[BANDWIDTH_LABELS[0]] = host.bandwidth
    if host.sharing:
        told[GPU_SHARING] = "true"
    has: dict[str, Quantity] = {"cpu": host.cpu, "memory": host.memory, "pods": str(host.pods)}
    if host.gpus:
        has[GPU] = str(host.gpus)
    return Node(
        metadata=ObjectMeta(name=name, uid=f"node/{name}", resource_version="1", labels={**told, **(labels or {})}),
        status=NodeStatus(allocatable=has, capacity=dict(has), conditions=[NodeCondition("Ready", "True")]),
    )


# ---------------------------------------------------------------- pods


def make_pod(
    name: str,
    requests: dict[str, Quantity],
    *,
    share: int = 0,
    models: Sequence[str] = (),
    owner: OwnerReference | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    priority: int = 0,
) -> Pod:
    """Return a pending pod of one container.

    Args:
        name: its name.
        requests: of its container; GPUs among them are limits too.
        share: thousandths of one GPU, in place of whole ones.
        models: GPU models that will do; none means any.
        owner: its controller.
        annotations: further ones.
        labels: its labels.
        priority: its priority.
    """
    told = dict(annotations or {})
    if share:
        told[GPU_FRACTION] = write_fraction(share)
    if models:
        told[GPU_MODEL] = ",".join(models)
    limits: dict[str, Quantity] = {GPU: requests[GPU]} if GPU in requests else {}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=f"pod/{NAMESPACE}/{name}",
            resource_version="1",
            labels=dict(labels or {}),
            annotations=told,
            owner_references=[owner] if owner else [],
        ),
        spec=PodSpec(
            scheduler_name=SCHEDULER_NAME,
            priority=priority,
            restart_policy="Never",
            containers=[Container(name="work", resources=ResourceRequirements(requests=requests, limits=limits))],
        ),
    )


@dataclass(frozen=True, slots=True)
class TracedJob:
    """A job of a trace that tells of GPUs only. ``at`` and ``seconds`` as in `Arrival`."""

    name: str
    at: float
    seconds: float | None
    gpus: int
    priority: int = 0
    source: str = ""


def shape(gpus: int, node_gpus: int) -> tuple[int, int]:
    """Return how many pods a job has and the GPUs of each: one where a node can hold it, else the largest alike."""
    if gpus <= node_gpus:
        return 1, gpus
    each = next(size for size in range(node_gpus, 0, -1) if gpus % size == 0)
    return gpus // each, each


def make_arrival(job: TracedJob, node_gpus: int, *, told: bool = False) -> Arrival:
    """Return a job of a trace as a user of Kubernetes would submit it: a pod, or an indexed Job whose pods are a gang.

    Args:
        job: which.
        node_gpus: most GPUs of a pod.
        told: whether it says by annotation how long it takes.
    """
    members, each = shape(job.gpus, node_gpus)
    says = {EXPECTED_DURATION: written_duration(job.seconds)} if told and job.seconds is not None else {}
    requests: dict[str, Quantity] = {"cpu": str(CPU_A_GPU * each), "memory": f"{GIB_A_GPU * each}Gi", GPU: str(each)}
    if members == 1:
        pod = make_pod(job.name, requests, annotations=says, priority=job.priority)
        return Arrival(job.name, job.at, job.seconds, (pod,), source=job.source)
    owner, reference = make_job(job.name, members, says)
    pods = tuple(
        make_pod(
            f"{job.name}-{index}",
            dict(requests),
            owner=reference,
            annotations={JOB_INDEX: str(index)},
            labels={JOB_INDEX: str(index), "batch.kubernetes.io/job-name": job.name},
            priority=job.priority,
        )
        for index in range(members)
    )
    return Arrival(job.name, job.at, job.seconds, pods, {owner.metadata.uid: owner}, source=job.source)


def make_job(
    name: str, members: int, annotations: Mapping[str, str], namespace: str = NAMESPACE
) -> tuple[Job, OwnerReference]:
    """Return an indexed Job of so many pods, and how its pods name it."""
    uid = f"job/{namespace}/{name}"
    job = Job(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=uid, resource_version="1", annotations=dict(annotations)
        ),
        spec=JobSpec(parallelism=members, completions=members, completion_mode="Indexed"),
    )
    return job, OwnerReference(api_version="batch/v1", kind="Job", name=name, uid=uid, controller=True)


def seconds_of(begin: float, end: float) -> float:
    """Return how long something ran, at least `LEAST_SECONDS`."""
    return max(end - begin, LEAST_SECONDS)


def is_share(gpus: int, milli: int) -> bool:
    """Whether a pod of so many GPUs, of each so many thousandths, asks for a share of one."""
    return gpus == 1 and 0 < milli < WHOLE
