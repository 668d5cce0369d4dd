"""Voluntary moves: evictions begin only once all pods that must move have seats, and the move is useful."""

from collections.abc import Mapping, Sequence
from typing import Final

from topo_scheduler.api.migration_reasons import MigrationReason
from topo_scheduler.api.migrations import Cause, Migration, Phase
from topo_scheduler.api.text import one_for
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import Beneficiary, Tracked
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pods
from topo_scheduler.recovery.planning.voluntary_moves import block_after, fewer_leaves, free_nodes, largest_block
from topo_scheduler.scheduling.preemption.vain_evictions import ONE_AT_A_TIME

ALONE_SECONDS: Final = 30.0
"""Seconds within which all pods that must move together must have seats."""
MAX_SLOT_WAIT_SECONDS: Final = 120.0
"""Seconds for which a MIG slot is held at most while pods leave it.

That is their grace period (`MAX_GRACE_SECONDS`), and as much to reserve places and to deallocate devices.
"""


def all_have_seats(context: MigrationContext, migration: Migration) -> bool:
    """Return whether all other pods that must move have seats or are gone, and the room is still needed."""
    if not migration.cause.by_choice:
        return True
    status, beneficiary_key = migration.status, migration.spec.makes_room_for
    if beneficiary_key:
        beneficiary = context.tracked.get(beneficiary_key)
        if beneficiary is None or beneficiary.migration.phase is not Phase.RESERVING:
            return False
        status = beneficiary.migration.status
    seated = _moving(context)
    return all(other.uid in seated or context.view.entry(other.uid) is None for other in status.others)


def _moving(context: MigrationContext) -> dict[str, str]:
    """Return the nodes of seats that are held for voluntary moves, by the uid of the pod."""
    return {
        move.uid: move.to
        for tracked in context.index.running.values()
        if tracked.migration.cause.by_choice
        for move in tracked.migration.status.moves
        if move.to
    }


def reason_useless(
    context: MigrationContext, migration: Migration, moving_pods: Sequence[MovingPod], targets: Mapping[str, str]
) -> str:
    """Return why a voluntary move is useless, given the targets of its pods; empty if it is useful."""
    if not migration.cause.by_choice or migration.spec.makes_room_for:
        return ""
    if not targets:
        return "there is no room any more for the pods that would move"
    if migration.cause is Cause.IMPROVEMENT:
        if not context.spec.improvement.enabled:
            return "recovery.improvement.enabled is not set"
        return "" if fewer_leaves(context.view, moving_pods, targets) else "the gang would not span fewer leaves"
    if not (context.spec.defragmentation.enabled and context.spec.defragmentation.largest_block):
        return "recovery.defragmentation.largestBlock is not set"
    view = context.view
    other_pods = find_moving_pods(view, (other.uid for other in migration.status.others))
    all_targets = {**_moving(context), **targets}
    grows = block_after(view, [*moving_pods, *other_pods], all_targets) > largest_block(view, free_nodes(view))
    return "" if grows else "it would create no larger block of free nodes"


def longest_wait(context: MigrationContext, migration: Migration) -> float:
    """Return for how many seconds places are held for pending pods while other pods leave."""
    longest = context.spec.reservation_timeout
    return min(longest, MAX_SLOT_WAIT_SECONDS) if migration.cause is Cause.PENDING_POD else longest


def beneficiary_of(context: MigrationContext, migration: Migration, uid: str, now: float) -> Beneficiary | None:
    """Return the pending workload for which a pod of a Migration moves; None if it moves for another reason.

    Any user can name another Migration in ``makesRoomFor``. So the scheduler must have chosen the pod for it.
    """
    tracked = context.tracked.get(migration.spec.makes_room_for)
    if tracked is None or not tracked.migration.cause.holds_places or not tracked.migration.status.moves:
        return None
    status, namespace = tracked.migration.status, tracked.migration.metadata.namespace
    pods = [other.uid for other in status.others]
    if uid not in pods:
        return None
    return Beneficiary(pods, status.moves[0].workload, namespace, now + longest_wait(context, tracked.migration))


