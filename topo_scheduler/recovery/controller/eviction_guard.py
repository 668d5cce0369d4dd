"""Checks, right before an eviction, whether the pod may still be moved: not if its workload was deleted meanwhile."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from topo_scheduler.recovery.controller.moved_owners import MovedOwners
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.recovery.model.migration_state import Tracked

BENEFICIARY_OVER: Final = "the Migration for which it makes room is over, or an owner of its pods was deleted"
BENEFICIARY_UNCONFIRMED: Final = (
    "it is not confirmed that the owners of the pods exist for which it makes room; the scheduler's log has the reason"
)
"""It may be one of another namespace: the texts name neither it nor the owner."""


@dataclass(frozen=True, slots=True)
class EvictionGuard:
    """Ends Migrations whose pods have lost their topmost owner. ``machine`` returns the current `Recovery`, or None."""

    moved_owners: MovedOwners
    machine: Callable[[], Recovery | None]

    def end_ownerless(self) -> None:
        """End the Migrations for which an owner of their pods was deleted."""
        if (machine := self.machine()) is not None:
            for key, reason in self.moved_owners.gone():
                machine.migrations.owner_gone(key, reason)

    async def reason_not_to_evict(self, key: str, uid: str) -> str:
        """Return why no pod is evicted for a Migration: an owner of the pods, or of those that need the room, is gone.

        ``uid`` is that of the Migration. If the API server confirms no owner, pods are moved off failed nodes anyway.
        """
        tracked = self._tracked(key)
        if tracked is None:
            return self.why_over(key, uid)
        beneficiary = tracked.migration.spec.makes_room_for
        reasons = [await self.moved_owners.confirm(migration) for migration in (key, beneficiary) if migration]
        self.end_ownerless()
        if reason := self.why_over(key, uid):
            return reason
        if beneficiary and self.why_over(beneficiary):
            return BENEFICIARY_OVER
        if tracked.migration.cause.of_node:
            return ""
        return reasons[0] or (BENEFICIARY_UNCONFIRMED if any(reasons) else "")

    def why_over(self, key: str, uid: str = "") -> str:
        """Return why no pod is evicted for a Migration any more, or an empty string.

        ``uid`` is that of the Migration: another one of its name may move other pods, and hold no seats yet.
        """
        tracked = self._tracked(key)
        if tracked is None or (uid and tracked.migration.metadata.uid != uid):
            return f"Migration {key} is over"
        return tracked.owner_gone

    def _tracked(self, key: str) -> Tracked | None:
        machine = self.machine()
        return machine.migrations.context.tracked.get(key) if machine is not None else None
