"""Recovery and the nodes kept for it: who may use them, and how they are taken back from those they were lent to.

Members of a gang go to their own leaves first, also where a kept node there is lent: then those who borrowed it give
way. They are evicted by Migrations of their own, for which no seats are held: their controllers make new pods, which
wait like any others. Pods of a node are let stay as long as there is room beside them, the costliest first; whatever
is found is tried on a copy before it is believed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

import numpy as np

from topo_scheduler.api.migrations import Cause, Migration, MigrationPod, MigrationSpec, Phase
from topo_scheduler.recovery.ground import MigrationContext
from topo_scheduler.recovery.instructions import CreateMigration
from topo_scheduler.recovery.naming import name_for
from topo_scheduler.recovery.reading import Refused, check_comes_back
from topo_scheduler.recovery.seating import MovingPod, find_seats, leaver, moves_of, who
from topo_scheduler.recovery.tracked import Condition, Tracked
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import Candidate, Candidates, candidates_below
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.workloads import Stage

GIVE_WAY: Final = "give-way"
"""Policy of Migrations of pods that leave what was lent to them."""
FAILED: Final = frozenset(
    {
        Cause.NOT_READY,
        Cause.UNREACHABLE,
        Cause.DELETED,
        Cause.MAINTENANCE,
        Cause.GPUS,
        Cause.CONDITION,
        Cause.LINKS,
        Cause.DOMAIN,
        Cause.REFUSED,
        Cause.CRASHING,
    }
)
"""Causes for which nodes are kept. Who asks for a move, or makes room for others, gets none."""


def may_use_spares(ground: MigrationContext, migration: Migration, now: float) -> bool:
    """Return whether pods of a Migration may go to nodes that are kept: it heals, by now if not from the start."""
    if not ground.warranted(migration):
        return False  # one dead node among those that it leaves is no reason to move what is well
    if migration.cause in FAILED:
        return True
    left, row_of = {move.from_ for move in migration.status.moves} - {""}, ground.engine.world.nodes.row_of
    return any(node not in row_of or ground.detection.died(node, now) for node in left)


def opening(
    ground: MigrationContext, migration: Migration, now: float, gone: Sequence[Candidate] = ()
) -> Callable[[Trial], None]:
    """Return what makes a copy of the state show room as a Migration may use it, once some pods are gone."""
    opens = may_use_spares(ground, migration, now)

    def prepare(trial: Trial) -> None:
        if opens:
            trial.planner.nodes.spare = np.zeros_like(trial.planner.nodes.spare)
        trial.remove(gone)

    return prepare


# ---------------------------------------------------------------- what was lent is taken back


def take_back(
    ground: MigrationContext,
    known: Tracked,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    found: Mapping[str, str],
    now: float,
) -> tuple[dict[str, str], str] | None:
    """Return seats on nodes that were lent, and what is to be said of them; None where those are of no use.

    They are of use where nothing else was found, or where more members of a gang stay in its leaves. Who must leave is
    asked to by Migrations that are created.

    Args:
        ground: all Migrations, and the state.
        known: the Migration.
        leavers: its pods.
        avoided: nodes that are no target.
        found: the seats without those nodes, by uid; empty where there are none.
        now: seconds.
    """
    engine, migration = ground.engine, known.migration
    lent = [row for row in engine.spares.lent() if engine.world.nodes.names[row] not in avoided]
    homes = homes_of(engine, leavers)
    if not lent or not may_use_spares(ground, migration, now) or (found and not strangers(engine, found, homes)):
        return None
    if unread := _unread(engine, lent, known.learned):
        ground.learn(known, unread)
        return None
    candidates = _candidates(engine, leavers, now, ground.epoch + now)
    asked = _asked_already(ground, migration)
    usable = _usable(engine, candidates, lent, ground.others(known).keys() - asked)
    seats = _seats(ground, migration, leavers, avoided, [candidates.pods[number] for number in usable], now)
    if not seats or (found and strangers(engine, seats, homes) >= strangers(engine, found, homes)):
        return None
    rows = {engine.world.nodes.row_of[node] for node in seats.values()}
    chosen = candidates.closed(number for number in usable if candidates.pods[number].row in rows)
    if chosen is None:
        return None
    needed = candidates.closed(_needed(engine, candidates, chosen, leavers, seats))
    for some in (needed, chosen):
        if some is None:
            continue
        seats = _seats(ground, migration, leavers, avoided, [candidates.pods[number] for number in some], now)
        if seats and (not found or strangers(engine, seats, homes) < strangers(engine, found, homes)):
            others = [one for number in some if (one := leaver(engine, candidates.pods[number].occupant.uid))]
            ground.out += _asked_to_leave(ground, migration, [one for one in others if one.member.uid not in asked])
            return seats, f"{len(leavers)} seats are held, which were lent to {who(others)}"
    return None


def homes_of(engine: Engine, leavers: Sequence[MovingPod]) -> set[tuple[str, ...]]:
    """Return the leaves of the members of a gang that stay where they are."""
    gang, going = leavers[0].workload, {one.member.uid for one in leavers}
    stay = (member for member in gang.members.values() if member.stage is not Stage.PENDING and member.uid not in going)
    return {leaf for member in stay if (leaf := engine.world.leaf_of(member.node)) is not None}


def strangers(engine: Engine, seats: Mapping[str, str], homes: Collection[tuple[str, ...]]) -> int:
    """Return how many seats are not in leaves where the gang is; 0 where it is nowhere else."""
    return sum(engine.world.leaf_of(node) not in homes for node in seats.values()) if homes else 0


def _seats(
    ground: MigrationContext,
    migration: Migration,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    gone: Sequence[Candidate],
    now: float,
) -> dict[str, str]:
    prepare = opening(ground, migration, now, gone)
    return dict(find_seats(ground.engine, leavers, avoided, migration.key, now, prepare))


def _candidates(engine: Engine, leavers: Sequence[MovingPod], now: float, wall: float) -> Candidates:
    """Return who may give way: whoever may borrow, and is of lower priority."""
    bound = min(engine.spares.spec.lend_below_priority, leavers[0].workload.priority)
    budgets = engine.preempting.budgets
    return candidates_below(bound, engine.world, engine.workloads, budgets, {}, lambda _: False, (), wall)


def _usable(engine: Engine, candidates: Candidates, rows: Collection[int], taken: Collection[str]) -> list[int]:
    """Return the candidates on these rows that can be asked to leave, by number."""
    return [
        number
        for number, pod in enumerate(candidates.pods)
        if pod.row in rows
        and pod.occupant.uid not in taken
        and (one := leaver(engine, pod.occupant.uid)) is not None
        and one.member.controlled
        and candidates.closed([number]) is not None
    ]


def _unread(engine: Engine, rows: Sequence[int], learned: Collection[str]) -> list[PodRef]:
    """Return pods on these rows that an earlier process placed, so that nothing but their names is known."""
    world, found = engine.world, []
    for row in rows:
        for uid in sorted(world.ledger.on_node(world.nodes.names[row])):
            entry = world.ledger.get(uid)
            occupant = entry.occupant if entry is not None else None
            known = engine.workloads.of_pod(uid) is not None or uid in learned
            lent = occupant is not None and occupant.controlled and engine.spares.may_borrow(occupant.priority)
            if occupant is not None and lent and not known:
                found.append(PodRef(occupant.namespace, occupant.name, uid))
    return found


def _needed(
    engine: Engine,
    candidates: Candidates,
    chosen: Sequence[int],
    leavers: Sequence[MovingPod],
    seats: Mapping[str, str],
) -> list[int]:
    """Return whom of the chosen it takes, by what pods hold of resources."""
    nodes = engine.world.nodes
    left: dict[int, Int64] = {}

    def charge(row: int, amounts: Sequence[tuple[int, int]], sign: int) -> None:
        here = left.setdefault(row, nodes.allocatable[row] - nodes.requested[row])
        for column, amount in amounts:
            here[column] += sign * amount

    for one in leavers:
        charge(nodes.row_of[seats[one.member.uid]], one.entry.amounts, -1)
    wanted = set(left)
    for number in chosen:
        charge(candidates.pods[number].row, candidates.pods[number].amounts, 1)
    kept: set[int] = set()
    for number in sorted(chosen, key=lambda number: (-candidates.pods[number].gpu_seconds, number)):
        pod = candidates.pods[number]
        if pod.row in wanted and all(left[pod.row][column] >= amount for column, amount in pod.amounts):
            charge(pod.row, pod.amounts, -1)
            kept.add(number)
    return [number for number in chosen if number not in kept and candidates.pods[number].row in wanted]


def _asked_already(ground: MigrationContext, migration: Migration) -> set[str]:
    """Return the pods that were asked to leave for a Migration before, as it was planned by a process that ended."""
    theirs = (one.migration for one in ground.tracked.values() if one.migration.gives_way)
    return {pod.uid for one in theirs if one.spec.makes_room_for == migration.key for pod in one.spec.pods}


def _asked_to_leave(
    ground: MigrationContext, migration: Migration, others: Sequence[MovingPod]
) -> list[CreateMigration]:
    by_workload: dict[str, list[MovingPod]] = {}
    for one in others:
        by_workload.setdefault(one.workload.id, []).append(one)
    out = []
    for some in by_workload.values():
        spec = MigrationSpec(
            cause=f"gives a spare node back for Migration {migration.key}",
            makes_room_for=migration.key,
            give_way=True,
            pods=[MigrationPod(one.member.name, one.member.uid) for one in some],
        )
        namespace = some[0].workload.namespace
        name = ground.finished.fresh_name(namespace, name_for(some))
        out.append(CreateMigration(namespace, name, spec))
    return out


# ---------------------------------------------------------------- those who give way


def plan_giving_way(ground: MigrationContext, known: Tracked, now: float) -> None:
    """Plan a Migration of pods that leave what was lent to them."""
    migration = known.migration
    world = ground.engine.world
    there = [pod for pod in migration.spec.pods if world.ledger.get(pod.uid) is not None]
    unread = [pod for pod in there if leaver(ground.engine, pod.uid) is None and pod.uid not in known.learned]
    if unread:
        ground.learn(known, [PodRef(migration.metadata.namespace, pod.name, pod.uid) for pod in unread])
        return
    found = (leaver(ground.engine, pod.uid) for pod in there)
    leavers = [one for one in found if one is not None and one.workload.namespace == migration.metadata.namespace]
    if not leavers:
        ground.end(known, Phase.CANCELLED, "NothingToMove", "the pods are gone already", now)
        return
    try:
        _check_borrowed(ground, migration, leavers)
    except Refused as error:
        ground.end(known, error.phase, error.reason, str(error), now)
        return
    reserved = Condition("Reserved", status=False, reason="Lent", message=why_no_seats(GIVE_WAY))
    moves, cause = moves_of(ground.engine, leavers), migration.spec.cause
    ground.write(known, now, Phase.PLANNED, moves, reserved, message=cause, policy=GIVE_WAY)


def _check_borrowed(ground: MigrationContext, migration: Migration, leavers: Sequence[MovingPod]) -> None:
    """See that pods may be asked to leave: anybody can write a Migration.

    Raises:
        Refused: one of them may not.
    """
    waits = ground.tracked.get(migration.spec.makes_room_for)
    moves = waits.migration.status.moves if waits is not None else []
    least = min((move.priority for move in moves), default=0)
    for one in leavers:
        check_comes_back(one)
        priority = one.workload.priority
        if not ground.engine.spares.may_borrow(priority) or (moves and priority >= least):
            text = f"pod {one.member.name} stays: nothing was lent to it, by its priority {priority}"
            raise Refused(Phase.FAILED, "NotLent", text)


def may_give_way(ground: MigrationContext, known: Tracked, now: float) -> bool:
    """Return whether pods may leave what was lent to them, as others hold seats there; end what has no use."""
    waits = ground.tracked[known.migration.spec.makes_room_for].migration
    if waits.phase is None or not waits.phase.running:
        return False
    if {move.to for move in waits.status.moves} & {move.from_ for move in known.migration.status.moves}:
        return True
    ground.end(known, Phase.CANCELLED, "NotNeeded", f"{waits.key} has found room elsewhere", now)
    return False


def why_no_seats(policy: str) -> str:
    """Return why nobody takes the place of the pods of a Migration."""
    if policy == GIVE_WAY:
        return "they give back what was lent to them: no seats are held"
    return "the gang goes on with fewer members: no seats are held"


def how_it_ended(policy: str, count: int) -> str:
    """Return what came of a Migration nobody takes the place of whose pods."""
    if policy == GIVE_WAY:
        return f"{count} pods gone, the spare nodes are given back"
    return f"{count} pods gone, the gang goes on without them"
