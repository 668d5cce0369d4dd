"""The protocol of FGD's authors: pods arrive in a shuffled order until so much is asked, and nobody leaves.

The list is shuffled, then some of it comes again, until the GPUs asked for are a stated share of those there are.
Source: Weng et al., "Beware of Fragmentation", USENIX ATC 2023, section 6.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from msgspec import structs

from topo_scheduler.api.annotations import GANG_NAME
from topo_scheduler.api.labels import GPU_RESOURCES
from topo_scheduler.api.objects import Job, PartialObject, Pod
from topo_scheduler.scheduling.intake.understand import understand
from topo_scheduler.simulation.cases.model import Arrival, CaseError, WorkloadCase
from topo_scheduler.simulation.virtual.objects import Owners
from topo_scheduler.state.resources import ResourceTable
from topo_scheduler.state.typical import Kind, Popular, kind_of, popular


@dataclass(frozen=True, slots=True)
class Asked:
    """What the workloads of a case ask for: thousandths of GPUs of each, and how many pods of each kind there are."""

    milli: tuple[int, ...]
    kinds: Mapping[Kind, int]

    @property
    def typical(self) -> Popular:
        """The typical pods of the whole case."""
        return popular(self.kinds)


def asked_of(workload: WorkloadCase) -> Asked:
    """Return what workloads ask for, as the scheduler understands them."""
    resources, milli, kinds = ResourceTable(GPU_RESOURCES), [], Counter[Kind]()
    for arrival in workload.arrivals:
        owners = Owners()
        owners.add(arrival.owners)
        total = 0
        for pod in arrival.pods:
            cls = understand(pod, owners.resolve(pod), resources, 0.0).member.cls
            total += 1000 * cls.gpus + cls.share
            kinds[kind_of(dict(cls.amounts), cls.models)] += 1
        milli.append(total)
    return Asked(tuple(milli), kinds)


def filled(workload: WorkloadCase, asked: Asked, capacity: int, share: float, seed: int) -> list[Arrival]:
    """Return the workloads in a shuffled order, then some of them again, until so much is asked.

    Args:
        workload: the list.
        asked: what it asks for.
        capacity: thousandths of GPUs that the cluster has.
        share: GPUs asked for in the end, as a share of those there are.
        seed: of the shuffle and of what comes again.

    Raises:
        CaseError: nothing asks for GPUs, or the cluster has none, or workloads can't come twice.
    """
    if not capacity:
        raise CaseError("--fill: the cluster has no GPUs; fill is a share of them. Leave --fill out")
    if not any(asked.milli):
        raise CaseError(f"--fill: nothing in workload {workload.name} asks for GPUs; leave --fill out")
    if grouped := next((one for one in workload.arrivals if one.groups), None):
        raise CaseError(
            f"--fill: {grouped.source or grouped.name}: it is in a PodGroup, and can't come a second time; leave --fill"
            " out, or group its pods by annotation"
        )
    draw, order = Random(seed), list(range(len(workload.arrivals)))
    draw.shuffle(order)
    found: list[Arrival] = []
    total = 0
    while True:
        again = len(found) >= len(order)
        number = draw.choice(order) if again else order[len(found)]
        if again and total + asked.milli[number] > share * capacity:
            return found
        arrival = workload.arrivals[number]
        found.append(_again(arrival, f"-again-{len(found)}") if again else arrival)
        total += asked.milli[number]


def _again(arrival: Arrival, suffix: str) -> Arrival:
    """Return a workload once more, as another of the same kind."""
    owners = {f"{uid}{suffix}": _owner_again(owner, suffix) for uid, owner in arrival.owners.items()}
    pods = tuple(_pod_again(pod, suffix, arrival.owners) for pod in arrival.pods)
    return replace(arrival, name=f"{arrival.name}{suffix}", pods=pods, owners=owners)


def _pod_again(pod: Pod, suffix: str, owners: Mapping[str, object]) -> Pod:
    meta = pod.metadata
    told = dict(meta.annotations)
    if GANG_NAME in told:
        told[GANG_NAME] += suffix
    references = [
        structs.replace(one, uid=f"{one.uid}{suffix}", name=f"{one.name}{suffix}") if one.uid in owners else one
        for one in meta.owner_references
    ]
    meta = structs.replace(
        meta, name=f"{meta.name}{suffix}", uid=f"{meta.uid}{suffix}", annotations=told, owner_references=references
    )
    return Pod(metadata=meta, spec=pod.spec, status=pod.status)


def _owner_again(owner: Job | PartialObject, suffix: str) -> Job | PartialObject:
    meta = owner.metadata
    told = dict(meta.annotations)
    if GANG_NAME in told:
        told[GANG_NAME] += suffix
    references: Sequence[object] = [
        structs.replace(one, uid=f"{one.uid}{suffix}", name=f"{one.name}{suffix}") for one in meta.owner_references
    ]
    meta = structs.replace(
        meta, name=f"{meta.name}{suffix}", uid=f"{meta.uid}{suffix}", annotations=told, owner_references=references
    )
    return structs.replace(owner, metadata=meta)
