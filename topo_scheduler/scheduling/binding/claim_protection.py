"""Allocated claims whose finalizer another client removed: without it Kubernetes never deallocates them.

Users who may edit claims may remove it. Then its devices outlive its pods, and no pod of higher priority gets
them by preemption. So the scheduler writes the finalizer again while pods use the claim. Where the last pod is gone
already, it deallocates the claim itself.
"""

from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.devices import DELETE_PROTECTION
from topo_scheduler.scheduling.instructions import Instruction, PodRef, WriteClaims
from topo_scheduler.state.devices.claim_writes import ClaimWrite, ProtectClaim, release_of
from topo_scheduler.state.devices.inventory import ClaimKey, DeviceInventory

MAX_PROTECTED: Final = 4
"""Claims that are written at once, so that a client that removes finalizers without end delays no allocation."""


class ClaimProtection:
    """Claims that need their finalizer again."""

    def __init__(self, inventory: DeviceInventory) -> None:
        self._inventory = inventory
        self._due: dict[ClaimKey, None] = {}
        self._under_way: dict[str, None] = {}
        """What identifies the writes."""
        self._left: dict[ClaimKey, None] = {}
        """Claims that pods used until now. Of others it is unknown who allocated them, and for what."""

    def __len__(self) -> int:
        return len(self._due)

    def changed(self, keys: Iterable[ClaimKey]) -> None:
        """Note claims that changed."""
        left = self._inventory.consumers.take_left()
        for key in (*keys, *left):
            if key in left:
                self._left[key] = None
            if self._write_of(key) is not None:
                self._due[key] = None
            else:
                self._left.pop(key, None)

    def due(self) -> list[Instruction]:
        """Return the next writes."""
        out: list[Instruction] = []
        while self._due and len(self._under_way) < MAX_PROTECTED:
            key = next(iter(self._due))
            del self._due[key]
            if (write := self._write_of(key)) is None:
                continue
            uid = f"claim {self._inventory.claims[key].metadata.uid}"
            if uid not in self._under_way:
                self._under_way[uid] = None
                out.append(WriteClaims(PodRef(key[0], f"ResourceClaim {key[1]}", uid), (write,)))
        return out

    def written(self, uid: str) -> None:
        """Record that a write has a result. If it failed, the next change of the claim is another chance."""
        self._under_way.pop(uid, None)

    def _write_of(self, key: ClaimKey) -> ClaimWrite | None:
        claim = self._inventory.claims.get(key)
        if claim is None or claim.status.allocation is None or DELETE_PROTECTION in claim.metadata.finalizers:
            return None
        meta = claim.metadata
        if meta.deletion_timestamp is not None or self._inventory.is_held(key) or key in self._inventory.unsettled:
            return None
        if claim.status.reserved_for:
            bound, may_use = self._inventory.bound_pods, self._inventory.consumers.may_use
            if bound is None or not any(
                entry.resource == "pods" and bound.get(entry.uid) is not None and may_use(entry.uid, meta.namespace)
                for entry in claim.status.reserved_for
            ):
                return None  # from a decision that was not carried out, or its pods are gone or of another namespace
            return ProtectClaim(key, meta.uid, meta.resource_version, tuple(meta.finalizers))
        return release_of(key, claim) if key in self._left else None
