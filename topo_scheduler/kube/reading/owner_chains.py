"""Owners of pods as values: links of a chain, answers about them, and the comparison of references with objects."""

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from topo_scheduler.api.objects import ConditionStatus, Job, OwnerReference
from topo_scheduler.kube.connection.resources import Object, Resource
from topo_scheduler.kube.reading.slimming import MAX_OWNER_CHARACTERS, slim
from topo_scheduler.state.pods.trimming import read_annotations

_OVER: Final = frozenset(("SuccessCriteriaMet", "Complete", "FailureTarget", "Failed"))
"""Conditions of a Job that runs no more pods."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """A link of a chain. ``job`` is set for Jobs, whose size is part of the resource request."""

    kind: str
    api_version: str
    namespace: str
    name: str
    uid: str
    annotations: Mapping[str, str] = field(repr=False)
    controller: OwnerReference | None = None
    job: Job | None = field(default=None, repr=False)
    deleting: bool = False
    """Whether it has a deletionTimestamp."""
    unreadable: str = ""
    """Why the owner can no longer be read, and what to do; the other fields keep their last known values."""

    halted: str = ""
    """Why it runs no pods, by its own object, if that was read; its watch does not report it."""

    @property
    def reference(self) -> OwnerReference:
        """The reference that objects below it have."""
        return OwnerReference(self.api_version, self.kind, self.name, self.uid)

    @property
    def stopped(self) -> str:
        """Why its controller deletes the pods below it although the owner stays; empty where it does not."""
        return _stopped(self.job) if self.job is not None else self.halted

    def differs(self, other: "ChainLink") -> bool:
        """Return whether a field that a placement may depend on has changed."""
        return (
            self.annotations != other.annotations
            or self.controller != other.controller
            or self.deleting != other.deleting
            or bool(self.unreadable) != bool(other.unreadable)
            or self.stopped != other.stopped
            or _size(self.job) != _size(other.job)
        )


@dataclass(frozen=True, slots=True)
class Chain:
    """All existing owners, nearest first. ``broken`` gives the reason why the last one's own owner is missing."""

    owners: tuple[ChainLink, ...] = ()
    broken: str = ""
    forbidden: bool = False
    """Whether the chain is broken for lack of a permission, which deserves a Warning to the user."""
    gone: str = ""
    """Which owner was deleted, is being deleted, suspended, or done: the pods below it are deleted next."""
    deleted: str = ""
    """Like ``gone``, but only for owners that were deleted or are being deleted."""
    unconfirmed: bool = False
    """Whether the chain is broken because nothing proves that an owner exists, as where its kind is not served."""
    unread: str = ""
    """Why the data of an owner may be outdated: it was read once, and can't be read any more."""

    @property
    def complaint(self) -> str:
        """The reason for a Warning to the user: the scheduler lacks permission to read an owner."""
        return self.unread or (self.broken if self.forbidden else "")

    @property
    def doubt(self) -> str:
        """Why the workload of the pods below is unknown; empty where all owners are known."""
        return self.unread or self.broken


@dataclass(frozen=True, slots=True)
class Missing:
    """An owner without a known answer yet: ``fetch`` it."""

    namespace: str
    reference: OwnerReference


@dataclass(frozen=True, slots=True)
class Unconfirmed:
    """Why the owners of an object could not be read in time: no answer, or a right is missing."""

    reason: str


@dataclass(frozen=True, slots=True)
class Absent:
    """The server's answer for an owner that does not exist, or that the scheduler may not read."""

    reason: str
    forbidden: bool = False
    gone: bool = False
    """Whether it was deleted. A uid never comes back, so this answer is final unless its kind is not served."""
    unserved: bool = False
    """Whether the API server does not serve its kind: not yet, or no longer."""


Key = tuple[str, str, str, str, str]
"""Namespace, group, kind, name and uid."""


def owner_of(resource: Resource[Any], item: Object, read: Collection[str] = ()) -> ChainLink:
    """Convert an object of the API server to an owner. ``read``: annotations that are read beside our own."""
    metadata = item.metadata
    metadata.annotations = read_annotations(metadata.annotations, read)
    metadata.labels = {}
    slim(metadata, MAX_OWNER_CHARACTERS)
    return ChainLink(
        resource.kind,
        resource.api_version,
        sys.intern(metadata.namespace),
        metadata.name,
        metadata.uid,
        metadata.annotations,
        metadata.controller,
        _slimmed(item) if isinstance(item, Job) else None,
        metadata.deletion_timestamp is not None,
    )


def _slimmed(job: Job) -> Job:
    """Keep only the conditions of a Job that mark it as over, and of its failed indexes only their number."""
    job.status.conditions = [
        ConditionStatus(condition.type, condition.status)
        for condition in job.status.conditions
        if condition.type in _OVER
    ][: len(_OVER)]
    count = job.status.failed_index_count
    job.status.failed_indexes = f"0-{count - 1}" if count else ""
    return job


def is_meant(owner: ChainLink, namespace: str, reference: OwnerReference) -> bool:
    """Return whether an owner matches a reference from this namespace in everything but the uid."""
    return (
        owner.kind == reference.kind
        and owner.name == reference.name
        and owner.namespace in ("", namespace)
        and owner.api_version.rpartition("/")[0] == group_kind(reference)[0]
    )


def key_of(namespace: str, reference: OwnerReference) -> Key:
    """Return all parts of a reference: the answer for one that borrows a uid must not be that for the uid's owner."""
    return namespace, *named(reference), reference.uid


def named(item: OwnerReference | ChainLink) -> tuple[str, str, str]:
    """Return group, kind and name."""
    return item.api_version.rpartition("/")[0], item.kind, item.name


def changed(before: ChainLink | Absent, after: ChainLink | Absent) -> bool:
    """Return whether two answers for one reference differ in anything a placement may depend on."""
    if isinstance(before, ChainLink) and isinstance(after, ChainLink):
        return before.differs(after)
    if isinstance(before, Absent) and isinstance(after, Absent):
        return before.gone != after.gone
    return True


def _stopped(job: Job) -> str:
    if job.spec.suspend:
        return f"Job {job.metadata.name} is suspended (spec.suspend)"
    if job.spec.parallelism == 0:
        return f"Job {job.metadata.name} has a parallelism of 0"
    over = next(
        (
            condition.type
            for condition in job.status.conditions
            if condition.status == "True" and condition.type in _OVER
        ),
        "",
    )
    return f"Job {job.metadata.name} has the condition {over}" if over else ""


def _size(job: Job | None) -> tuple[object, ...] | None:
    if job is None:
        return None
    deadline = job.spec.active_deadline_seconds
    limit = () if deadline is None else (deadline, job.status.start_time)
    status = job.status
    return (job.spec.parallelism, job.spec.completions, status.succeeded, status.failed_indexes, *limit)


def group_kind(reference: OwnerReference) -> tuple[str, str]:
    """Return group and kind."""
    return reference.api_version.rpartition("/")[0], reference.kind


def described(reference: OwnerReference) -> str:
    """Return kind and name, as messages show them."""
    return f"{reference.kind} {reference.name}"
