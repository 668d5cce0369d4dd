"""Which Migration moves a pod if several would: never two of them.

Two may plan the same pods: each is planned while the write of the other is on its way, also by an earlier leader. So
before a Migration reserves nodes, before it evicts, and as it evicts, it is compared with the others.
"""

from collections.abc import Iterable
from typing import Final

from topo_scheduler.api.migrations import Phase
from topo_scheduler.recovery.model.migration_index import MigrationIndex
from topo_scheduler.recovery.model.migration_state import Tracked

EVICTING: Final = (Phase.EVICTING, Phase.PLACING)


def first_mover(index: MigrationIndex, tracked: Tracked, uids: Iterable[str]) -> tuple[str, Tracked] | None:
    """Return a pod with another Migration that moves it and comes first; None if there is none.

    Only Migrations of the same namespace count: any user can name any uid.
    """
    namespace = tracked.migration.metadata.namespace
    for uid in uids:
        for other in index.movers(uid):
            is_other = other is not tracked and other.migration.metadata.namespace == namespace
            if is_other and _comes_first(other, tracked):
                return uid, other
    return None


def _comes_first(other: Tracked, tracked: Tracked) -> bool:
    """Return whether the first of two Migrations moves the pods that both would move."""
    phase = other.intended_phase
    if phase is not None and phase.over:
        return False
    if other.migration.returns_nodes or tracked.migration.returns_nodes:
        # A lent spare node is returned although a Migration that finds no room is to move its pods.
        return phase in EVICTING and _rank(other) < _rank(tracked)
    return _rank(other) < _rank(tracked)


def _rank(tracked: Tracked) -> tuple[bool, bool, bool, bool, str, str]:
    """Return the sort key: those that evict, then those that heal, then requests, then voluntary ones; oldest first."""
    migration, cause = tracked.migration, tracked.migration.cause
    age = migration.metadata.creation_timestamp or ""
    evicts = tracked.intended_phase in EVICTING
    return not evicts, not cause.dead, not cause.of_node, cause.by_choice, age, migration.key
