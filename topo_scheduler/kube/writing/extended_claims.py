"""Make and remove claims for extended resources of pods: claim, devices, and the pod's status that names the claim.

The kubelet finds the claim by the pod's status only. So the status is written last, before the bind, and cleared first.
Repeating a write is harmless: the name of the claim follows from the pod, so the server refuses a second one.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.api.devices import DELETE_PROTECTION, Consumer, ResourceClaim
from topo_scheduler.kube.connection.client import MERGE_PATCH, STRATEGIC_MERGE_PATCH, Client, decode
from topo_scheduler.kube.connection.errors import Conflict, NotFound, passes
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.resources import PODS, RESOURCE_CLAIMS
from topo_scheduler.kube.connection.retrying import Slot, retried
from topo_scheduler.state.devices.claim_writes import AllocateClaim, CreateClaim, DeleteClaim, after, manifest_of
from topo_scheduler.state.devices.extended_resources import extended_claim_owner
from topo_scheduler.state.devices.inventory import ClaimKey

MAX_CHANGES: Final = 3
"""How often a claim may change while the scheduler removes it."""
RETRY_SECONDS: Final = 20.0
"""How long, in seconds, writes are retried while the server is busy or unreachable."""
TIMEOUT_SECONDS: Final = 10.0

_encode = msgspec.json.Encoder().encode
_claim = msgspec.json.Decoder(ResourceClaim)
T = TypeVar("T")


class TakenError(Exception):
    """A claim has changed such that a write makes no sense any more. The message says how."""


class ExtendedClaimWriter:
    """Makes and removes claims for extended resources."""

    def __init__(
        self, client: Client, slots: FairSlots, allocate: Callable[[AllocateClaim], Awaitable[ResourceClaim]]
    ) -> None:
        """``allocate`` writes the devices of a claim that exists."""
        self._client = client
        self._slots = slots
        self._allocate = allocate

    async def create(self, write: CreateClaim) -> ResourceClaim:
        """Make a claim with its devices, and record it in the status of its pod.

        Raises:
            TakenError: another claim has the name, or it has other devices.
            KubeError: the server refused a write, or did not answer in time.
        """
        try:
            claim = await self._settle(write.key, lambda: self._post(write))
        except Conflict:
            claim = await self._settle(write.key, lambda: self._get(write.key))  # from an attempt without an answer
            _check_is_wanted(claim, write)
        meta, reserved = claim.metadata, tuple(claim.status.reserved_for)
        finalizers = tuple(meta.finalizers)
        claim = await self._allocate(
            AllocateClaim(write.key, meta.uid, meta.resource_version, finalizers, write.allocation, reserved, write.pod)
        )
        mappings = [
            {"containerName": entry.container, "resourceName": entry.resource, "requestName": entry.request}
            for entry in write.claim.mappings
        ]
        status = {"resourceClaimName": write.key[1], "requestMappings": mappings}
        try:
            await self._settle(write.key, lambda: self._record(write.key, write.pod, status))
        except (NotFound, Conflict) as error:
            raise TakenError(f"its pod {write.pod.name} is gone") from error
        return claim

    async def delete(self, write: DeleteClaim) -> ResourceClaim:
        """Remove a claim, and its name from the status of its pod. What is gone already needs no write.

        Raises:
            KubeError: the server refused a write, or did not answer in time.
        """
        with suppress(NotFound, Conflict):  # the pod is gone, or another one has its name
            await self._settle(write.key, lambda: self._record(write.key, write.pod, None))
        if write.uid:
            with suppress(NotFound):
                await self._unprotect(write)
                await self._settle(write.key, lambda: self._delete(write))
        return after(write, None)

    async def _unprotect(self, write: DeleteClaim) -> None:
        version, finalizers = write.version, write.finalizers
        for attempt in range(MAX_CHANGES + 1):
            if DELETE_PROTECTION not in finalizers:
                return
            kept = [name for name in finalizers if name != DELETE_PROTECTION]  # a merge patch replaces the list
            body = {"metadata": {"uid": write.uid, "resourceVersion": version, "finalizers": kept}}
            try:
                await self._settle(write.key, partial(self._patch, RESOURCE_CLAIMS.path(*write.key), body))
            except Conflict:
                claim = await self._settle(write.key, lambda: self._get(write.key))
                if claim.metadata.uid != write.uid:
                    return
                if attempt == MAX_CHANGES:
                    raise
                version, finalizers = claim.metadata.resource_version, tuple(claim.metadata.finalizers)
                continue
            return

    # ------------------------------------------------------------ requests

    async def _settle(self, key: ClaimKey, send: Callable[[], Awaitable[T]]) -> T:
        slot: Slot = partial(self._slots.slot, key[0])
        return await retried(send, seconds=RETRY_SECONDS, longest=5.0, passing=passes, slot=slot)

    async def _post(self, write: CreateClaim) -> ResourceClaim:
        path, body = RESOURCE_CLAIMS.collection(write.key[0]), _encode(manifest_of(write))
        return decode(_claim, await self._client.request("POST", path, body=body, timeout=TIMEOUT_SECONDS))

    async def _get(self, key: ClaimKey) -> ResourceClaim:
        answer = await self._client.request("GET", RESOURCE_CLAIMS.path(*key), timeout=TIMEOUT_SECONDS)
        return decode(_claim, answer)

    async def _patch(self, path: str, body: object, content_type: str = MERGE_PATCH) -> None:
        await self._client.request(
            "PATCH", path, body=_encode(body), content_type=content_type, timeout=TIMEOUT_SECONDS
        )

    async def _record(self, key: ClaimKey, pod: Consumer, status: dict[str, Any] | None) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}}
        await self._patch(f"{PODS.path(key[0], pod.name)}/status", body, STRATEGIC_MERGE_PATCH)

    async def _delete(self, write: DeleteClaim) -> None:
        body = _encode({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": write.uid}})
        with suppress(Conflict):  # another one has its name
            await self._client.request("DELETE", RESOURCE_CLAIMS.path(*write.key), body=body, timeout=TIMEOUT_SECONDS)


def _check_is_wanted(claim: ResourceClaim, write: CreateClaim) -> None:
    """Raise `TakenError` unless a claim is the one that a write was to make, from an earlier attempt."""
    if extended_claim_owner(claim) != write.pod.uid:
        raise TakenError("a claim of this name exists that was not made for the pod; delete it")
    if claim.metadata.deletion_timestamp is not None:
        raise TakenError("it is being deleted")
    if claim.spec != write.claim.spec:
        raise TakenError("it asks for other devices, for an earlier decision")
