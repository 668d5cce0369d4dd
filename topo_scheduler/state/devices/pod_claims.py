"""Claims of a pod, as part of its class."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from topo_scheduler.api.devices import ALL_DEVICES, ResourceClaimSpec
from topo_scheduler.state.devices.inventory import ClaimKey

_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decoder: Final = msgspec.json.Decoder(ResourceClaimSpec)


@dataclass(frozen=True, slots=True)
class PodClaim:
    """What a pod asks for with one of its claims.

    ``spec`` is the encoded specification. ``key`` names the claim if other pods may use it too, or if it is allocated
    already; None for a free claim that Kubernetes made for this pod. So all pods of a template have one class.
    ``resources`` has the extended resource of each request, for the claim that the scheduler makes for these; it does
    not apply to nodes that offer the resources themselves.
    """

    spec: bytes
    key: ClaimKey | None = None
    resources: tuple[str, ...] = ()

    @property
    def specification(self) -> ResourceClaimSpec:
        """The specification."""
        return _decoder.decode(self.spec)


def encoded(spec: ResourceClaimSpec) -> bytes:
    """Return what identifies a specification."""
    return _encode(spec)


def devices_asked(claims: Iterable[PodClaim]) -> int:
    """Return how many devices claims ask for at least; a request for all devices counts as two."""
    return sum(devices_of(claim.specification) for claim in claims)


def devices_of(specification: ResourceClaimSpec) -> int:
    """Return the same of one specification: none if it has no requests, which the API server lets pass."""
    total = 0
    for request in specification.devices.requests:
        alternatives = request.first_available or ([request.exactly] if request.exactly is not None else [])
        counts = (2 if entry.allocation_mode == ALL_DEVICES else max(1, entry.count) for entry in alternatives)
        total += min(counts, default=0)
    return total


def without(claim: PodClaim, offered: frozenset[str]) -> PodClaim | None:
    """Return the claim for the extended resources that a node does not offer itself, None if that leaves nothing."""
    kept = [number for number, resource in enumerate(claim.resources) if resource not in offered]
    if len(kept) == len(claim.resources):
        return claim
    if not kept:
        return None
    specification = claim.specification
    if specification.excess:
        return PodClaim(claim.spec, None, tuple(claim.resources[number] for number in kept))
    devices = specification.devices
    devices.requests = [devices.requests[number] for number in kept]
    return PodClaim(encoded(specification), None, tuple(claim.resources[number] for number in kept))
