"""Claims that were deleted while pods run with their devices: these devices stay in use until the pods are gone.

A user who may edit a claim may remove its finalizer and delete it, also the owner of the running pod. Kubernetes then
forgets that the devices are in use, and the kubelet does not stop the pod. So the scheduler keeps such a claim itself.
A scheduler that starts later does not know of it.

A user who may also write the status of claims could make up any number of them, reserved for any pod, and delete them.
So pods of other namespaces do not count, and for each pod no more devices are kept than one pod gets.
"""

from typing import Final

import msgspec

from topo_scheduler.api.devices import DELETE_PROTECTION, Consumer, ResourceClaim
from topo_scheduler.state.devices.claim_consumers import BoundPods

MAX_DEVICES_OF_POD: Final = 256
"""Devices of deleted claims that are kept for one pod. A pod gets no more than that in all its claims."""
_ClaimKey = tuple[str, str]
_MARK: Final = " (deleted, uid "
"""Part of the name of a kept claim, which no object in Kubernetes can have."""


class DeletedClaims:
    """The claims that are kept, and the pods that run with their devices."""

    def __init__(self) -> None:
        self._pods: dict[_ClaimKey, dict[str, None]] = {}
        self._of_pod: dict[str, dict[_ClaimKey, int]] = {}
        """With the number of their devices."""
        self._original: dict[_ClaimKey, _ClaimKey] = {}

    def original(self, key: _ClaimKey) -> _ClaimKey:
        """Return the namespace and name that a claim had when it existed."""
        return self._original.get(key, key)

    def keep(self, claim: ResourceClaim, bound: BoundPods) -> ResourceClaim | None:
        """Return a deleted claim as it is to be kept; None if no pod runs with its devices.

        It has the finalizer, because its devices become free once its last pod is gone.
        """
        meta, status = claim.metadata, claim.status
        original = (meta.namespace, meta.name)
        devices = len(status.allocation.devices.results) if status.allocation is not None else 0
        pods = [entry for entry in status.reserved_for if self._may_run_with(entry, devices, meta.namespace, bound)]
        if original in self._original or not devices or not pods:
            return None
        key = (meta.namespace, f"{meta.name}{_MARK}{meta.uid})")
        self._original[key] = original
        self._pods[key] = {entry.uid: None for entry in pods}
        for uid in self._pods[key]:
            self._of_pod.setdefault(uid, {})[key] = devices
        return ResourceClaim(
            msgspec.structs.replace(meta, name=key[1], finalizers=[DELETE_PROTECTION], deletion_timestamp=None),
            claim.spec,
            msgspec.structs.replace(status, reserved_for=pods),
        )

    def _may_run_with(self, entry: Consumer, devices: int, namespace: str, bound: BoundPods) -> bool:
        """Return whether a claim of a namespace is kept for a pod that it is reserved for."""
        known = entry.resource == "pods" and bound.get(entry.uid) is not None
        if not known or bound.namespace_of(entry.uid) not in (namespace, None):
            return False
        return sum(self._of_pod.get(entry.uid, {}).values()) + devices <= MAX_DEVICES_OF_POD

    def release(self, uid: str) -> list[_ClaimKey]:
        """Forget a pod that is gone; return the claims that no pod has any more."""
        free: list[_ClaimKey] = []
        for key in self._of_pod.pop(uid, ()):
            del self._pods[key][uid]
            if not self._pods[key]:
                del self._pods[key], self._original[key]
                free.append(key)
        return free
