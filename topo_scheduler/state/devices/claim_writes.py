"""Writes of claims: protect, allocate, reserve and release."""

from dataclasses import dataclass

import msgspec

from topo_scheduler.api.devices import (
    DELETE_PROTECTION,
    EXTENDED_RESOURCE_CLAIM,
    Allocation,
    ClaimMetadata,
    Consumer,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from topo_scheduler.api.objects import OwnerReference
from topo_scheduler.state.devices.extended_resources import RequestMapping, extended_claim_base
from topo_scheduler.state.devices.inventory import ClaimKey


@dataclass(frozen=True, slots=True)
class ExtendedClaim:
    """A claim that the scheduler makes for extended resources of a pod, and which container gets which request."""

    spec: ResourceClaimSpec
    mappings: tuple[RequestMapping, ...]


@dataclass(frozen=True, slots=True)
class ClaimChoice:
    """A claim of a decided pod.

    ``allocation``: its devices, None if it is allocated already and only reserved. ``made``: what the scheduler makes
    first, for extended resources; its uid is not known yet.
    """

    key: ClaimKey
    uid: str
    allocation: Allocation | None
    made: ExtendedClaim | None = None


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


@dataclass(frozen=True, slots=True)
class CreateClaim:
    """A write that makes the claim for a pod's extended resources, allocates it, and records it in the pod's status."""

    key: ClaimKey
    claim: ExtendedClaim
    allocation: Allocation
    pod: Consumer


@dataclass(frozen=True, slots=True)
class DeleteClaim:
    """A write that removes the claim for the extended resources of a pod which will not be bound with it.

    ``uid``: the claim's, empty if only the status of the pod names it. ``finalizers``: those it has.
    """

    key: ClaimKey
    uid: str
    version: str
    finalizers: tuple[str, ...]
    pod: Consumer


ClaimWrite = AllocateClaim | ProtectClaim | ReleaseClaim | CreateClaim | DeleteClaim


def new_claim(write: CreateClaim) -> ResourceClaim:
    """Return the claim that a write makes, without devices."""
    pod = OwnerReference(api_version="v1", kind="Pod", name=write.pod.name, uid=write.pod.uid, controller=True)
    metadata = ClaimMetadata(
        name=write.key[1],
        namespace=write.key[0],
        annotations={EXTENDED_RESOURCE_CLAIM: "true"},
        owner_references=[pod],
        finalizers=[DELETE_PROTECTION],
    )
    return ResourceClaim(metadata=metadata, spec=write.claim.spec)


def manifest_of(write: CreateClaim) -> dict[str, object]:
    """Return the claim that a write makes, as it is posted."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": write.pod.name,
        "uid": write.pod.uid,
        "controller": True,
    }
    metadata = {
        "name": write.key[1],
        "namespace": write.key[0],
        "generateName": extended_claim_base(write.pod.name),  # for readers; the name above holds
        "annotations": {EXTENDED_RESOURCE_CLAIM: "true"},
        "ownerReferences": [pod],
        "finalizers": [DELETE_PROTECTION],
    }
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": write.claim.spec}


def after(write: ClaimWrite, claim: ResourceClaim | None) -> ResourceClaim:
    """Return a claim as the API server has it after a write; ``claim``: as it was, None if it did not exist."""
    if isinstance(write, CreateClaim):
        claim = claim or new_claim(write)
        status = ResourceClaimStatus(allocation=write.allocation, reserved_for=[write.pod])
        return msgspec.structs.replace(claim, status=status)
    if claim is None or isinstance(write, DeleteClaim):
        return ResourceClaim(metadata=ClaimMetadata(name=write.key[1], namespace=write.key[0], uid=write.uid))
    status = claim.status
    if isinstance(write, ReleaseClaim):
        finalizers = [name for name in claim.metadata.finalizers if name != DELETE_PROTECTION]
        status = msgspec.structs.replace(status, allocation=None, reserved_for=[], devices=[])
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


def deletion_of(key: ClaimKey, claim: ResourceClaim | None, pod: Consumer) -> DeleteClaim:
    """Return the write that removes the claim for a pod's extended resources, as it is now, if it exists."""
    if claim is None:
        return DeleteClaim(key, "", "", (), pod)
    meta = claim.metadata
    return DeleteClaim(key, meta.uid, meta.resource_version, tuple(meta.finalizers), pod)
