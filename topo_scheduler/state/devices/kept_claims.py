"""The form in which claims are kept: without the parts that have no reader, and equal specifications only once.

Tenants may create as many claims as the API server takes, each with a specification, annotations and labels of its
own. So what specifications take is capped, for each namespace and in all. So is the number of pods for which claims are
reserved: a user who may write their status can reserve each for 256 of any name.
"""

import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final

import msgspec

from topo_scheduler.api.devices import (
    EXTENDED_RESOURCE_CLAIM,
    Allocation,
    Consumer,
    ResourceClaim,
    ResourceClaimSpec,
    ResourceClaimStatus,
)
from topo_scheduler.api.objects import OwnerReference
from topo_scheduler.state.devices.extended_resources import extended_claim_owner

MAX_SPEC_BYTES_OF_NAMESPACE: Final = 2**20
"""Bytes of different specifications of one namespace's claims, as JSON."""
MAX_SPEC_BYTES: Final = 16 * 2**20
"""The same of all namespaces together: beyond it, each has an equal share."""
MAX_FINALIZER_CHARACTERS: Final = 4096
"""Characters of all finalizers of a claim, `FINALIZER_CHARACTERS` more for each."""
FINALIZER_CHARACTERS: Final = 128
"""What each finalizer counts beside its characters, so that many short ones take no more memory than few long ones."""
MAX_OWNER_CHARACTERS: Final = 1024
"""Characters of the reference to a claim's owner. The API server caps none of them but the size of the object."""
MAX_RESERVATIONS_OF_NAMESPACE: Final = 2**16
"""Reservations of claims of one namespace for pods, counted once for each claim: about 0.6 KiB each."""
MAX_RESERVATIONS: Final = 2**17
"""The same of all namespaces together: beyond it, each has an equal share."""
MAX_CONSUMER_CHARACTERS: Final = 1024
"""Characters of the reference to a pod for which a claim is reserved. The API server caps none of them."""
UNREAD: Final = Consumer(resource="unread")
"""Stands for the pods that use a claim beyond these caps."""

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_TOO_MANY: Final = (
    "the ResourceClaims of its namespace have too many different specs "
    f"(more than {MAX_SPEC_BYTES_OF_NAMESPACE:,} bytes, or an equal share of {MAX_SPEC_BYTES:,}); "
    "delete claims that are not used, then create it again"
)
_NO_STATUS: Final = ResourceClaimStatus()
_TOO_MANY_FINALIZERS: Final = (
    f"its finalizers have more than {MAX_FINALIZER_CHARACTERS:,} characters, "
    f"each counted with {FINALIZER_CHARACTERS} more; remove some, then create it again"
)


@dataclass(slots=True)
class _SpecInUse:
    spec: ResourceClaimSpec
    claims: int = 0


