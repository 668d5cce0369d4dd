"""Pods and their owners as an API server would return them in the course of a simulation."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from topo_scheduler.api.objects import Job, OwnerReference, PartialObject, Pod, PodStatus
from topo_scheduler.kube.connection.times import micro_time
from topo_scheduler.recording.lines import RecordedOwner
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.scheduling.intake.understand import Lineage

EPOCH_SECONDS: Final = 1_700_000_000
"""Start of every simulation, in seconds since 1970; an arbitrary constant."""
_MAX_TIME_SECONDS: Final = 253_402_300_799
"""The last second of the year 9999, the end of Kubernetes timestamps; later times are shown as this one."""
_MAX_OWNERS: Final = 8


@lru_cache(maxsize=64)
def timestamp(seconds: float) -> str:
    """Return the Kubernetes timestamp of a time in seconds after the start."""
    return micro_time(min(EPOCH_SECONDS + seconds, _MAX_TIME_SECONDS))


def pending_pod(pod: Pod, scheduler: str, at: float, annotations: Mapping[str, str], uid: str) -> Pod:
    """Return a pod as it is created: pending, with the simulated scheduler as its scheduler."""
    meta = replace(
        pod.metadata,
        uid=uid,
        creation_timestamp=timestamp(at),
        deletion_timestamp=None,
        annotations=dict(annotations),
    )
    return Pod(metadata=meta, spec=replace(pod.spec, scheduler_name=scheduler, node_name=""), status=PodStatus())


def bound_pod(pod: Pod, bind: Bind, at: float) -> Pod:
    """Return a pod after its bind, running on its node."""
    meta = replace(pod.metadata, annotations={**pod.metadata.annotations, **bind.annotations})
    status = replace(pod.status, phase="Running", start_time=timestamp(at))
    return Pod(metadata=meta, spec=replace(pod.spec, node_name=bind.node), status=status)


def succeeded_pod(pod: Pod) -> Pod:
    """Return a running pod after it has succeeded."""
    return Pod(metadata=pod.metadata, spec=pod.spec, status=replace(pod.status, phase="Succeeded"))


def terminating_pod(pod: Pod, at: float) -> Pod:
    """Return a running pod after its eviction: it is terminating."""
    return Pod(metadata=replace(pod.metadata, deletion_timestamp=timestamp(at)), spec=pod.spec, status=pod.status)


Annotations = Callable[[Mapping[str, str]], dict[str, str]]
"""Returns those annotations of an object that a policy understands."""


class Owners:
    """Owners by uid; resolves the chain of controllers of a pod."""

    def __init__(self, annotations: Annotations = dict) -> None:
        """Create an empty set; ``annotations`` selects those of owners that the policy understands."""
        self._annotations = annotations
        self._owners: dict[str, Job | PartialObject] = {}

    def add(self, owners: Mapping[str, Job | PartialObject]) -> None:
        """Add owners."""
        self._owners.update(owners)

    def drop(self, uids: Iterable[str]) -> None:
        """Remove owners that have no pods any more."""
        for uid in uids:
            self._owners.pop(uid, None)

    def missing(self, pod: Pod) -> str:
        """Return kind, namespace and name of the owner above a pod that is not known; empty if all are."""
        for reference, owner in self._chain(pod):
            if owner is None:
                return f"{reference.kind} {pod.metadata.namespace}/{reference.name}"
        return ""

    def resolve(self, pod: Pod) -> Lineage:
        """Return the known owners of a pod, nearest first."""
        links: list[RecordedOwner] = []
        for reference, owner in self._chain(pod):
            if owner is None:
                break
            meta = owner.metadata
            job = owner if isinstance(owner, Job) else None
            annotations = self._annotations(meta.annotations)
            links.append(RecordedOwner(reference.kind, meta.namespace, meta.name, meta.uid, annotations, job))
        return Lineage(links)

    def _chain(self, pod: Pod) -> Iterator[tuple[OwnerReference, Job | PartialObject | None]]:
        """Yield the owners above a pod, nearest first; one that is not known is None, and the last."""
        reference, depth = pod.metadata.controller, 0
        while reference is not None and depth < _MAX_OWNERS:
            owner = self._owners.get(reference.uid)
            yield reference, owner
            reference, depth = None if owner is None else owner.metadata.controller, depth + 1
