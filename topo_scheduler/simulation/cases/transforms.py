"""Transformations of a workload. Each function returns a new workload and leaves its argument unchanged."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Any, Final

from msgspec import structs

from topo_scheduler.api.annotations import GANG_NAME, GANG_SIZE, GPU_COUNT
from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.groups import JOB_INDEX
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Job, ObjectMeta, OwnerReference, PartialObject, Pod
from topo_scheduler.api.quantity import parse_exact
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli, node_milli, pod_milli
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase
from topo_scheduler.simulation.cases.object_factory import make_job, shape

_MILLI_PER_UNIT: Final = 1000


def offered_load(workload: WorkloadCase, cluster: ClusterCase) -> float:
    """Return the requested GPU-seconds of a workload, divided by those that the cluster offers in its span.

    Raises:
        CaseError: a workload never ends, or all workloads arrive at the same time.
    """
    requested = 0.0
    for arrival in workload.arrivals:
        if arrival.seconds is None:
            raise CaseError(
                f"{arrival.source or arrival.name}: {arrival.name} runs for ever, so there is no load; say how long"
            )
        requested += arrival_milli(arrival) * arrival.seconds
    span = _span(workload)
    capacity = capacity_milli(cluster.nodes)
    if not span or not capacity:
        reason = "everything arrives at once" if capacity else "the cluster has no GPUs"
        raise CaseError(f"{workload.name}: {reason}, so there is no load; leave load out")
    return requested / (capacity * span)


def _span(workload: WorkloadCase) -> float:
    """Return the seconds from the first arrival to the last."""
    return workload.arrivals[-1].at - workload.arrivals[0].at if workload.arrivals else 0.0


def with_load(workload: WorkloadCase, cluster: ClusterCase, load: float) -> WorkloadCase:
    """Return the workload with all arrival times scaled so that its offered load is ``load``.

    Raises:
        CaseError: as `offered_load`, or the workload requests no GPUs.
    """
    pace = offered_load(workload, cluster) / load
    if not pace:
        raise CaseError(f"{workload.name}: it asks for no GPUs, so there is no load; leave load out")
    return replace(
        workload, arrivals=tuple(replace(arrival, at=round(arrival.at * pace, 3)) for arrival in workload.arrivals)
    )


def first_arrivals(workload: WorkloadCase, count: int) -> WorkloadCase:
    """Return the workload cut to its first ``count`` arrivals."""
    return replace(workload, arrivals=workload.arrivals[:count])


def limit_gpus(workload: WorkloadCase, gpus: int) -> WorkloadCase:
    """Return the workload without arrivals that request more than ``gpus`` GPUs."""
    kept = tuple(arrival for arrival in workload.arrivals if arrival_milli(arrival) <= gpus * WHOLE_GPU)
    if workload.arrivals and not kept:
        raise CaseError(f"{workload.name}: everything asks for more than {gpus} GPUs; raise at-most")
    return replace(workload, arrivals=kept)


def repeat(workload: WorkloadCase, times: int) -> WorkloadCase:
    """Return the workload repeated ``times`` times. Each starts a mean gap after the last arrival before it."""
    arrivals, span = workload.arrivals, _span(workload)
    period = span + span / max(1, len(arrivals) - 1)
    copies = [*arrivals]
    for round_ in range(1, times):
        copies += [
            renamed_copy(arrival, f"run-{round_ + 1}", at=round(arrival.at + round_ * period, 3))
            for arrival in arrivals
        ]
    return replace(workload, arrivals=tuple(copies))


def fill(
    workload: WorkloadCase, capacity: int, ratio: float, seed: int, asked_for: Sequence[int] | None = None
) -> WorkloadCase:
    """Shuffle and resample the workload until the requested GPUs reach ``ratio`` of the capacity; jobs never finish.

    The tools of FGD's authors do the same (``TunePodsByNodeTotalResource``). They sort by name and shuffle. Then they
    append random copies under new names until the next copy would exceed the target. They compare the target with
    the pod's request of *one* GPU, so the last pod may exceed it. If the shuffled list already requests more than the
    target, random workloads are removed instead. One workload arrives each second.

    Args:
        workload: the source of the arrivals; its times are ignored.
        capacity: GPUs of the cluster, in thousandths.
        ratio: requested GPUs divided by the capacity.
        seed: seed of the random numbers.
        asked_for: GPUs that each workload requests, in thousandths; by default from requests and annotations.

    Raises:
        CaseError: no workload requests a GPU, or the cluster has none.
    """
    rng = random.Random(seed)
    by_name = sorted(workload.arrivals, key=lambda arrival: arrival.name)
    requested_milli = asked_for if asked_for is not None else [arrival_milli(arrival) for arrival in workload.arrivals]
    milli_by_name = {arrival.name: milli for arrival, milli in zip(workload.arrivals, requested_milli, strict=True)}
    target = ratio * capacity
    total = sum(milli_by_name.values())
    if not total or not target:
        reason = "nothing asks for a GPU" if target else "the cluster has no GPUs"
        raise CaseError(f"{workload.name}: {reason}, so it can't be filled; leave fill out")
    order = list(by_name)
    rng.shuffle(order)
    if total > target:
        while total > target:
            total -= milli_by_name[order.pop(rng.randrange(len(order))).name]
    elif total < target:
        order += _drawn(by_name, milli_by_name, target - total, rng)
    return replace(
        workload, arrivals=tuple(replace(arrival, at=float(at), seconds=None) for at, arrival in enumerate(order))
    )


def _drawn(
    arrivals: Sequence[Arrival], milli_by_name: Mapping[str, int], room: float, rng: random.Random
) -> list[Arrival]:
    """Return random copies of arrivals until the next exceeds ``room``; a single pod is compared by one of its GPUs."""
    copies: list[Arrival] = []
    while True:
        arrival = arrivals[rng.randrange(len(arrivals))]
        milli = milli_by_name[arrival.name]
        if (min(milli, WHOLE_GPU) if len(arrival.pods) == 1 else milli) > room:
            return copies
        room -= milli
        copies.append(renamed_copy(arrival, f"tuned-{len(copies)}"))


# ---------------------------------------------------------------- copies


def renamed_copy(arrival: Arrival, suffix: str, *, at: float | None = None) -> Arrival:
    """Return a copy of a workload with a suffix appended to all names and uids.

    Args:
        arrival: the workload to copy.
        suffix: makes the names of the copy unique.
        at: arrival time of the copy, in seconds; that of the original by default.
    """
    owners: dict[str, Job | PartialObject] = {}
    for uid, owner in arrival.owners.items():
        copy = structs.replace(owner, metadata=_marked(owner, suffix, arrival.owners))
        owners[f"{uid}-{suffix}"] = copy
    pods = tuple(_copy(pod, _marked(pod, suffix, arrival.owners)) for pod in arrival.pods)
    groups = tuple(
        replace(group, key=replace(group.key, name=f"{group.key.name}-{suffix}"), uid=f"{group.uid}-{suffix}")
        for group in arrival.groups
    )
    if groups:
        for pod in pods:
            _rename_group(pod, {group.key.name: f"{group.key.name}-{suffix}" for group in arrival.groups})
    arrives_at = arrival.at if at is None else at
    return replace(arrival, name=f"{arrival.name}-{suffix}", at=arrives_at, pods=pods, owners=owners, groups=groups)


def _marked(obj: Pod | Job | PartialObject, suffix: str, owners: Mapping[str, object]) -> ObjectMeta:
    metadata = obj.metadata
    return structs.replace(
        metadata,
        name=f"{metadata.name}-{suffix}",
        uid=f"{metadata.uid}-{suffix}",
        annotations={
            key: f"{value}-{suffix}" if key == GANG_NAME else value for key, value in metadata.annotations.items()
        },
        owner_references=[
            structs.replace(ref, name=f"{ref.name}-{suffix}", uid=f"{ref.uid}-{suffix}") if ref.uid in owners else ref
            for ref in metadata.owner_references
        ],
    )


def _copy(pod: Pod, metadata: ObjectMeta, **spec: Any) -> Pod:
    """Return a copy of a pod with other metadata and some other fields of its spec, which shares no part to change."""
    return structs.replace(
        pod, metadata=metadata, spec=structs.replace(pod.spec, **spec), status=structs.replace(pod.status)
    )


def _rename_group(pod: Pod, names: Mapping[str, str]) -> None:
    metadata, spec = pod.metadata, pod.spec
    metadata.labels = {key: names.get(value, value) for key, value in metadata.labels.items()}
    metadata.annotations = {key: names.get(value, value) for key, value in metadata.annotations.items()}
    if spec.scheduling_group is not None:
        spec.scheduling_group = {key: names.get(value, value) for key, value in spec.scheduling_group.items()}


# ---------------------------------------------------------------- larger gangs


def enlarge(workload: WorkloadCase, cluster: ClusterCase | None, factor: int) -> WorkloadCase:
    """Return the workload with the GPUs of every job multiplied by ``factor``.

    Pods grow up to the size of a node first, then their number grows. A job that requests no whole GPU is unchanged.

    Raises:
        CaseError: the pods of a workload differ, so it is unclear which of them to multiply.
    """
    node_gpus = max((node_milli(node) // WHOLE_GPU for node in cluster.nodes), default=0) if cluster else 0
    return replace(
        workload, arrivals=tuple(_larger(arrival, factor, max(1, node_gpus or 8)) for arrival in workload.arrivals)
    )


def _larger(arrival: Arrival, factor: int, node_gpus: int) -> Arrival:
    gpus_per_pod = pod_milli(arrival.pods[0]) // WHOLE_GPU
    if not gpus_per_pod:
        return arrival
    if any(pod_milli(pod) != gpus_per_pod * WHOLE_GPU for pod in arrival.pods) or arrival.groups:
        raise CaseError(
            f"{arrival.source or arrival.name}: the pods of {arrival.name} are not alike, or are a PodGroup, so that"
            " they can't be multiplied; leave gangs out, or the workload"
        )
    members, gpus = shape(gpus_per_pod * len(arrival.pods) * factor, node_gpus)
    model = _sized(arrival.pods[0], gpus_per_pod, gpus)
    if members == 1:
        return replace(arrival, pods=(model,), owners={})
    base = arrival.pods[0].metadata.controller
    name = base.name if base is not None else arrival.pods[0].metadata.name
    annotations = {key: value for owner in arrival.owners.values() for key, value in owner.metadata.annotations.items()}
    annotations = {key: value for key, value in annotations.items() if key not in (GPU_COUNT, GANG_SIZE)}
    job, reference = make_job(name, members, annotations, model.metadata.namespace)
    pods = tuple(_member(model, name, index, reference) for index in range(members))
    return replace(arrival, pods=pods, owners={job.metadata.uid: job})


def _sized(pod: Pod, before: int, gpus: int) -> Pod:
    """Return a pod with ``gpus`` GPUs; its other requests are scaled by the same factor."""
    annotations = {
        key: value for key, value in pod.metadata.annotations.items() if key not in (GPU_COUNT, GANG_SIZE, GANG_NAME)
    }
    metadata = structs.replace(pod.metadata, annotations=annotations)
    containers = []
    for container in pod.spec.containers:
        resources = container.resources
        scaled = {
            section: {
                key: str(gpus) if key in GPU_RESOURCES else _scaled(key, value, gpus, before)
                for key, value in getattr(resources, section).items()
            }
            for section in ("requests", "limits")
        }
        containers.append(structs.replace(container, resources=structs.replace(resources, **scaled)))
    return _copy(pod, metadata, containers=containers)


def _scaled(name: str, value: str | int | float, gpus: int, before: int) -> str:
    milli = name == "cpu"
    amount = ceil(Fraction(parse_exact(value, _MILLI_PER_UNIT if milli else 1)) * gpus / before)
    return f"{amount}m" if milli else str(amount)


def _member(model: Pod, name: str, index: int, reference: OwnerReference) -> Pod:
    metadata = structs.replace(
        model.metadata,
        name=f"{name}-{index}",
        uid=f"pod/{model.metadata.namespace}/{name}-{index}",
        labels={**model.metadata.labels, JOB_INDEX: str(index)},
        annotations={**model.metadata.annotations, JOB_INDEX: str(index)},
        owner_references=[reference],
    )
    return _copy(model, metadata)


def merge_workloads(name: str, workloads: Sequence[WorkloadCase]) -> WorkloadCase:
    """Return several workloads merged into one, in order of arrival.

    Raises:
        CaseError: two of them contain an arrival of the same name.
    """
    arrivals: dict[str, Arrival] = {}
    for workload in workloads:
        for arrival in workload.arrivals:
            if arrival.name in arrivals:
                problem = f"{arrival.name} is also in {arrivals[arrival.name].source or 'another workload'}"
                raise CaseError(f"{arrival.source or workload.name}: {problem}; rename one")
            arrivals[arrival.name] = arrival
    return WorkloadCase(name, tuple(sorted(arrivals.values(), key=lambda arrival: arrival.at)))
