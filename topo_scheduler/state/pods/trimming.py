"""The parts of a pending pod that are kept: a tenant may write a megabyte into each, and have thousands of them.

Annotations that nothing reads are dropped. Of a pod beyond the caps of `api.pod_caps`, only its identity and its gang
are kept: five thousand affinity terms take three megabytes once they are decoded.
"""

from collections.abc import Collection
from itertools import islice
from typing import Final

import msgspec

from topo_scheduler.api.annotations import GANG_COMPLETE, MAX_UNKNOWN_ANNOTATIONS, with_our_prefix
from topo_scheduler.api.groups import READ_OF_PODS
from topo_scheduler.api.labels import PREFIX
from topo_scheduler.api.objects import ObjectMeta, Pod, PodCondition, PodSpec, PodStatus
from topo_scheduler.state.pods.caps import MAX_ANNOTATIONS, MAX_RESOURCE_CLAIMS, excess

OTHER_ANNOTATIONS_CHARACTERS: Final = 4_096
"""Total characters up to which annotations are kept that only plugins may read when a pod is bound."""
SHORT_CHARACTERS: Final = 256
"""Maximum characters of an annotation that is kept of a refused pod."""
CONDITION_CHARACTERS: Final = 4_096
CONDITIONS: Final = frozenset(("PodScheduled", GANG_COMPLETE))
"""Types of conditions that the scheduler reads of pods without a node."""


def trimmed(pod: Pod, read: Collection[str] = (), *, plugins: bool = False) -> Pod:
    """Return a pending pod without the parts that nothing reads.

    Args:
        pod: a pod without a node; it is not changed.
        read: further annotations that are read.
        plugins: whether plugins may read all annotations when the pod is bound: then short ones are kept.
    """
    if problem := pod.excess or excess(pod):
        return _refused(pod, read, problem)
    meta, status = pod.metadata, pod.status
    annotations = read_annotations(meta.annotations, read, plugins=plugins)
    if annotations != meta.annotations or len(meta.owner_references) > 1:
        owners = [meta.controller] if meta.controller is not None else []
        meta = msgspec.structs.replace(meta, annotations=annotations, owner_references=owners)
    if status.conditions or status.container_statuses or status.init_container_statuses or status.message:
        status = _status(status)
    if meta is pod.metadata and status is pod.status:
        return pod
    return msgspec.structs.replace(pod, metadata=meta, status=status)


def read_annotations(annotations: dict[str, str], read: Collection[str], *, plugins: bool = False) -> dict[str, str]:
    """Return the annotations of a pending pod, or of an owner, without those that nothing reads."""
    if not annotations:
        return annotations
    if plugins and sum(map(len, annotations.values())) <= OTHER_ANNOTATIONS_CHARACTERS:
        return annotations
    kept = {name: value for name, value in annotations.items() if _is_read(name, read)}
    # A warning names these; their values are not read.
    kept |= dict.fromkeys(islice(filter(with_our_prefix, annotations), MAX_UNKNOWN_ANNOTATIONS), "")
    return kept


def _is_read(name: str, read: Collection[str]) -> bool:
    return name.startswith(PREFIX) or name in READ_OF_PODS or name in read


def _status(status: PodStatus) -> PodStatus:
    return PodStatus(
        phase=status.phase,
        reason=status.reason,
        nominated_node_name=status.nominated_node_name,
        conditions=[_condition(condition) for condition in status.conditions if condition.type in CONDITIONS],
        resource_claim_statuses=status.resource_claim_statuses[:MAX_RESOURCE_CLAIMS],
    )


def _condition(condition: PodCondition) -> PodCondition:
    if len(condition.message) <= CONDITION_CHARACTERS:
        return condition
    return msgspec.structs.replace(condition, message=condition.message[:CONDITION_CHARACTERS])


def _refused(pod: Pod, read: Collection[str], problem: str) -> Pod:
    """Return the identity of a pod beyond a cap, with the reason ``problem`` for its refusal."""
    meta, spec = pod.metadata, pod.spec
    short_annotations = [
        (name, value)
        for name, value in meta.annotations.items()
        if len(value) <= SHORT_CHARACTERS and _is_read(name, read)
    ]
    return Pod(
        ObjectMeta(
            name=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            resource_version=meta.resource_version,
            generation=meta.generation,
            creation_timestamp=meta.creation_timestamp,
            deletion_timestamp=meta.deletion_timestamp,
            labels={name: value for name, value in meta.labels.items() if name in READ_OF_PODS},
            annotations=dict(short_annotations[:MAX_ANNOTATIONS]),
            owner_references=[meta.controller] if meta.controller is not None else [],
        ),
        PodSpec(
            scheduler_name=spec.scheduler_name,
            node_name=spec.node_name,
            priority=spec.priority,
            priority_class_name=spec.priority_class_name,
            preemption_policy=spec.preemption_policy,
            termination_grace_period_seconds=spec.termination_grace_period_seconds,
            active_deadline_seconds=spec.active_deadline_seconds,
            restart_policy=spec.restart_policy,
            service_account_name=spec.service_account_name,
        ),
        _status(pod.status),
        problem,
    )
