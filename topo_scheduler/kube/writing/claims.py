"""Write the devices of claims: finalizer first, then the allocation with the pod that it is reserved for.

The finalizer may be written ahead, for pods that wait: the API server takes it and the allocation only in separate
requests. Without the finalizer Kubernetes never deallocates a claim. Each write carries the resourceVersion that was
read, so it never undoes a change of another client: the server refuses it instead, and the scheduler decides again.
Repeating a write is harmless: a claim that already has the allocation counts as written.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from topo_scheduler.api.devices import DELETE_PROTECTION, MAX_CONSUMER_PODS, Allocation, Consumer, ResourceClaim
from topo_scheduler.kube.connection.client import STRATEGIC_MERGE_PATCH, Client
from topo_scheduler.kube.connection.errors import Altered, ApiError, Conflict, KubeError, lacks_rights
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.writing.claim_requests import MAX_CHANGES, UNPROCESSABLE, ClaimRequests, TakenError
from topo_scheduler.kube.writing.extended_claims import ExtendedClaimWriter
from topo_scheduler.kube.writing.ordered_writes import OrderedWriteResult, failure_of, message_of, write_in_order
from topo_scheduler.state.devices.claim_writes import (
    AllocateClaim,
    ClaimWrite,
    CreateClaim,
    DeleteClaim,
    ProtectClaim,
    ReleaseClaim,
)
from topo_scheduler.state.devices.inventory import ClaimKey

WRITES_AHEAD_IN_FLIGHT: Final = 8
"""Concurrent writes of finalizers for pods that wait: few, so that they delay no allocation."""
TURN_SECONDS: Final = 20.0
"""How long, in seconds, a pod waits while a reservation of the same claim for other pods is written."""
_RIGHT_TO_ALLOCATE: Final = 'requires resource="resourceclaims/binding"'


@dataclass(slots=True)
class _Turn:
    """Reservations of one claim by uid of the pod: one write at a time, of all that wait then.

    ``claim`` is the answer to the last write.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: dict[str, AllocateClaim] = field(default_factory=dict)
    claim: ResourceClaim | None = None


