"""When a move by choice may go on: nobody is evicted for it unless all who must move have seats, and it is of use."""

from collections.abc import Mapping, Sequence
from typing import Final

from topo_scheduler.api.migrations import Cause, Migration, OtherPod, Phase
from topo_scheduler.recovery.by_choice import block_after, fewer_leaves, free_nodes, largest_block
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.seating import MovingPod, leaver
from topo_scheduler.recovery.tracked import Tracked

ALONE: Final = 30.0
"""Seconds in which all that must move as well must have seats."""


def all_have_seats(ground: MigrationContext, migration: Migration) -> bool:
    """Return whether those who must move as well have seats or are gone, and it is still waited for them."""
    if not migration.cause.by_choice:
        return True
    status, waits_for = migration.status, migration.spec.makes_room_for
    if waits_for:
        known = ground.tracked.get(waits_for)
        if known is None or known.migration.phase is not Phase.RESERVING:
            return False
        status = known.migration.status
    seated = _moving(ground)
    return all(one.uid in seated or ground.engine.world.ledger.get(one.uid) is None for one in status.others)


def _moving(ground: MigrationContext) -> dict[str, str]:
    """Return the nodes of seats that are held for moves by choice, by the uid of the pod."""
    return {
        move.uid: move.to
        for one in ground.tracked.values()
        if one.migration.cause.by_choice and one.migration.phase is not None and one.migration.phase.running
        for move in one.migration.status.moves
        if move.to
    }


def useless(
    ground: MigrationContext, migration: Migration, leavers: Sequence[MovingPod], targets: Mapping[str, str]
) -> str:
    """Return why a move by choice need not be, now that it is known where pods would go; empty where it is of use."""
    if not migration.cause.by_choice or migration.spec.makes_room_for:
        return ""
    if not targets:
        return "there is no room any more for the pods that would move"
    if migration.cause is Cause.IMPROVEMENT:
        if not ground.spec.improvement.enabled:
            return "recovery.improvement.enabled is not set"
        return "" if fewer_leaves(ground.engine, leavers, targets) else "the gang would not lie in fewer leaves"
    if not (ground.spec.defragmentation.enabled and ground.spec.defragmentation.largest_block):
        return "recovery.defragmentation.largestBlock is not set"
    engine = ground.engine
    others = _others(ground, migration.status.others)
    all_targets = {**_moving(ground), **targets}
    grows = block_after(engine, [*leavers, *others], all_targets) > largest_block(engine, free_nodes(engine))
    return "" if grows else "no larger block of free nodes would come of it"


def _others(ground: MigrationContext, named: Sequence[OtherPod]) -> list[MovingPod]:
    return [one for other in named if (one := leaver(ground.engine, other.uid)) is not None]


def kept_free(ground: MigrationContext, migration: Migration) -> set[str]:
    """Return the nodes that a move which makes a block of free nodes must leave free, or is to set free."""
    if migration.cause is not Cause.DEFRAGMENTATION or migration.spec.makes_room_for:
        return set()
    nodes = ground.engine.world.nodes
    free = free_nodes(ground.engine)
    left = {one.entry.node for one in _others(ground, migration.status.others)}
    return left | {name for name, row in nodes.row_of.items() if free[row]}


def no_use_now(ground: MigrationContext, known: Tracked, now: float) -> tuple[str, str] | None:
    """Return reason and text of why nobody more should be evicted for a move by choice; None where it is of use.

    From a node that has failed meanwhile they go in any case, as long as they have seats; what fails makes new ones.
    """
    migration = known.migration
    if ground.since(known, Phase.RESERVING, now) > ground.spec.seats_expire:
        return "Expired", "seats are held no longer"
    if (lost := ground.lost_target(migration.status.moves, now)) is not None:
        return "SeatLost", f"node {lost} can't be used now"
    if any(ground.detection.ill(move.from_) for move in migration.status.moves):
        return None
    waits_for = migration.spec.makes_room_for
    if waits_for:
        other = ground.tracked.get(waits_for)
        if other is None:
            return "NotNeeded", f"{waits_for}, for which it makes room, is over"
        if other.migration.phase is not Phase.RESERVING:
            return "NotNeeded", f"{waits_for}, for which it makes room, has its room"
    return None
