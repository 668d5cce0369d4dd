"""Make nodes and pods, as an API server would return them, from the rows of a trace."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from topo_scheduler.api.annotations import EXPECTED_DURATION, GPU_FRACTION, GPU_MODEL
from topo_scheduler.api.durations import written_duration
from topo_scheduler.api.fractions import write_fraction
from topo_scheduler.api.groups import JOB_INDEX
from topo_scheduler.api.labels import BANDWIDTH_LABELS, GPU_MODEL_LABELS, GPU_RESOURCES, GPU_SHARING, PREFIX
from topo_scheduler.api.objects import (
    ConditionStatus,
    Container,
    Job,
    JobSpec,
    Node,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodSpec,
    Quantity,
    ResourceRequirements,
)
from topo_scheduler.api.process import SCHEDULER_NAME
from topo_scheduler.api.quantity import parse_bandwidth, parse_quantity
from topo_scheduler.simulation.cases.model import Arrival
from topo_scheduler.simulation.cases.options import Options, checked, one_of, whole_number

GPU: Final = GPU_RESOURCES[0]
LEVELS: Final = ("fabric", "core", "spine", "leaf")
NAMESPACE: Final = "default"
HOSTNAME: Final = "kubernetes.io/hostname"
CPUS_PER_GPU: Final = 4
GIB_PER_GPU: Final = 32
"""GiB of memory and CPUs per GPU that pods request if the trace has GPUs only."""
MIN_SECONDS: Final = 1.0
"""Duration of jobs that start and end in the same second."""


# ---------------------------------------------------------------- nodes


@dataclass(frozen=True, slots=True)
class Host:
    """Node properties for sources that contain topology only; given as options after the path."""

    gpus: int = 8
    cpu: str = "128"
    memory: str = "1Ti"
    pods: int = 110
    model: str = ""
    bandwidth: str = ""
    sharing: bool = False


def take_host(options: Options) -> Host:
    """Read the properties of nodes from options."""
    return Host(
        gpus=options.take("gpus", whole_number(1, 64), 8),
        cpu=options.take("cpu", checked(partial(parse_quantity, scale=1000)), "128"),
        memory=options.take("memory", checked(parse_quantity), "1Ti"),
        pods=options.take("pods", whole_number(1, 100_000), 110),
        model=options.take("model", str, ""),
        bandwidth=options.take("bandwidth", checked(parse_bandwidth), ""),
        sharing=options.take("sharing", one_of("true", "false"), "false") == "true",
    )


def make_node(name: str, place: Sequence[str], host: Host, labels: Mapping[str, str] | None = None) -> Node:
    """Return a node that is ready.

    Args:
        name: its name.
        place: the domains that contain it, the leaf last, at most one for each of `LEVELS`.
        host: its resources and properties.
        labels: additional labels.
    """
    node_labels = {HOSTNAME: name}
    if place:
        levels = LEVELS[-len(place) :]
        node_labels |= {PREFIX + level: domain for level, domain in zip(levels, place, strict=True)}
    if host.model:
        node_labels[GPU_MODEL_LABELS[0]] = host.model
    if host.bandwidth:
        node_labels[BANDWIDTH_LABELS[0]] = host.bandwidth
    if host.sharing:
        node_labels[GPU_SHARING] = "true"
    allocatable: dict[str, Quantity] = {"cpu": host.cpu, "memory": host.memory, "pods": str(host.pods)}
    if host.gpus:
        allocatable[GPU] = str(host.gpus)
    return Node(
        metadata=ObjectMeta(
            name=name, uid=f"node/{name}", resource_version="1", labels={**node_labels, **(labels or {})}
        ),
        status=NodeStatus(
            allocatable=allocatable, capacity=dict(allocatable), conditions=[ConditionStatus("Ready", "True")]
        ),
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
        requests: requests of its container; GPUs become limits too.
        share: thousandths of one GPU, instead of whole GPUs.
        models: acceptable GPU models; empty means any.
        owner: its controller.
        annotations: additional annotations.
        labels: its labels.
        priority: its priority.
    """
    pod_annotations = dict(annotations or {})
    if share:
        pod_annotations[GPU_FRACTION] = write_fraction(share)
    if models:
        pod_annotations[GPU_MODEL] = ",".join(models)
    limits: dict[str, Quantity] = {GPU: requests[GPU]} if GPU in requests else {}
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=NAMESPACE,
            uid=f"pod/{NAMESPACE}/{name}",
            resource_version="1",
            labels=dict(labels or {}),
            annotations=pod_annotations,
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
    """A job of a trace that has GPU counts only. ``at`` and ``seconds`` as in `Arrival`."""

    name: str
    at: float
    seconds: float | None
    gpus: int
    priority: int = 0
    source: str = ""


def shape(gpus: int, node_gpus: int) -> tuple[int, int]:
    """Return the number of pods of a job and the GPUs of each: one if it fits a node, else the largest equal pods."""
    if gpus <= node_gpus:
        return 1, gpus
    pod_gpus = next(size for size in range(node_gpus, 0, -1) if gpus % size == 0)
    return gpus // pod_gpus, pod_gpus


def make_arrival(job: TracedJob, node_gpus: int, *, annotate_duration: bool = False) -> Arrival:
    """Return a job of a trace as a user of Kubernetes would submit it: a pod, or an indexed Job whose pods are a gang.

    Args:
        job: the job.
        node_gpus: largest number of GPUs of one pod.
        annotate_duration: whether its annotations contain the expected duration.
    """
    members, each = shape(job.gpus, node_gpus)
    annotations = (
        {EXPECTED_DURATION: written_duration(job.seconds)} if annotate_duration and job.seconds is not None else {}
    )
    requests: dict[str, Quantity] = {
        "cpu": str(CPUS_PER_GPU * each),
        "memory": f"{GIB_PER_GPU * each}Gi",
        GPU: str(each),
    }
    if members == 1:
        pod = make_pod(job.name, requests, annotations=annotations, priority=job.priority)
        return Arrival(job.name, job.at, job.seconds, (pod,), source=job.source)
    owner, reference = make_job(job.name, members, annotations)
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
    """Return an indexed Job of ``members`` pods, and the owner reference for its pods."""
    uid = f"job/{namespace}/{name}"
    job = Job(
        metadata=ObjectMeta(
            name=name, namespace=namespace, uid=uid, resource_version="1", annotations=dict(annotations)
        ),
        spec=JobSpec(parallelism=members, completions=members, completion_mode="Indexed"),
    )
    return job, OwnerReference(api_version="batch/v1", kind="Job", name=name, uid=uid, controller=True)


def seconds_of(begin: float, end: float) -> float:
    """Return the duration between two times in seconds, at least `MIN_SECONDS`."""
    return max(end - begin, MIN_SECONDS)
