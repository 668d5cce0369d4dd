"""Make and remove claims for extended resources of pods: claim, devices, and the pod's status that names the claim.

The kubelet finds the claim by the pod's status only. So the status is written last, before the bind, and cleared first.
Repeating a write is harmless: the name of the claim follows from the pod, so the server refuses a second one.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

from topo_scheduler.api.devices import DELETE_PROTECTION, Consumer, ResourceClaim
from topo_scheduler.kube.connection.client import STRATEGIC_MERGE_PATCH
from topo_scheduler.kube.connection.errors import Conflict, NotFound
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.writing.claim_requests import MAX_CHANGES, ClaimRequests, TakenError
from topo_scheduler.state.devices.claim_writes import AllocateClaim, CreateClaim, DeleteClaim, after, manifest_of
from topo_scheduler.state.devices.extended_resources import extended_claim_owner
from topo_scheduler.state.devices.inventory import ClaimKey


class ExtendedClaimWriter:
    """Makes and removes claims for extended resources."""

    def __init__(self, requests: ClaimRequests, allocate: Callable[[AllocateClaim], Awaitable[ResourceClaim]]) -> None:
        """``allocate`` writes the devices of a claim that exists."""
        self._requests = requests
        self._settle = requests.settle
        self._allocate = allocate

    async def create(self, write: CreateClaim) -> ResourceClaim:
        """Make a claim with its devices, and record it in the status of its pod.

        Raises:
            TakenError: another claim has the name, or it has other devices.
            KubeError: the server refused a write, or did not answer in time.
        """
        try:
            claim = await self._settle(write.key, lambda: self._requests.post(write.key[0], manifest_of(write)))
        except Conflict:
            claim = await self._settle(write.key, lambda: self._requests.get(write.key))  # of an earlier attempt
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
                with suppress(Conflict):  # another one has its name
                    await self._settle(write.key, lambda: self._requests.delete(write.key, write.uid))
        return after(write, None)

    async def _unprotect(self, write: DeleteClaim) -> None:
        version, finalizers = write.version, write.finalizers
        for attempt in range(MAX_CHANGES + 1):
            if DELETE_PROTECTION not in finalizers:
                return
            kept = [name for name in finalizers if name != DELETE_PROTECTION]
            try:
                await self._settle(
                    write.key, partial(self._requests.set_finalizers, write.key, write.uid, version, kept)
                )
            except Conflict:
                claim = await self._settle(write.key, lambda: self._requests.get(write.key))
                if claim.metadata.uid != write.uid:
                    return
                if attempt == MAX_CHANGES:
                    raise
                version, finalizers = claim.metadata.resource_version, tuple(claim.metadata.finalizers)
                continue
            return

    async def _record(self, key: ClaimKey, pod: Consumer, status: dict[str, Any] | None) -> None:
        body = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": status}}
        await self._requests.patch_path(f"{PODS.path(key[0], pod.name)}/status", body, STRATEGIC_MERGE_PATCH)


def _check_is_wanted(claim: ResourceClaim, write: CreateClaim) -> None:
    """Raise `TakenError` unless a claim is the one that a write was to make, from an earlier attempt."""
    if extended_claim_owner(claim) != write.pod.uid:
        raise TakenError("a claim of this name exists that was not made for the pod; delete it")
    if claim.metadata.deletion_timestamp is not None:
        raise TakenError("it is being deleted")
    if claim.spec != write.claim.spec:
        raise TakenError("it asks for other devices, for an earlier decision")
