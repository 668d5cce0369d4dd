"""Which other pods should move so that a gang keeps its domain, where nothing is free near.

What a set of moves costs is the sum over its pods of GPUs (one at least) times the seconds it loses: `RESTART`, and
what it ran since its last checkpoint. Sets whose highest priority is lower come first, then cheaper ones, then smaller
ones. Pods of a gang move all together, as far as the gang can't spare them.

- With at most `EXACT` workloads that might move every set of them is tried in that order, each with its place for the
  gang and then for those who move, as in `moving.plan`: the first that holds is the best, for the place the planner
  finds.
- With more, the sets that are fewest in each domain (`moving.plan.by_domain`) are tried in that order. That may miss a
  plan, or the cheapest.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from topo_scheduler.api.migrations import Migration, MigrationPod, MigrationSpec
from topo_scheduler.recovery.instructions import CreateMigration
from topo_scheduler.recovery.naming import makes_room_for, name_for
from topo_scheduler.recovery.seating import Groups, MovingPod, asked_again, leaver, place_members, trial_without
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.moving.machine import GoneError
from topo_scheduler.scheduling.moving.plan import as_candidates, by_domain, makes_room, seat_again
from topo_scheduler.scheduling.parts import whole
from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, WHOLE, Candidates
from topo_scheduler.state.resources import GPU

EXACT: Final = 10
"""Workloads that might move up to which every set of them is tried."""
MOST_SETS: Final = 200
"""Sets tried at most, of those that make room, where there are more workloads."""
MOST_PODS: Final = 64
"""Pods of one set at most."""
MOST_READ: Final = 256
"""Pods that are read at most, to know whether they may move."""
RESTART: Final = 60.0
"""Seconds it takes a pod to be where it was at its last checkpoint, wherever it starts."""

Key = tuple[int, float, int, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Relocation:
    """A node for each pod that leaves, by uid; and who moves before, ``to`` which nodes, by uid as well."""

    seats: dict[str, str]
    others: tuple[MovingPod, ...]
    cost: float
    to: dict[str, str]


def cost_of(one: MovingPod, wall: float) -> float:
    """Return what it costs to move a pod, in GPU-seconds. ``wall`` seconds since the epoch."""
    occupant, interval = one.entry.occupant, one.workload.request.checkpoint_interval
    ran = max(0.0, wall - occupant.started) if occupant is not None else 0.0
    return max(1, one.entry.amount(GPU)) * (RESTART + (min(ran, interval) if interval else ran))


def restart_cost(survivors: Sequence[MovingPod]) -> float:
    """Return what it costs to move the members of a gang that is broken already: what they ran is lost either way."""
    return sum(max(1, one.entry.amount(GPU)) * RESTART for one in survivors)


def find_room(
    engine: Engine,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    taken: Collection[str],
    migration: str,
    now: float,
    wall: float,
) -> Relocation | None:
    """Return the cheapest moves that make room for members of a gang, at once; None where none are found.

    The arguments are those of `look_for_room`.
    """
    found = look_for_room(engine, leavers, avoided, taken, migration, now, wall)
    return next((room for room in found if room is not None), None)


def look_for_room(
    engine: Engine,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    taken: Collection[str],
    migration: str,
    now: float,
    wall: float,
    prepare: Callable[[Trial], None] = lambda _: None,
) -> Iterator[Relocation | None]:
    """Look for the cheapest moves that make room for members of a gang: yield None after each part, and what is found.

    Args:
        engine: whose state is asked, not changed.
        leavers: members of one gang, or one pod alone.
        avoided: nodes that are no target.
        taken: uids of pods that move for other reasons.
        migration: whose own seats do not count.
        now: seconds.
        wall: seconds since the epoch.
        prepare: changes the copy on which it is looked for.
    """
    workload = leavers[0].workload
    if (len(leavers) > 1 and not workload.gang) or not engine.preempting.budgets.known:
        return
    try:
        groups, ask = asked_again(engine, leavers)
        candidates = engine.moving.movable(workload)
        if not candidates.pods:
            return
        trial = trial_without(engine, leavers, avoided, migration, now, neighbours=True)
        prepare(trial)
        for chosen in _sets(engine, trial, ask, candidates, avoided, taken, wall):
            found = None if chosen is None else _tried(engine, trial, ask, candidates, chosen)
            if chosen is not None and found is not None:
                yield _room(engine, groups, found, candidates, chosen, wall)
                return
            yield None
    except (PluginError, GoneError):
        return


def looked_again(
    engine: Engine,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    wall: float,
    room: Relocation,
) -> Relocation | None:
    """Return the same moves as things are now, None where they make no room any more; as `look_for_room` otherwise."""
    candidates = engine.moving.movable(leavers[0].workload)
    number = {pod.occupant.uid: at for at, pod in enumerate(candidates.pods)}
    uids = [one.member.uid for one in room.others]
    if not number.keys() >= set(uids):
        return None
    chosen = sorted(number[uid] for uid in uids)
    try:
        groups, ask = asked_again(engine, leavers)
        trial = trial_without(engine, leavers, avoided, migration, now, neighbours=True)
        found = _tried(engine, trial, ask, candidates, chosen)
    except (PluginError, GoneError):
        return None
    if found is None:
        return None
    return _room(engine, groups, found, candidates, chosen, wall)


def _room(
    engine: Engine,
    groups: Groups,
    found: tuple[Placement, list[int]],
    candidates: Candidates,
    chosen: Sequence[int],
    wall: float,
) -> Relocation:
    names, (placement, rows) = engine.world.nodes.names, found
    others = leavers_of(engine, candidates, chosen)
    seats = {uid: names[row] for uid, row in place_members(groups, placement).items()}
    to = {candidates.pods[number].occupant.uid: names[row] for number, row in zip(chosen, rows, strict=True)}
    return Relocation(seats, others, key_of(others, wall)[1], to)


def neighbours_unread(engine: Engine, leavers: Sequence[MovingPod]) -> list[PodRef]:
    """Return pods in the leaves of a gang that an earlier process placed: whether they may move is not known yet."""
    world, gang = engine.world, leavers[0].workload
    homes = {*(one.entry.node for one in leavers), *(member.node for member in gang.members.values())}
    leaves = {world.leaf_of(node) for node in homes} - {None}
    layout = world.layout
    found = []
    for leaf, path in enumerate(layout.paths):
        if path not in leaves:
            continue
        for row in layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist():
            for uid in sorted(world.ledger.on_node(world.nodes.names[row])):
                entry, one = world.ledger.get(uid), leaver(engine, uid)
                occupant = entry.occupant if entry is not None else None
                if occupant is not None and not occupant.fixed and (one is None or not one.member.cls.amounts):
                    found.append(PodRef(occupant.namespace, occupant.name, uid))
    return found[:MOST_READ]


def _tried(
    engine: Engine, trial: Trial, ask: PlacementQuery, candidates: Candidates, chosen: Sequence[int]
) -> tuple[Placement, list[int]] | None:
    """Return the place of the gang if a set of pods went, and each of them has one then, with the rows of those."""
    pods = [candidates.pods[number] for number in chosen]
    trial.remove(pods)
    try:
        placement = trial.place(ask)
        if placement is None:
            return None
        there = as_candidates(ask, placement, ())
        trial.restore(there)
        try:
            rows = whole(seat_again(trial, candidates, chosen, engine.moving.again))
        finally:
            trial.remove(there)
        # One that could stay where it is need not move: a smaller set does as well.
        if rows is None or any(row == pod.row for pod, row in zip(pods, rows, strict=True)):
            return None
        return placement, rows
    finally:
        trial.restore(pods)


def _sets(
    engine: Engine,
    trial: Trial,
    ask: PlacementQuery,
    candidates: Candidates,
    avoided: Collection[str],
    taken: Collection[str],
    wall: float,
) -> Iterator[tuple[int, ...] | None]:
    """Yield None after each part of the work, then sets of candidates, the best first."""
    layout, names = engine.world.layout, engine.world.nodes.names
    barred = {
        number for number, pod in enumerate(candidates.pods) if names[pod.row] in avoided or pod.occupant.uid in taken
    }
    units = [unit for unit in units_of(candidates) if barred.isdisjoint(unit)]
    if len(units) <= EXACT:
        room = makes_room(trial, ask, layout, candidates)
        sets = []
        for chosen in every_set(candidates, units):
            if room(chosen):
                sets.append(chosen)
            yield None
    else:
        sets = []
        for one in by_domain(trial, ask, layout, candidates, MOST_PODS):
            if one is None:
                yield None
            elif barred.isdisjoint(one):
                sets.append(tuple(one))
        sets = sets[:MOST_SETS]
    yield from sorted(sets, key=lambda chosen: key_of(leavers_of(engine, candidates, chosen), wall))


def every_set(candidates: Candidates, units: Sequence[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Yield each set of candidates that can leave, of the units given; but for the empty one."""
    found = {
        tuple(sorted({number for unit in some for number in unit}))
        for size in range(1, len(units) + 1)
        for some in combinations(units, size)
    }
    yield from (chosen for chosen in found if candidates.closed(chosen) == list(chosen))