class KeptClaims:
    """Specifications of the claims that are kept."""

    def __init__(self) -> None:
        self._specs: dict[tuple[str, bytes], _SpecInUse] = {}
        """By namespace and JSON."""
        self._bytes_of: Counter[str] = Counter()
        """Bytes of specifications by namespace."""
        self._bytes = 0
        self._reservations_of: Counter[str] = Counter()
        """Reservations by namespace."""
        self._reservations = 0

    def keep(self, claim: ResourceClaim, old: ResourceClaim | None = None) -> ResourceClaim:
        """Return a claim as it is kept, until `drop` is called. ``old``: as it was kept before."""
        meta, status = claim.metadata, claim.status
        namespace = sys.intern(meta.namespace)
        spec, finalizers = self._shared(namespace, claim.spec), meta.finalizers
        if old is not None:
            self.drop(old)
        if status.reserved_for:
            status = msgspec.structs.replace(status, reserved_for=self._reserved(namespace, status.reserved_for))
        if sum(len(name) + FINALIZER_CHARACTERS for name in finalizers) > MAX_FINALIZER_CHARACTERS:
            self._forget(namespace, spec)
            finalizers, spec = [], ResourceClaimSpec(excess=_TOO_MANY_FINALIZERS)
        controller = _owner(meta.controller)
        metadata = msgspec.structs.replace(
            meta,
            namespace=namespace,
            labels={},
            annotations={EXTENDED_RESOURCE_CLAIM: "true"}
            if controller is not None and extended_claim_owner(claim)
            else {},
            creation_timestamp=None,
            owner_references=[controller] if controller is not None else [],
            finalizers=[sys.intern(name) for name in finalizers],
        )
        if status.allocation is not None and status.allocation.devices.config:
            status = msgspec.structs.replace(status, allocation=_without_config(status.allocation))
        elif status == _NO_STATUS:
            status = _NO_STATUS
        return ResourceClaim(metadata, spec, status)

    def drop(self, claim: ResourceClaim) -> None:
        """Forget a claim that was kept."""
        self._forget(claim.metadata.namespace, claim.spec)
        self._reserve(claim.metadata.namespace, -len(claim.status.reserved_for))

    def _reserved(self, namespace: str, pods: list[Consumer]) -> list[Consumer]:
        """Return the pods for which a claim is reserved as they are kept."""
        taken = self._reservations_of.get(namespace, 0) + len(pods)
        max_reservations = MAX_RESERVATIONS_OF_NAMESPACE
        if self._reservations + len(pods) > MAX_RESERVATIONS:
            others = len(self._reservations_of) + (namespace not in self._reservations_of)
            max_reservations = min(max_reservations, MAX_RESERVATIONS // others)
        longest = max(len(pod.api_group) + len(pod.resource) + len(pod.name) + len(pod.uid) for pod in pods)
        kept = pods if taken <= max_reservations and longest <= MAX_CONSUMER_CHARACTERS else [UNREAD]
        self._reserve(namespace, len(kept))
        return kept

    def _reserve(self, namespace: str, count: int) -> None:
        self._reservations += count
        self._reservations_of[namespace] += count
        if not self._reservations_of[namespace]:
            del self._reservations_of[namespace]

    def _shared(self, namespace: str, spec: ResourceClaimSpec) -> ResourceClaimSpec:
        """Return an equal specification that claims of the namespace share, or one that says why it is not kept."""
        if spec.excess:
            return spec
        text = _encode(spec)
        shared = self._specs.get((namespace, text))
        if shared is None:
            if not self._has_room(namespace, text):
                return ResourceClaimSpec(excess=_TOO_MANY)
            shared = self._specs[namespace, text] = _SpecInUse(spec)
            self._bytes_of[namespace] += len(text)
            self._bytes += len(text)
        shared.claims += 1
        return shared.spec

    def _forget(self, namespace: str, spec: ResourceClaimSpec) -> None:
        if spec.excess:
            return
        text = _encode(spec)
        shared = self._specs[namespace, text]
        shared.claims -= 1
        if not shared.claims:
            del self._specs[namespace, text]
            self._bytes -= len(text)
            self._bytes_of[namespace] -= len(text)
            if not self._bytes_of[namespace]:
                del self._bytes_of[namespace]

    def _has_room(self, namespace: str, text: bytes) -> bool:
        taken = self._bytes_of.get(namespace, 0) + len(text)
        if self._bytes + len(text) <= MAX_SPEC_BYTES:
            return taken <= MAX_SPEC_BYTES_OF_NAMESPACE
        others = len(self._bytes_of) + (namespace not in self._bytes_of)
        return taken <= min(MAX_SPEC_BYTES_OF_NAMESPACE, MAX_SPEC_BYTES // others)


def _owner(owner: OwnerReference | None) -> OwnerReference | None:
    """Return a reference of which claims share the words that are alike; None for one that no pod can have."""
    if owner is None:
        return None
    if sum(map(len, (owner.api_version, owner.kind, owner.name, owner.uid))) > MAX_OWNER_CHARACTERS:
        return None
    return msgspec.structs.replace(owner, api_version=sys.intern(owner.api_version), kind=sys.intern(owner.kind))


def _without_config(allocation: Allocation) -> Allocation:
    """Return an allocation without configuration, which only drivers read."""
    return msgspec.structs.replace(allocation, devices=msgspec.structs.replace(allocation.devices, config=[]))
