"""What can be done to a workload: as functions from one to another, none of which changes what it was given."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from typing import Final

from msgspec import structs

from topo_scheduler.api.annotations import GANG_NAME, GANG_SIZE, GPU_COUNT
from topo_scheduler.api.fractions import WHOLE
from topo_scheduler.api.groups import JOB_INDEX
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Job, ObjectMeta, OwnerReference, PartialObject, Pod
from topo_scheduler.api.quantity import parse_exact
from topo_scheduler.simulation.cases.amounts import arrival_milli, capacity_milli, node_milli, pod_milli
from topo_scheduler.simulation.cases.making import make_job, shape
from topo_scheduler.simulation.cases.model import Arrival, CaseError, ClusterCase, WorkloadCase

_MILLI: Final = 1000


def offered_load(workload: WorkloadCase, cluster: ClusterCase) -> float:
    """Return the GPU-seconds that a workload asks for, by those the cluster has from the first arrival to the last.

    Raises:
        CaseError: a workload runs for ever, or nothing arrives later than the first.
    """
    asked = 0.0
    for one in workload.arrivals:
        if one.seconds is None:
            raise CaseError(f"{one.source or one.name}: {one.name} runs for ever, so there is no load; say how long")
        asked += arrival_milli(one) * one.seconds
    span = _span(workload)
    capacity = capacity_milli(cluster.nodes)
    if not span or not capacity:
        what = "everything arrives at once" if capacity else "the cluster has no GPUs"
        raise CaseError(f"{workload.name}: {what}, so there is no load; leave load out")
    return asked / (capacity * span)


def _span(workload: WorkloadCase) -> float:
    """Return the seconds from the first arrival to the last."""
    return workload.arrivals[-1].at - workload.arrivals[0].at if workload.arrivals else 0.0


def with_load(workload: WorkloadCase, cluster: ClusterCase, load: float) -> WorkloadCase:
    """Return the workload with arrivals closer together, or farther apart, until it offers so much load.

    Raises:
        CaseError: as `offered_load`, or it asks for no GPUs.
    """
    pace = offered_load(workload, cluster) / load
    if not pace:
        raise CaseError(f"{workload.name}: it asks for no GPUs, so there is no load; leave load out")
    return replace(workload, arrivals=tuple(replace(one, at=round(one.at * pace, 3)) for one in workload.arrivals))


def first(workload: WorkloadCase, count: int) -> WorkloadCase:
    """Return the workloads that arrive first, so many of them."""
    return replace(workload, arrivals=workload.arrivals[:count])


def at_most(workload: WorkloadCase, gpus: int) -> WorkloadCase:
    """Return the workload without what asks for more GPUs."""
    kept = tuple(one for one in workload.arrivals if arrival_milli(one) <= gpus * WHOLE)
    if workload.arrivals and not kept:
        raise CaseError(f"{workload.name}: everything asks for more than {gpus} GPUs; raise at-most")
    return replace(workload, arrivals=kept)


def repeated(workload: WorkloadCase, times: int) -> WorkloadCase:
    """Return the workload so many times, one after the other: the next begins a mean gap behind the last arrival."""
    arrivals, span = workload.arrivals, _span(workload)
    period = span + span / max(1, len(arrivals) - 1)
    found = [*arrivals]
    for round_ in range(1, times):
        found += [again(one, f"run-{round_ + 1}", at=round(one.at + round_ * period, 3)) for one in arrivals]
    return replace(workload, arrivals=tuple(found))


def fill(
    workload: WorkloadCase, capacity: int, ratio: float, seed: int, asked_for: Sequence[int] | None = None
) -> WorkloadCase:
    """Return the workload as an order in which a cluster is filled until so much is asked; nobody leaves.

    This is what the tools of FGD's authors do (``TunePodsByNodeTotalResource``): sort by name, shuffle, then append
    again what is drawn at random, with its name changed, until the next would ask for more than the share. They add
    whole pods and compare with what the pod asks of *one* GPU, so the last may reach beyond; where the shuffled list
    already asks for more, what is drawn is taken away. One arrives each second.

    Args:
        workload: whose times don't matter.
        capacity: thousandths of GPUs that the cluster has.
        ratio: of the GPUs asked for to those there are.
        seed: of the random numbers.
        asked_for: thousandths of GPUs that each workload asks for; counted by requests and annotations by default.

    Raises:
        CaseError: nothing asks for a GPU, or the cluster has none.
    """
    draw = random.Random(seed)
    by_name = sorted(workload.arrivals, key=lambda one: one.name)
    counted = asked_for if asked_for is not None else [arrival_milli(one) for one in workload.arrivals]
    asked = {one.name: milli for one, milli in zip(workload.arrivals, counted, strict=True)}
    target = ratio * capacity
    total = sum(asked.values())
    if not total or not target:
        what = "nothing asks for a GPU" if target else "the cluster has no GPUs"
        raise CaseError(f"{workload.name}: {what}, so it can't be filled; leave fill out")
    order = list(by_name)
    draw.shuffle(order)
    if total > target:
        while total > target:
            total -= asked[order.pop(draw.randrange(len(order))).name]
    elif total < target:
        order += _drawn(by_name, asked, target - total, draw)
    return replace(workload, arrivals=tuple(replace(one, at=float(at), seconds=None) for at, one in enumerate(order)))


def _drawn(arrivals: Sequence[Arrival], asked: Mapping[str, int], room: float, draw: random.Random) -> list[Arrival]:
    """Return copies of what is drawn, until the next has no room: of a pod alone, one of its GPUs."""
    found: list[Arrival] = []
    while True:
        one = arrivals[draw.randrange(len(arrivals))]
        milli = asked[one.name]
        if (min(milli, WHOLE) if len(one.pods) == 1 else milli) > room:
            return found
        room -= milli
        found.append(again(one, f"tuned-{len(found)}"))


# ---------------------------------------------------------------- copies


def again(one: Arrival, mark: str, *, at: float | None = None) -> Arrival:
    """Return a workload once more under other names, with a mark behind them.

    Args:
        one: which.
        mark: what makes its names differ from all others.
        at: when it arrives, the same moment by default.
    """
    owners: dict[str, Job | PartialObject] = {}
    for uid, owner in one.owners.items():
        marked = structs.replace(owner, metadata=_marked(owner, mark, one.owners))
        owners[f"{uid}-{mark}"] = marked
    pods = tuple(_pod_again(pod, mark, one.owners) for pod in one.pods)
    groups = tuple(
        replace(group, key=replace(group.key, name=f"{group.key.name}-{mark}"), uid=f"{group.uid}-{mark}")
        for group in one.groups
    )
    if groups:
        for pod in pods:
            _rename_group(pod, {group.key.name: f"{group.key.name}-{mark}" for group in one.groups})
    moment = one.at if at is None else at
    return replace(one, name=f"{one.name}-{mark}", at=moment, pods=pods, owners=owners, groups=groups)


def _marked(obj: Pod | Job | PartialObject, mark: str, owners: Mapping[str, object]) -> ObjectMeta:
    metadata = obj.metadata
    return structs.replace(
        metadata,
        name=f"{metadata.name}-{mark}",
        uid=f"{metadata.uid}-{mark}",
        annotations={
            key: f"{value}-{mark}" if key == GANG_NAME else value for key, value in metadata.annotations.items()
        },
        owner_references=[
            structs.replace(ref, name=f"{ref.name}-{mark}", uid=f"{ref.uid}-{mark}") if ref.uid in owners else ref
            for ref in metadata.owner_references
        ],
    )


def _pod_again(pod: Pod, mark: str, owners: Mapping[str, object]) -> Pod:
    return structs.replace(
        pod,
        metadata=_marked(pod, mark, owners),
        spec=structs.replace(pod.spec),
        status=structs.replace(pod.status),
    )


def _rename_group(pod: Pod, names: Mapping[str, str]) -> None:
    metadata, spec = pod.metadata, pod.spec
    metadata.labels = {key: names.get(value, value) for key, value in metadata.labels.items()}
    metadata.annotations = {key: names.get(value, value) for key, value in metadata.annotations.items()}
    if spec.scheduling_group is not None:
        spec.scheduling_group = {key: names.get(value, value) for key, value in spec.scheduling_group.items()}


# ---------------------------------------------------------------- larger gangs


def larger(workload: WorkloadCase, cluster: ClusterCase | None, factor: int) -> WorkloadCase:
    """Return the workload with so many times the GPUs in every job: pods as large as nodes can hold, then more of them.

    What asks for no whole GPU stays as it is.

    Raises:
        CaseError: a workload has pods that are not alike, so that it is not known which to make more of.
    """
    node_gpus = max((node_milli(node) // WHOLE for node in cluster.nodes), default=0) if cluster else 0
    return replace(workload, arrivals=tuple(_larger(one, factor, max(1, node_gpus or 8)) for one in workload.arrivals))


def _larger(one: Arrival, factor: int, node_gpus: int) -> Arrival:
    each = pod_milli(one.pods[0]) // WHOLE
    if not each:
        return one
    if any(pod_milli(pod) != each * WHOLE for pod in one.pods) or one.groups:
        raise CaseError(
            f"{one.source or one.name}: the pods of {one.name} are not alike, or are a PodGroup, so that they can't be"
            " multiplied; leave gangs out, or the workload"
        )
    members, gpus = shape(each * len(one.pods) * factor, node_gpus)
    model = _sized(one.pods[0], each, gpus)
    if members == 1:
        return replace(one, pods=(model,), owners={})
    base = one.pods[0].metadata.controller
    name = base.name if base is not None else one.pods[0].metadata.name
    told = {key: value for owner in one.owners.values() for key, value in owner.metadata.annotations.items()}
    told = {key: value for key, value in told.items() if key not in (GPU_COUNT, GANG_SIZE)}
    job, reference = make_job(name, members, told, model.metadata.namespace)
    pods = tuple(_member(model, name, index, reference) for index in range(members))
    return replace(one, pods=pods, owners={job.metadata.uid: job})


def _sized(pod: Pod, before: int, gpus: int) -> Pod:
    """Return a pod with so many GPUs, and as much more of everything else."""
    annotations = {
        key: value for key, value in pod.metadata.annotations.items() if key not in (GPU_COUNT, GANG_SIZE, GANG_NAME)
    }
    metadata = structs.replace(pod.metadata, annotations=annotations)
    containers = []
    for container in pod.spec.containers:
        resources = container.resources
        scaled = {
            part: {
                key: str(gpus) if key in GPU_RESOURCES else _scaled(key, value, gpus, before)
                for key, value in getattr(resources, part).items()
            }
            for part in ("requests", "limits")
        }
        containers.append(structs.replace(container, resources=structs.replace(resources, **scaled)))
    spec = structs.replace(pod.spec, containers=containers)
    return structs.replace(pod, metadata=metadata, spec=spec, status=structs.replace(pod.status))


def _scaled(name: str, value: str | int | float, gpus: int, before: int) -> str:
    milli = name == "cpu"
    amount = ceil(Fraction(parse_exact(value, _MILLI if milli else 1)) * gpus / before)
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
    return structs.replace(
        model, metadata=metadata, spec=structs.replace(model.spec), status=structs.replace(model.status)
    )


def merged(name: str, workloads: Sequence[WorkloadCase]) -> WorkloadCase:
    """Return several workloads as one, in order of arrival.

    Raises:
        CaseError: two have a workload of one name.
    """
    found: dict[str, Arrival] = {}
    for workload in workloads:
        for one in workload.arrivals:
            if one.name in found:
                told = f"{one.name} is also in {found[one.name].source or 'another workload'}"
                raise CaseError(f"{one.source or workload.name}: {told}; rename one")
            found[one.name] = one
    return WorkloadCase(name, tuple(sorted(found.values(), key=lambda one: one.at)))