def units_of(candidates: Candidates) -> list[tuple[int, ...]]:
    """Return what moves as one: a pod alone, a whole gang, a member that a gang can spare."""
    units: list[tuple[int, ...]] = [(number,) for number, pod in enumerate(candidates.pods) if pod.gang == NO_GANG]
    for gang in candidates.gangs:
        if gang.rule == WHOLE:
            units.append(gang.members)
        if gang.slack > 0:
            units += [(number,) for number in gang.members]
    return list(dict.fromkeys(units))


def leavers_of(engine: Engine, candidates: Candidates, chosen: Sequence[int]) -> tuple[MovingPod, ...]:
    """Return candidates as pods that leave."""
    found = (leaver(engine, candidates.pods[number].occupant.uid) for number in chosen)
    return tuple(one for one in found if one is not None)


def key_of(others: Sequence[MovingPod], wall: float) -> Key:
    """Return what sets are ordered by: highest priority, cost, size, names. ``wall`` seconds since the epoch."""
    priority = max((one.entry.occupant.priority for one in others if one.entry.occupant is not None), default=0)
    return priority, sum(cost_of(one, wall) for one in others), len(others), tuple(sorted(o.member.key for o in others))


def helpers_of(
    migration: Migration,
    others: Sequence[MovingPod],
    fresh_name: Callable[[str, str], str],
    reader: Callable[[str], str],
) -> list[CreateMigration]:
    """Return the Migrations of those who make room: one for each gang, and each pod alone.

    Args:
        migration: for what they make room.
        others: the pods that leave.
        fresh_name: gives a name that no Migration of a namespace has had, from a proposal.
        reader: gives the reader of what is written in a namespace; see `few_for`.
    """
    by_workload: dict[str, list[MovingPod]] = {}
    for one in others:
        by_workload.setdefault(one.workload.id, []).append(one)
    out = []
    for some in by_workload.values():
        namespace = some[0].workload.namespace
        spec = MigrationSpec(
            cause=makes_room_for(migration.key, reader(namespace)),
            makes_room_for=migration.key,
            pods=[MigrationPod(one.member.name, one.member.uid) for one in some],
        )
        out.append(CreateMigration(namespace, fresh_name(namespace, name_for(some)), spec))
    return out
