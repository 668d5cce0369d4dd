"""Changes of devices and claims, applied before each decision."""

from dataclasses import dataclass

from topo_scheduler.scheduling.binding.outcomes import Outcomes
from topo_scheduler.scheduling.intake.arrivals import Arrivals
from topo_scheduler.scheduling.intake.device_claims import WATCHED_LISTS, watched_claim
from topo_scheduler.scheduling.world import World


@dataclass(frozen=True, slots=True)
class DeviceIntake:
    """Applies what changed in ResourceSlices, DeviceClasses and ResourceClaims to pods and tables of GPUs."""

    world: World
    arrivals: Arrivals
    outcomes: Outcomes

    def settle(self, now: float) -> None:
        """Apply changes of devices and claims, and let the choice of GPUs follow the pods of the cluster.

        Most clusters have no devices, and each decision asks. So attributes say whether there is anything to do.
        """
        world = self.world
        # With classes, a resource that was not known before may be one that devices back.
        if world.inventory.changed or world.inventory.classes or self.outcomes.claims.release_due:
            self._apply(now)
        if (sets := world.around.gpu_sets) is not None and world.ledger.changes >= sets.tables.due_at:
            world.settle_gpu_tables()

    def _apply(self, now: float) -> None:
        """Apply changes of devices and claims, so that pods with these claims are read again."""
        claims, offers = self.outcomes.claims, self.world.resources.offers
        changes = self.world.settle_devices()
        if changes.resources:
            self.arrivals.understand_all()
            self.arrivals.forget_backed()
        elif offers != self.world.resources.offers:
            self.arrivals.resources_offered()
        claims.protection.changed(changes.claims)
        changed = [*changes.claims, *claims.take_due(now)]
        if changed:
            claims.claims_changed()
        if changes.lists:
            self.arrivals.owner_changed(WATCHED_LISTS)
        for key in changed:
            self.arrivals.owner_changed(watched_claim(key))
        for key in changes.allocations:
            self.arrivals.claim_reallocated(key)
