"""Claims that were deleted while pods run with their devices: these devices stay in use until the pods are gone.

Whoever may edit a claim may remove its finalizer and delete it, also the owner of the running pod. Kubernetes then
forgets that the devices are in use, and the kubelet does not stop the pod. So the scheduler keeps such a claim itself.
A scheduler that starts later does not know of it.
"""

from typing import Final, Protocol

import msgspec

from topo_scheduler.api.devices import DELETE_PROTECTION, ResourceClaim

_ClaimKey = tuple[str, str]
_MARK: Final = " (deleted, uid "
"""Part of the name of a kept claim, which no object in Kubernetes can have."""


class BoundPods(Protocol):
    """Pods that are bound, or about to be bound, and have not ended."""

    def get(self, uid: str) -> object | None:
        """Return what is known of a pod, None if it is no such pod."""


class DeletedClaims:
    """The claims that are kept, and the pods that run with their devices."""

    def __init__(self) -> None:
        self._pods: dict[_ClaimKey, dict[str, None]] = {}
        self._of_pod: dict[str, dict[_ClaimKey, None]] = {}
        self._original: dict[_ClaimKey, _ClaimKey] = {}

    def original(self, key: _ClaimKey) -> _ClaimKey:
        """Return the namespace and name that a claim had when it existed."""
        return self._original.get(key, key)

    def keep(self, claim: ResourceClaim, bound: BoundPods) -> ResourceClaim | None:
        """Return a deleted claim as it is to be kept; None if no pod runs with its devices.

        It has the finalizer, because its devices become free once its last pod is gone.
        """
        meta, status = claim.metadata, claim.status
        pods = [entry for entry in status.reserved_for if bound.get(entry.uid) is not None]
        original = (meta.namespace, meta.name)
        if original in self._original or status.allocation is None or not pods:
            return None
        key = (meta.namespace, f"{meta.name}{_MARK}{meta.uid})")
        self._original[key] = original
        self._pods[key] = {entry.uid: None for entry in pods}
        for uid in self._pods[key]:
            self._of_pod.setdefault(uid, {})[key] = None
        return ResourceClaim(
            msgspec.structs.replace(meta, name=key[1], finalizers=[DELETE_PROTECTION], deletion_timestamp=None),
            claim.spec,
            msgspec.structs.replace(status, reserved_for=pods),
        )

    def release(self, uid: str) -> list[_ClaimKey]:
        """Forget a pod that is gone; return the claims that no pod has any more."""
        free: list[_ClaimKey] = []
        for key in self._of_pod.pop(uid, ()):
            del self._pods[key][uid]
            if not self._pods[key]:
                del self._pods[key], self._original[key]
                free.append(key)
        return free
