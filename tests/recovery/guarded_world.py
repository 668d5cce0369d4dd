"""A cluster whose evictions are checked as the daemon does it, right before each of them."""

from dataclasses import dataclass, field
from typing import Any, cast

from tests.recovery.world import World
from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.recovery.controller.eviction_guard import EvictionGuard
from topo_scheduler.recovery.controller.moved_owners import MovedOwners
from topo_scheduler.recovery.model.instructions import EvictPod, RecoveryInstruction


class Owners:
    """Owners that all exist; ``confirmed`` is whether the API server says so."""

    def __init__(self) -> None:
        self.confirmed = True

    async def confirm(self, _: str) -> str:
        """Return why the API server does not confirm them."""
        return "" if self.confirmed else "no answer"

    def gone(self) -> tuple[Any, ...]:
        """Return no Migration: no owner is deleted."""
        return ()


@dataclass
class GuardedWorld(World):
    """A `World` with an `EvictionGuard`."""

    owners: Owners = field(default_factory=Owners)

    def carry_out(self, instruction: RecoveryInstruction) -> None:
        """Do what recovery wants done, unless the guard refuses it."""
        if isinstance(instruction, EvictPod) and (why := self.refusal(instruction.migration, instruction.uid)):
            self.recovery.migrations.evicted(
                instruction.migration,
                instruction.pod.uid,
                reason=MigrationReason.OWNER_NOT_CONFIRMED,
                message=why,
                now=self.now,
            )
            return
        super().carry_out(instruction)

    def refusal(self, key: str, uid: str) -> str:
        """Return why no pod is evicted for a Migration, given its namespace and name, and its uid."""
        guard = EvictionGuard(cast("MovedOwners", self.owners), lambda: self.recovery)
        return _returned(guard.reason_not_to_evict(key, uid))


def _returned(answer: Any) -> str:
    """Return what a coroutine returns that waits for nothing."""
    try:
        answer.send(None)
    except StopIteration as stop:
        return str(stop.value)
    answer.close()
    raise AssertionError("it waits")
