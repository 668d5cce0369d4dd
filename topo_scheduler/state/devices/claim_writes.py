"""Writes of claims: protect, allocate, reserve and release."""

from dataclasses import dataclass

import msgspec

from topo_scheduler.api.devices import DELETE_PROTECTION, Allocation, Consumer, ResourceClaim
from topo_scheduler.state.devices.inventory import ClaimKey


@dataclass(frozen=True, slots=True)
class ClaimChoice:
    """A claim of a decided pod. ``allocation``: its devices, None if it is allocated already and only reserved."""

    key: ClaimKey
    uid: str
    allocation: Allocation | None


@dataclass(frozen=True, slots=True)
class AllocateClaim:
    """A write that allocates a claim and reserves it for a pod.

    Attributes:
        key: namespace and name.
        uid: the claim's.
        version: its resourceVersion at the decision.
        finalizers: those it has.
        allocation: the devices; None if it is allocated already.
        reserved_for: the pods that it is reserved for already.
        pod: the pod to reserve it for.
    """

    key: ClaimKey
    uid: str
    version: str
    finalizers: tuple[str, ...]
    allocation: Allocation | None
    reserved_for: tuple[Consumer, ...]
    pod: Consumer


@dataclass(frozen=True, slots=True)
class ProtectClaim:
    """A write of the finalizer alone, for a pod that waits: its allocation is then one write and not two.

    Kubernetes removes the finalizer of a claim that is deleted, whether or not it was ever allocated.
    """

    key: ClaimKey
    uid: str
    version: str
    finalizers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReleaseClaim:
    """A write that takes back the allocation of a claim whose pod will not be bound with it."""

    key: ClaimKey
    uid: str
    version: str
    finalizers: tuple[str, ...]


ClaimWrite = AllocateClaim | ProtectClaim | ReleaseClaim


def after(write: ClaimWrite, claim: ResourceClaim) -> ResourceClaim:
    """Return a claim as the API server has it after a write."""
    status = claim.status
    if isinstance(write, ReleaseClaim):
        finalizers = [name for name in claim.metadata.finalizers if name != DELETE_PROTECTION]
        status = msgspec.structs.replace(status, allocation=None, reserved_for=[])
    else:
        finalizers = sorted({*claim.metadata.finalizers, DELETE_PROTECTION})
    if isinstance(write, AllocateClaim):
        allocation = write.allocation or status.allocation
        status = msgspec.structs.replace(status, allocation=allocation, reserved_for=[*status.reserved_for, write.pod])
    metadata = msgspec.structs.replace(claim.metadata, finalizers=finalizers)
    return msgspec.structs.replace(claim, metadata=metadata, status=status)


def release_of(key: ClaimKey, claim: ResourceClaim) -> ReleaseClaim:
    """Return the write that releases a claim as it is now."""
    meta = claim.metadata
    return ReleaseClaim(key, meta.uid, meta.resource_version, tuple(meta.finalizers))


def consumer(name: str, uid: str) -> Consumer:
    """Return the entry of ``reservedFor`` for a pod."""
    return Consumer(resource="pods", name=name, uid=uid)
