"""Spare nodes in recovery: which Migrations use them, and how recovery takes them back from pods that borrowed them.

Members of a gang go to their own leaves first, even if a spare node there is lent. Then recovery evicts the pods that
borrowed it, by Migrations of their own. No nodes are reserved for these pods: their controllers recreate them, and
the new pods are pending like any others. On each node, pods stay as long as there is room beside them, the costliest
pods first. Each plan is tried on a copy of the state.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.migration_reasons import ConditionType, MigrationReason
from topo_scheduler.api.migrations import Cause, Migration, Phase
from topo_scheduler.api.text import counted
from topo_scheduler.recovery.model.migration_context import MigrationContext
from topo_scheduler.recovery.model.migration_state import ConditionUpdate, Tracked
from topo_scheduler.recovery.model.seating import (
    MovingPod,
    find_moving_pod,
    find_moving_pods,
    find_seats,
    home_leaves,
    moves_of,
    pod_names,
)
from topo_scheduler.recovery.planning.migration_validation import Refused, check_comes_back, reference_of
from topo_scheduler.recovery.planning.relocation import helpers_of
from topo_scheduler.recovery.planning.voluntary_checks import beneficiary_name
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates
from topo_scheduler.scheduling.scheduler_view import SchedulerView
from topo_scheduler.state.nodes.node_table import Int64

GIVE_WAY: Final = "give-way"
"""Policy of Migrations of pods that leave spare nodes which were lent to them."""


def may_use_spares(context: MigrationContext, migration: Migration, now: float) -> bool:
    """Return whether pods of a Migration may use spare nodes: it heals, from the start or by now.

    Requested moves, moves that make room, and moves off nodes that are to be removed do not use them.
    """
    if not context.warranted(migration):
        return False  # one dead node is no reason to move pods off healthy nodes
    if migration.cause.of_node and migration.cause is not Cause.SCALE_DOWN:
        return True
    sources = {move.from_ for move in migration.status.moves} - {""}
    return any(context.dead_for_debounce(node, now) for node in sources)


def trial_preparation(
    context: MigrationContext, migration: Migration, now: float, departed: Sequence[Candidate] = ()
) -> Callable[[Trial], None]:
    """Return a function that changes a copy of the state to the room that a Migration may use once pods are gone."""
    uses_spares = may_use_spares(context, migration, now)

    def prepare(trial: Trial) -> None:
        if uses_spares:
            trial.planner.nodes.spare = np.zeros_like(trial.planner.nodes.spare)
        trial.remove(departed)

    return prepare


# ---------------------------------------------------------------- taking lent nodes back


def reclaim_lent(
    context: MigrationContext,
    tracked: Tracked,
    moving_pods: Sequence[MovingPod],
    avoided: Collection[str],
    seats_without: Mapping[str, str],
    now: float,
) -> tuple[dict[str, str], str] | None:
    """Return seats on lent spare nodes, and a text about them; None if these seats are no better.

    They are better if there are no other seats, or if more members of a gang stay in its leaves. Migrations are created
    for the pods that must leave.

    Args:
        context: all Migrations, and the state.
        tracked: the Migration.
        moving_pods: its pods.
        avoided: nodes that are no target.
        seats_without: the seats without lent nodes, by uid; empty if there are none.
        now: seconds.
    """
    view, migration = context.view, tracked.migration
    lent = [row for row in view.held.lent() if view.nodes.names[row] not in avoided]
    homes = home_leaves(view, moving_pods)
    if (
        not lent
        or not may_use_spares(context, migration, now)
        or (seats_without and not seats_outside(view, seats_without, homes))
    ):
        return None
    if unread := _unread(view, lent, tracked.learned):
        context.learn(tracked, unread)
        return None
    candidates = view.held.borrowers(moving_pods[0].workload.priority, context.epoch + now)
    already_asked = _asked_already(context, migration)
    usable = _usable(view, candidates, lent, _moving_now(context, tracked) - already_asked)

    def seats_without_pods(numbers: Sequence[int]) -> Mapping[str, str]:
        """Return the seats that are free once some candidates are gone."""
        prepare = trial_preparation(context, migration, now, [candidates.pods[number] for number in numbers])
        return find_seats(view, moving_pods, avoided, migration.key, now, prepare)

    def better(seats: Mapping[str, str]) -> bool:
        fewer_outside = seats_outside(view, seats, homes) < seats_outside(view, seats_without, homes)
        return bool(seats) and (not seats_without or fewer_outside)

    seats = seats_without_pods(usable)
    if not better(seats):
        return None
    rows = {view.nodes.row_of[node] for node in seats.values()}
    chosen = candidates.closed(number for number in usable if candidates.pods[number].row in rows)
    if chosen is None:
        return None
    needed = candidates.closed(_needed(view, candidates, chosen, moving_pods, seats))
    for numbers in (needed, chosen):
        if numbers is None:
            continue
        seats = seats_without_pods(numbers)
        if better(seats):
            leaving_pods = find_moving_pods(view, (candidates.pods[number].occupant.uid for number in numbers))
            asked = [pod for pod in leaving_pods if pod.member.uid not in already_asked]
            context.out += helpers_of(context, migration, asked, lent=True)
            reserved = f"room for {counted(len(moving_pods), 'pod')} is reserved"
            borrowers = pod_names(view, leaving_pods, migration.metadata.namespace)
            return dict(seats), f"{reserved}, which was lent to {borrowers}"
    return None


def seats_outside(view: SchedulerView, seats: Mapping[str, str], homes: Collection[tuple[str, ...]]) -> int:
    """Return the number of seats outside the leaves of the gang; 0 if the gang runs nowhere else."""
    return sum(view.leaf_of(node) not in homes for node in seats.values()) if homes else 0


def _usable(view: SchedulerView, candidates: Candidates, rows: Collection[int], taken: Collection[str]) -> list[int]:
    """Return the numbers of the candidates on these rows that may be evicted."""
    return [
        number
        for number, pod in enumerate(candidates.pods)
        if pod.row in rows
        and pod.occupant.uid not in taken
        and (moving_pod := find_moving_pod(view, pod.occupant.uid)) is not None
        and moving_pod.member.controlled
        and candidates.closed([number]) is not None
    ]


def _unread(view: SchedulerView, rows: Sequence[int], learned: Collection[str]) -> list[PodRef]:
    """Return pods on these rows that an earlier process placed, of which this process knows only the names."""
    pods = []
    for row in rows:
        for uid in view.pods_on(view.nodes.names[row]):
            entry = view.entry(uid)
            occupant = entry.occupant if entry is not None else None
            is_known = view.member(uid) is not None or uid in learned
            lent = occupant is not None and occupant.controlled and view.held.may_borrow(occupant.priority)
            if occupant is not None and lent and not is_known and occupant.scheduler == view.scheduler_name:
                pods.append(PodRef(occupant.namespace, occupant.name, uid))
    return pods


def _needed(
    view: SchedulerView,
    candidates: Candidates,
    chosen: Sequence[int],
    moving_pods: Sequence[MovingPod],
    seats: Mapping[str, str],
) -> list[int]:
    """Return the chosen candidates that must leave, by the resources that pods hold."""
    nodes = view.nodes
    free: dict[int, Int64] = {}

    def charge(row: int, amounts: Sequence[tuple[int, int]], sign: int) -> None:
        free_of_row = free.setdefault(row, nodes.allocatable[row] - nodes.requested[row])
        for column, amount in amounts:
            free_of_row[column] += sign * amount

    for moving_pod in moving_pods:
        charge(nodes.row_of[seats[moving_pod.member.uid]], moving_pod.entry.amounts, -1)
    rows = set(free)
    for number in chosen:
        charge(candidates.pods[number].row, candidates.pods[number].amounts, 1)
    kept: set[int] = set()
    for number in sorted(chosen, key=lambda number: (-candidates.pods[number].gpu_seconds, number)):
        pod = candidates.pods[number]
        if pod.row in rows and all(free[pod.row][column] >= amount for column, amount in pod.amounts):
            charge(pod.row, pod.amounts, -1)
            kept.add(number)
    return [number for number in chosen if number not in kept and candidates.pods[number].row in rows]


def _moving_now(context: MigrationContext, tracked: Tracked) -> set[str]:
    """Return the pods that other Migrations move now. One that waits for room would keep its pods where they are."""
    elsewhere = context.moved_elsewhere(tracked)
    return {uid for uid, key in elsewhere.items() if context.tracked[key].migration.running}


def _asked_already(context: MigrationContext, migration: Migration) -> set[str]:
    """Return the pods of Migrations that were created for this one before, also by a process that has ended."""
    migrations = (helper.migration for helper in context.index.helpers(migration.key) if context.is_helper(helper))
    helpers = [helper for helper in migrations if helper.returns_nodes]
    return {uid for evicting in helpers for uid in context.named_uids(evicting)}


# ---------------------------------------------------------------- pods that give spare nodes back


def plan_return_of_nodes(context: MigrationContext, tracked: Tracked, now: float) -> None:
    """Plan a Migration of pods that leave spare nodes which were lent to them."""
    migration = tracked.migration
    present = [pod for pod in migration.spec.pods if context.view.entry(pod.uid) is not None]
    unread = [
        pod for pod in present if find_moving_pod(context.view, pod.uid) is None and pod.uid not in tracked.learned
    ]
    if unread:
        namespace = migration.metadata.namespace
        context.learn(tracked, [reference_of(context.view, namespace, pod.name, pod.uid) for pod in unread])
        return
    candidates = find_moving_pods(context.view, (pod.uid for pod in present))
    moving_pods = [pod for pod in candidates if pod.workload.namespace == migration.metadata.namespace]
    if not moving_pods:
        context.end(tracked, Phase.CANCELLED, MigrationReason.NOTHING_TO_MOVE, "the pods are gone already", now)
        return
    try:
        _check_borrowed(context, migration, moving_pods)
    except Refused as error:
        context.end(tracked, error.phase, error.reason, str(error), now)
        return
    reserved = ConditionUpdate(
        ConditionType.RESERVED, status=False, reason=MigrationReason.LENT, message=why_no_seats(GIVE_WAY)
    )
    moves, cause = moves_of(context.view, moving_pods), migration.spec.cause
    context.write(tracked, now, Phase.PLANNED, moves, reserved, message=cause, policy=GIVE_WAY)


def _check_borrowed(context: MigrationContext, migration: Migration, moving_pods: Sequence[MovingPod]) -> None:
    """Check that pods may be evicted from lent nodes: any user can write a Migration.

    Raises:
        Refused: one of the pods may not be evicted.
    """
    beneficiary = context.tracked.get(migration.spec.makes_room_for)
    moves = beneficiary.migration.status.moves if beneficiary is not None else []
    lowest = min((move.priority for move in moves), default=0)
    for pod in moving_pods:
        check_comes_back(pod)
        priority = pod.workload.priority
        if not context.view.held.may_borrow(priority) or (moves and priority >= lowest):
            text = f"pod {pod.member.name} stays: no spare node was lent to it, by its priority {priority}"
            raise Refused(Phase.FAILED, MigrationReason.NOT_LENT, text)


def may_return_nodes(context: MigrationContext, tracked: Tracked, now: float) -> bool:
    """Return whether pods may be evicted from lent nodes, which are reserved. End the Migration if it is useless."""
    beneficiary = context.tracked[tracked.migration.spec.makes_room_for].migration
    if not beneficiary.running:
        return False
    if {move.to for move in beneficiary.status.moves} & {move.from_ for move in tracked.migration.status.moves}:
        return True
    text = f"{beneficiary_name(context, tracked.migration)} has found room elsewhere"
    context.end(tracked, Phase.CANCELLED, MigrationReason.NOT_NEEDED, text, now)
    return False


def why_no_seats(policy: str) -> str:
    """Return why no nodes are reserved for the pods of a Migration."""
    if policy == GIVE_WAY:
        return "they leave spare nodes that were lent to them: no nodes are reserved"
    return "the gang continues with fewer members: no nodes are reserved"


def how_it_ended(policy: str, count: int) -> str:
    """Return the result of a Migration for whose pods no nodes were reserved."""
    if policy == GIVE_WAY:
        return f"{counted(count, 'pod')} gone, the spare nodes are free again"
    return f"{counted(count, 'pod')} gone, the gang continues without them"
