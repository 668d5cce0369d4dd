"""Pods and their owners as an API server would tell of them in the course of a simulation."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from topo_scheduler.api.objects import Job, PartialObject, Pod, PodStatus
from topo_scheduler.kube.times import micro_time
from topo_scheduler.scheduling.instructions import Bind
from topo_scheduler.scheduling.intake.understand import Lineage

EPOCH: Final = 1_700_000_000
"""When simulations begin, in seconds since 1970: any moment will do, as long as it is always the same."""
_LAST: Final = 253_402_300_799
"""The last second of the year 9999: when queues of long jobs last longer, moments are no longer told apart."""
_DEPTH: Final = 8


@lru_cache(maxsize=64)
def timestamp(seconds: float) -> str:
    """Return a Kubernetes timestamp of so many seconds after the start."""
    return micro_time(min(EPOCH + seconds, _LAST))


def arriving(pod: Pod, scheduler: str, at: float, annotations: Mapping[str, str], uid: str) -> Pod:
    """Return a pod as it appears: nobody has placed it, and it is ours to place."""
    meta = replace(
        pod.metadata,
        uid=uid,
        creation_timestamp=timestamp(at),
        deletion_timestamp=None,
        annotations=dict(annotations),
    )
    return Pod(metadata=meta, spec=replace(pod.spec, scheduler_name=scheduler, node_name=""), status=PodStatus())


def bound(pod: Pod, bind: Bind, at: float) -> Pod:
    """Return a pod as it is once its Binding was written and its node runs it."""
    meta = replace(pod.metadata, annotations={**pod.metadata.annotations, **bind.annotations})
    status = PodStatus(phase="Running", start_time=timestamp(at))
    return Pod(metadata=meta, spec=replace(pod.spec, node_name=bind.node), status=status)


def ended(pod: Pod) -> Pod:
    """Return a pod that ran, as it is once it has succeeded."""
    return Pod(metadata=pod.metadata, spec=pod.spec, status=replace(pod.status, phase="Succeeded"))


def going(pod: Pod, at: float) -> Pod:
    """Return a pod that ran, as it is once it was evicted."""
    return Pod(metadata=replace(pod.metadata, deletion_timestamp=timestamp(at)), spec=pod.spec, status=pod.status)


@dataclass(frozen=True, slots=True)
class OwnerLink:
    """One object of the chain above a pod."""

    kind: str
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str]
    job: Job | None


Annotations = Callable[[Mapping[str, str]], Mapping[str, str]]
"""Returns the annotations that a policy understands, of all that an object carries."""


class Owners:
    """Owners by uid, and the chain above each pod."""

    def __init__(self, annotations: Annotations = dict) -> None:
        """``annotations``: those of owners that the policy understands."""
        self._annotations = annotations
        self._owners: dict[str, Job | PartialObject] = {}

    def add(self, owners: Mapping[str, Job | PartialObject]) -> None:
        """Make owners known."""
        self._owners.update(owners)

    def drop(self, uids: Iterable[str]) -> None:
        """Forget owners of which nobody is left."""
        for uid in uids:
            self._owners.pop(uid, None)

    def resolve(self, pod: Pod) -> Lineage:
        """Return the owners of a pod, nearest first, as far as they are known."""
        found: list[OwnerLink] = []
        reference = pod.metadata.controller
        while reference is not None and len(found) < _DEPTH:
            owner = self._owners.get(reference.uid)
            if owner is None:
                break
            meta = owner.metadata
            job = owner if isinstance(owner, Job) else None
            said = self._annotations(meta.annotations)
            found.append(OwnerLink(reference.kind, meta.namespace, meta.name, meta.uid, said, job))
            reference = meta.controller
        return Lineage(found)