class ClaimWriter:
    """Writes claims; never raises for server failures."""

    def __init__(self, client: Client) -> None:
        self._requests = ClaimRequests(client)
        self._slots_ahead = FairSlots(WRITES_AHEAD_IN_FLIGHT, None)
        self._extended = ExtendedClaimWriter(self._requests, self._allocate)
        self._turns: dict[ClaimKey, _Turn] = {}

    async def write(self, writes: Sequence[ClaimWrite]) -> OrderedWriteResult[ClaimWrite, ResourceClaim]:
        """Write in order, up to the first that fails; return the claims as they are now."""
        return await write_in_order(writes, self._write, _describe, lambda write: write.key, (KubeError, TakenError))

    async def _write(self, write: ClaimWrite) -> ResourceClaim:
        match write:
            case AllocateClaim():
                return await self._allocate(write)
            case ProtectClaim():
                return await self._protect_ahead(write)
            case ReleaseClaim():
                return await self._release(write)
            case CreateClaim():
                return await self._extended.create(write)
            case DeleteClaim():
                return await self._extended.delete(write)

    # ------------------------------------------------------------ allocate

    async def _allocate(self, write: AllocateClaim) -> ResourceClaim:
        if write.allocation is None:
            async with self._turn(write) as turn:
                return await self._reserve_together(write, turn)
        claim: ResourceClaim | None = None  # as it is now, if it changed since the decision
        for attempt in range(MAX_CHANGES + 1):
            try:
                return await self._protect_and_allocate(write, claim)
            except Conflict:
                claim = await self._requests.settle(write.key, lambda: self._requests.get(write.key, write.uid))
                if _has(claim, write):
                    return claim  # an earlier attempt was written
                if claim.status.allocation is not None or attempt == MAX_CHANGES:
                    raise
        raise AssertionError("the last attempt returns or raises")

    async def _protect_and_allocate(self, write: AllocateClaim, claim: ResourceClaim | None) -> ResourceClaim:
        version = write.version if claim is None else claim.metadata.resource_version
        finalizers = write.finalizers if claim is None else tuple(claim.metadata.finalizers)
        reserved = write.reserved_for if claim is None else tuple(claim.status.reserved_for)
        if DELETE_PROTECTION not in finalizers:
            claim = await self._requests.settle(write.key, lambda: self._add_finalizer(write, version, finalizers))
            version = claim.metadata.resource_version
        others = [entry for entry in reserved if entry.uid != write.pod.uid]
        status = {"allocation": write.allocation, "reservedFor": [*others, write.pod]}
        body = {"metadata": {"uid": write.uid, "resourceVersion": version}, "status": status}
        return await self._requests.settle(write.key, lambda: self._requests.patch(write.key, "status", body))

    async def _protect_ahead(self, write: ProtectClaim) -> ResourceClaim:
        try:
            return await self._requests.settle(
                write.key, lambda: self._add_finalizer(write, write.version, write.finalizers), self._slots_ahead
            )
        except Conflict:  # the allocation writes it where it is still missing
            return await self._requests.settle(
                write.key, lambda: self._requests.get(write.key, write.uid), self._slots_ahead
            )

    async def _add_finalizer(
        self, write: AllocateClaim | ProtectClaim, version: str, finalizers: Sequence[str]
    ) -> ResourceClaim:
        claim = await self._requests.set_finalizers(write.key, write.uid, version, [*finalizers, DELETE_PROTECTION])
        if DELETE_PROTECTION not in claim.metadata.finalizers:
            raise Altered
        return claim

    @asynccontextmanager
    async def _turn(self, write: AllocateClaim) -> AsyncIterator[_Turn]:
        """Wait for the turn of a reservation.

        Of writes that change one object at once, the API server repeats each as often as another one was faster. With
        hundreds of pods that share a claim this delayed the writes of all namespaces by seconds.
        """
        turn = self._turns.setdefault(write.key, _Turn())
        turn.waiting[write.pod.uid] = write
        try:
            try:
                async with asyncio.timeout(TURN_SECONDS):
                    await turn.lock.acquire()
            except TimeoutError:
                raise TakenError("reservations for other pods are being written") from None
            try:
                yield turn
            finally:
                turn.lock.release()
        finally:
            del turn.waiting[write.pod.uid]
            if not turn.waiting:
                del self._turns[write.key]

    async def _reserve_together(self, write: AllocateClaim, turn: _Turn) -> ResourceClaim:
        """Reserve a claim for a pod, and for those that wait: one by one, hundreds took longer than each may wait."""
        if turn.claim is None or turn.claim.metadata.uid != write.uid or not _is_reserved(turn.claim, write):
            others = (other.pod for other in turn.waiting.values() if other.uid == write.uid and other is not write)
            reserved = write.reserved_for if turn.claim is None else turn.claim.status.reserved_for
            room = MAX_CONSUMER_PODS - len(reserved) - 1
            pods = [write.pod, *islice(others, max(0, room))]
            turn.claim = await self._requests.settle(write.key, lambda: self._reserve(write, pods))
        return turn.claim

    async def _reserve(self, write: AllocateClaim, pods: Sequence[Consumer]) -> ResourceClaim:
        """Add pods to those for which an allocated claim is reserved."""
        body = {"metadata": {"uid": write.uid}, "status": {"reservedFor": pods}}
        return await self._requests.patch(write.key, "status", body, STRATEGIC_MERGE_PATCH)

    # ------------------------------------------------------------ release

    async def _release(self, write: ReleaseClaim) -> ResourceClaim:
        claim = await self._requests.settle(write.key, lambda: self._deallocate(write))
        if DELETE_PROTECTION not in claim.metadata.finalizers:
            return claim
        return await self._requests.settle(write.key, lambda: self._unprotect(write, claim))

    async def _deallocate(self, write: ReleaseClaim) -> ResourceClaim:
        metadata = {"uid": write.uid, "resourceVersion": write.version}
        body = {"metadata": metadata, "status": {"allocation": None, "reservedFor": None}}
        try:
            return await self._requests.patch(write.key, "status", body)
        except Conflict:
            claim = await self._requests.get(write.key, write.uid)
            if claim.status.allocation is None:
                return claim
            raise

    async def _unprotect(self, write: ReleaseClaim, claim: ResourceClaim) -> ResourceClaim:
        finalizers = [name for name in claim.metadata.finalizers if name != DELETE_PROTECTION]
        try:
            return await self._requests.set_finalizers(
                write.key, write.uid, claim.metadata.resource_version, finalizers
            )
        except Conflict:
            return await self._requests.get(write.key, write.uid)  # Kubernetes removes it as well


def _has(claim: ResourceClaim, write: AllocateClaim) -> bool:
    """Return whether a claim has the devices that were to be written, for the pod that needs them."""
    return _is_reserved(claim, write) and _devices(claim.status.allocation) == _devices(write.allocation)


def _is_reserved(claim: ResourceClaim, write: AllocateClaim) -> bool:
    return any(entry.uid == write.pod.uid for entry in claim.status.reserved_for)


def _devices(allocation: Allocation | None) -> list[tuple[str, ...]]:
    results = allocation.devices.results if allocation is not None else ()
    return [(result.request, result.driver, result.pool, result.device, result.share_id or "") for result in results]


def _lacks_right_to_allocate(error: Exception) -> bool:
    """Return whether RBAC refused an allocation: the API server reports that as an invalid field."""
    return isinstance(error, ApiError) and error.status == UNPROCESSABLE and _RIGHT_TO_ALLOCATE in error.message


def _describe(write: ClaimWrite, error: Exception) -> str:
    described = f'resourceclaim "{write.key[1]}"'
    if lacks_rights(error) or _lacks_right_to_allocate(error):
        kinds = "resourceclaims, resourceclaims/status and resourceclaims/binding in resource.k8s.io"
        extended = isinstance(write, CreateClaim | DeleteClaim)
        more = ", and create and delete on resourceclaims" if extended else ""
        return f"{described} can't be written: {message_of(error)} (grant update and patch on {kinds}{more})"
    return failure_of(described, error)
