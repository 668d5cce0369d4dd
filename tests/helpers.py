"""Builders of the Kubernetes objects that tests talk about."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from topo_scheduler.api.groups import (
    PLUGINS_LABEL,
    SIGS_LABEL,
    VERSIONS,
    VOLCANO_ANNOTATIONS,
    GroupApi,
    PodGroupObject,
)
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import (
    ConditionStatus,
    Container,
    Job,
    JobSpec,
    JobStatus,
    Node,
    NodeSpec,
    NodeStatus,
    ObjectMeta,
    OwnerReference,
    Pod,
    PodCondition,
    PodSpec,
    PodStatus,
    Quantity,
    ResourceRequirements,
    Taint,
)
from topo_scheduler.api.selectors import Affinity, NodeAffinity, NodeSelector, NodeSelectorTerm, Requirement
from topo_scheduler.simulation.cluster import ClusterDescription, LeafDescription, SpineDescription
from topo_scheduler.state.pods.pod_groups import PodGroup, read_group

SCHEDULER: Final = "topology-aware-scheduler"
NVIDIA: Final = "nvidia.com/gpu"
MODEL: Final = "nvidia.com/gpu.product"
EPOCH: Final = 1_700_000_000
"""Creation times are given in seconds after this moment."""

_uids = itertools.count(1)


def timestamp(seconds: float) -> str:
    """Return a Kubernetes timestamp of so many seconds after the epoch of the tests."""
    return datetime.fromtimestamp(EPOCH + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def make_node(
    name: str,
    path: str = "",
    *,
    gpus: int = 8,
    cpu: Quantity = "64",
    memory: Quantity = "512Gi",
    pods: int = 110,
    model: str = "",
    bandwidth: str = "",
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Taint] = (),
    ready: bool = True,
    unschedulable: bool = False,
    uid: str = "",
    allocatable: Mapping[str, Quantity] | None = None,
) -> Node:
    """Return a node that hangs at ``path``: ``spine-1/leaf-1`` names the innermost levels, outermost first."""
    node_labels = dict(labels or {})
    parts = path.split("/") if path else []
    for level, part in zip(("fabric", "core", "spine", "leaf")[4 - len(parts) :], parts, strict=True):
        if part:
            node_labels[PREFIX + level] = part
    if model:
        node_labels[MODEL] = model
    if bandwidth:
        node_labels[PREFIX + "network-bandwidth"] = bandwidth
    has: dict[str, Quantity] = {"cpu": cpu, "memory": memory, "pods": pods}
    if gpus:
        has[NVIDIA] = gpus
    return Node(
        metadata=ObjectMeta(name=name, uid=uid or f"uid-{name}", labels=node_labels),
        spec=NodeSpec(unschedulable=unschedulable, taints=list(taints)),
        status=NodeStatus(
            allocatable=dict(allocatable) if allocatable is not None else has,
            conditions=[ConditionStatus("Ready", "True" if ready else "False")],
        ),
    )


def controlled_by(kind: str, name: str, uid: str = "") -> OwnerReference:
    """Return the reference of a pod to its controller."""
    api_version = "apps/v1" if kind == "DaemonSet" else "v1"
    return OwnerReference(api_version=api_version, kind=kind, name=name, uid=uid or f"uid-{name}", controller=True)


def make_pod(
    name: str,
    *,
    gpus: int = 0,
    cpu: Quantity = "1",
    memory: Quantity = "1Gi",
    namespace: str = "default",
    uid: str = "",
    scheduler: str = SCHEDULER,
    owner: OwnerReference | None = None,
    node: str = "",
    phase: str = "Pending",
    priority: int = 0,
    created: float = 0,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    spec: PodSpec | None = None,
) -> Pod:
    """Return a pod. Annotation names without a slash are ours. ``spec`` stands instead of one container."""
    if spec is None:
        requests: dict[str, Quantity] = {"cpu": cpu, "memory": memory}
        limits: dict[str, Quantity] = {NVIDIA: gpus} if gpus else {}
        spec = PodSpec(containers=[Container("main", ResourceRequirements({**requests, **limits}, limits))])
    spec.scheduler_name, spec.node_name, spec.priority = scheduler, node, priority
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"pod-{next(_uids)}",
            creation_timestamp=timestamp(created),
            labels=dict(labels or {}),
            annotations=ours(annotations),
            owner_references=[owner] if owner else [],
        ),
        spec=spec,
        status=PodStatus(phase=phase, conditions=[PodCondition("PodScheduled", "True")] if node else []),
    )


def ours(annotations: Mapping[str, str] | None) -> dict[str, str]:
    """Put our prefix before every name that has none."""
    return {key if "/" in key else PREFIX + key: value for key, value in (annotations or {}).items()}


def make_job(
    name: str,
    *,
    parallelism: int = 1,
    completions: int | None = None,
    indexed: bool = False,
    succeeded: int = 0,
    failed_indexes: str = "",
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
) -> Job:
    """Return a Job whose uid is that of ``controlled_by("Job", name)``."""
    return Job(
        metadata=ObjectMeta(name=name, namespace=namespace, uid=f"uid-{name}", annotations=ours(annotations)),
        spec=JobSpec(parallelism, completions, "Indexed" if indexed else "NonIndexed"),
        status=JobStatus(succeeded=succeeded, failed_indexes=failed_indexes),
    )


def make_group(
    name: str,
    minimum: int = 1,
    *,
    api: GroupApi = GroupApi.NATIVE,
    namespace: str = "default",
    priority: int | None = None,
    key: str = "",
    spec: Mapping[str, Any] | None = None,
    status: Mapping[str, Any] | None = None,
) -> PodGroup:
    """Return a PodGroup as it is read; ``spec`` adds to what the other arguments say."""
    if api is GroupApi.NATIVE:
        fields: dict[str, Any] = {"schedulingPolicy": {"gang": {"minCount": minimum}}}
        if priority is not None:
            fields["priority"] = priority
        if key:
            fields["schedulingConstraints"] = {"topology": [{"key": key}]}
    else:
        fields = {"minMember": minimum}
    obj = PodGroupObject(
        ObjectMeta(name=name, namespace=namespace, uid=f"uid-{api}-{namespace}-{name}"),
        {**fields, **(spec or {})},
        dict(status or {}),
    )
    return read_group(api, VERSIONS[api][-1], obj)


def in_group(pod: Pod, name: str, api: GroupApi = GroupApi.NATIVE) -> Pod:
    """Make a pod name a PodGroup, as the API has it."""
    if api is GroupApi.NATIVE:
        pod.spec.scheduling_group = {"podGroupName": name}
    elif api is GroupApi.VOLCANO:
        pod.metadata.annotations[VOLCANO_ANNOTATIONS[0]] = name
    else:
        pod.metadata.labels[PLUGINS_LABEL if api is GroupApi.PLUGINS else SIGS_LABEL] = name
    return pod


@dataclass(frozen=True, slots=True)
class Owner:
    """One object of the chain above a pod."""

    kind: str
    name: str
    namespace: str = "default"
    uid: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    job: Job | None = None


def job_owner(job: Job) -> Owner:
    """Return a Job as an owner of pods."""
    meta = job.metadata
    return Owner("Job", meta.name, meta.namespace, meta.uid, meta.annotations, job)


def owner(kind: str, name: str, annotations: Mapping[str, str] | None = None, namespace: str = "default") -> Owner:
    """Return an owner of any kind whose uid is that of ``controlled_by(kind, name)``."""
    return Owner(kind, name, namespace, f"uid-{name}", ours(annotations))


def requires(*terms: NodeSelectorTerm) -> Affinity:
    """Return a required node affinity: one of the terms must hold."""
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector(terms)))


def term(*requirements: Requirement, fields: Sequence[Requirement] = ()) -> NodeSelectorTerm:
    """Return requirements that must all hold."""
    return NodeSelectorTerm(requirements, tuple(fields))


def where(key: str, operator: str, *values: str) -> Requirement:
    """Return one requirement."""
    return Requirement(key, operator, values)


def leaf_spine(spines: Sequence[Sequence[int]], **leaf: Any) -> ClusterDescription:
    """Return a cluster by nodes per leaf: ``[[4, 4], [2]]`` is two spines with leaf-1, leaf-2 and leaf-3.

    ``leaf`` arguments are passed to every `LeafDescription`.
    """
    counts = iter(range(1, 1 + sum(len(sizes) for sizes in spines)))
    return ClusterDescription(
        spines=tuple(
            SpineDescription(
                name=f"spine-{number}",
                leaves=tuple(LeafDescription(name=f"leaf-{next(counts)}", nodes=size, **leaf) for size in sizes),
            )
            for number, sizes in enumerate(spines, 1)
        )
    )