def why_no_room_is_made(context: MigrationContext, namespace: str, now: float, own: str = "") -> str:
    """Return why no pod may move now to make room for a workload of a namespace; empty if pods may.

    After evictions in vain, pods move for one workload of the namespace at a time. ``own`` is the key of the Migration
    that is to begin; empty before it is created.
    """
    if text := context.view.planning.why_no_moves(namespace, now):
        return text
    if not context.view.planning.evicted_in_vain(namespace, now):
        return ""
    under_way = any(
        other.migration.cause.holds_places
        and other.migration.metadata.namespace == namespace
        and other.migration.key != own
        and (not own or other.migration.running or context.view.held.has_seats_of(other.migration.key))
        for other in context.tracked.values()
    )
    intended = not own and any(key.startswith(f"{namespace}/") for key in context.intended)
    return f"{ONE_AT_A_TIME}." if under_way or intended else ""


def kept_free(context: MigrationContext, migration: Migration) -> set[str]:
    """Return the nodes that a move which enlarges a block of free nodes must leave free, or frees."""
    if migration.cause is not Cause.DEFRAGMENTATION or migration.spec.makes_room_for:
        return set()
    nodes = context.view.nodes
    free = free_nodes(context.view)
    leaving_pods = find_moving_pods(context.view, (other.uid for other in migration.status.others))
    freed = {pod.entry.node for pod in leaving_pods}
    return freed | {name for name, row in nodes.row_of.items() if free[row]}


def beneficiary_over(context: MigrationContext, migration: Migration) -> str:
    """Return that the Migration for which one makes room is over, as a text; empty if it is not."""
    beneficiary = migration.spec.makes_room_for
    if not beneficiary or beneficiary in context.tracked:
        return ""
    return f"{beneficiary_name(context, migration)}, for which it makes room, is over"


def beneficiary_name(context: MigrationContext, migration: Migration) -> str:
    """Return how messages of a Migration refer to the one for which it makes room."""
    reader = context.view.reader(migration.metadata.namespace)
    return one_for(migration.spec.makes_room_for, reader, "Migration")


def reason_useless_now(context: MigrationContext, tracked: Tracked, now: float) -> tuple[MigrationReason, str] | None:
    """Return reason and text of why a Migration that does not heal should evict no further pod; None if it should.

    Pods on a node that has failed meanwhile go in any case, as the failure makes the move useful. They need seats, and
    a beneficiary that is not over.
    """
    migration = tracked.migration
    if over := beneficiary_over(context, migration):
        return MigrationReason.NOT_NEEDED, over
    if node := _unconfirmed_on_dead_node(context, tracked, now):
        return MigrationReason.NOT_NEEDED, superseded_text(node)
    if not migration.cause.by_choice:
        return not_awaited(context, migration, now)
    if context.since(tracked, Phase.RESERVING, now) > context.spec.reservation_timeout:
        return MigrationReason.EXPIRED, "the reservation has ended"
    if (lost := context.lost_target(migration.status.moves, now)) is not None:
        return MigrationReason.SEAT_LOST, f"node {lost} can't be used now"
    if any(context.detection.has_problem(move.from_) for move in migration.status.moves):
        return None
    beneficiary = context.tracked.get(migration.spec.makes_room_for)
    if beneficiary is not None and beneficiary.migration.phase is not Phase.RESERVING:
        return (
            MigrationReason.NOT_NEEDED,
            f"{beneficiary_name(context, migration)}, for which it makes room, has its room",
        )
    return None


def superseded_text(node: str) -> str:
    """Return why a Migration that heals nothing ends when a node of its pods is dead."""
    return f"node {node} has failed: recovery moves its pods; for pods on other nodes, create another Migration"


def _unconfirmed_on_dead_node(context: MigrationContext, tracked: Tracked, now: float) -> str:
    """Return a dead node whose pods stay as the API server does not confirm their owners; healing needs no answer."""
    unconfirmed = (
        move.from_
        for move in tracked.migration.status.moves
        if (eviction := tracked.evictions.get(move.uid)) is not None
        and eviction.reason == MigrationReason.OWNER_NOT_CONFIRMED
    )
    return next((node for node in unconfirmed if context.detection.dead_for_debounce(node, now)), "")


def not_awaited(context: MigrationContext, migration: Migration, now: float) -> tuple[MigrationReason, str] | None:
    """Return why pods need not leave any more: they stayed, and the other Migration has found other room; or None."""
    beneficiary = context.tracked.get(migration.spec.makes_room_for)
    if beneficiary is None or not beneficiary.migration.running:
        return None
    stayed = any(beneficiary.stays(uid, now) for uid in context.named_uids(migration))
    if not stayed or any(context.detection.has_problem(move.from_) for move in migration.status.moves):
        return None
    return (
        MigrationReason.NOT_NEEDED,
        f"{beneficiary_name(context, migration)}, for which it makes room, has found room elsewhere",
    )
