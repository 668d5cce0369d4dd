"""Substitute members: for pods that were found bound, read from what these say, and for pods that can't be read."""

from math import inf

from topo_scheduler.api.annotations import (
    GANG_COMPLETE,
    GANG_ID,
    GANG_MINIMUM,
    MAX_GANG_PODS,
    RANK,
    RESERVED_BANDWIDTH,
    PlacementRequest,
    written_number,
)
from topo_scheduler.api.groups import GroupApi
from topo_scheduler.api.objects import Pod
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.scheduling.intake.groups import controller_id
from topo_scheduler.scheduling.intake.understand import seconds
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.node_pods import has_pod_maker
from topo_scheduler.state.pods.pod_groups import GroupKey
from topo_scheduler.state.pods.workloads import Member, Stage, Workload


def not_understood(pod: Pod, problem: str, now: float) -> tuple[Workload, Member]:
    """Return a substitute workload and member for a pending pod that can't be read: it is refused with a reason."""
    meta = pod.metadata
    member = Member(
        uid=meta.uid,
        namespace=meta.namespace,
        name=meta.name,
        cls=PodClass(()),
        priority=pod.spec.priority,
        created=0.0,
        enqueued=now,
        controlled=meta.controller is not None,
        problem=problem,
    )
    return Workload(meta.uid, meta.namespace, meta.name, f"Pod {meta.name}", 1, PlacementRequest(), False), member


def ran_complete(pod: Pod) -> bool:
    """Return whether a pod carries the condition that its gang ran complete.

    Any user that may write the pod's status can forge it.
    """
    return any(condition.type == GANG_COMPLETE and condition.status == "True" for condition in pod.status.conditions)


def _bound_at(pod: Pod) -> float:
    """Return when a pod was bound, or at least was created, in seconds since the epoch."""
    bound_at = next(
        (condition.last_transition_time for condition in pod.status.conditions if condition.type == "PodScheduled"),
        None,
    )
    return max(seconds(bound_at), seconds(pod.metadata.creation_timestamp))


def left_at(pod: Pod) -> float:
    """Return when the deletion of a pod was requested, in seconds since the epoch; infinite if it was not."""
    until = seconds_of(pod.metadata.deletion_timestamp)
    return inf if until is None else until - (pod.metadata.deletion_grace_period_seconds or 0)


def take_over(member: Member, earlier: Member) -> None:
    """Take over what tells whether the gang of a bound member ran complete."""
    member.rank, member.marked, member.recorded_size = earlier.rank, earlier.marked, earlier.recorded_size
    member.bound_at, member.left_at = earlier.bound_at, earlier.left_at


def gang_of(pod: Pod) -> str:
    """Return the id of the gang with which a pod was bound, by its own annotation; empty for none."""
    gang, controller = pod.metadata.annotations.get(GANG_ID, ""), pod.metadata.controller
    if controller is not None and gang == controller.uid:
        gang = controller_id(pod, controller)  # earlier versions wrote only the uid
    # A tenant can write any annotation: a pod can only join gangs of its own namespace.
    return gang if gang.startswith(f"{pod.metadata.namespace}/") else ""


def found_bound(pod: Pod, gang: str) -> tuple[Workload, Member]:
    """Return a substitute workload and member for a gang's pod that was found bound, for example after a restart."""
    controller = pod.metadata.controller
    annotations = pod.metadata.annotations
    rank = written_number(annotations, RANK)
    size = min(MAX_GANG_PODS, written_number(annotations, GANG_MINIMUM) or 0)
    member = Member(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        cls=PodClass(()),
        priority=pod.spec.priority,
        created=seconds(pod.metadata.creation_timestamp),
        enqueued=0.0,
        controlled=controller is not None,
        recreated=has_pod_maker(pod.metadata),  # its controller is read before the pod is moved
        stage=Stage.BOUND,
        node=pod.spec.node_name,
        bound_at=_bound_at(pod),
        left_at=left_at(pod),
        rank=-1 if rank is None else rank,
        marked=ran_complete(pod),
        recorded_size=size,
        bandwidth=written_number(annotations, RESERVED_BANDWIDTH) or 0,
        # It is not known yet whether its PodGroup has subgroups.
        labels=pod.metadata.labels if (key := GroupKey.parse(gang)) and key.api is GroupApi.VOLCANO else None,
    )
    name = controller.name if controller else gang.rpartition("/")[2]
    made_by = f"{controller.kind} {controller.name}" if controller else f"Pod {pod.metadata.name}"
    return Workload(gang, pod.metadata.namespace, name, made_by, max(1, size), PlacementRequest(), True), member
