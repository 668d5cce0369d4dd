"""Moves that need not be: nothing failed, and nobody asked. They are done whole, or not at all.

Tried on a copy of the state: whether a gang that waits has a place once others have left, and whether each of these has
one then; whether a gang lies in fewer leaves afterwards; whether a block of free nodes grows.
"""

from collections import Counter
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from topo_scheduler.recovery.seating import (
    MovingPod,
    as_candidate,
    asked_again,
    count_promised,
    leaver,
    place_group,
    place_members,
    shut,
    trial_without,
)
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.moving.plan import as_candidates
from topo_scheduler.scheduling.parts import whole
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.resources import GPU
from topo_scheduler.state.workloads import Member, Workload

MOST_READ: Final = 256
"""Pods that are read at once, at most, to know whether they may move."""
LOOKED_AT: Final = 512
"""Pods, or workloads, that are looked at in one part."""


def together(leavers: Iterable[MovingPod]) -> list[list[MovingPod]]:
    """Return pods by the workloads that move as one, those that ask for most GPUs first."""
    groups: dict[str, list[MovingPod]] = {}
    for one in leavers:
        groups.setdefault(one.workload.id, []).append(one)
    return sorted(groups.values(), key=lambda some: (-max(one.entry.amount(GPU) for one in some), some[0].workload.id))


def gang_seats(
    engine: Engine,
    workload: Workload,
    members: Sequence[Member],
    others: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
) -> Mapping[str, str]:
    """Return a node for each member that waits, by uid, if others left theirs; empty without room for all of them.

    Args:
        engine: whose state is asked, not changed.
        workload: the gang.
        members: those that wait, to be placed together.
        others: pods of no higher priority that would leave their nodes.
        avoided: nodes that are no target.
        migration: whose own seats do not count.
        now: seconds.
    """
    trial = Trial(engine.planner, engine.world.layout, now, neighbours=True)
    trial.remove(as_candidate(one) for one in others)
    own = f"seat:{migration}:"
    lowest = min([workload.priority, *(one.workload.priority for one in others)])
    count_promised(engine, trial, lowest, lambda uid: uid.startswith(own) or uid in workload.members)
    shut(engine, trial, avoided)
    try:
        groups, _, never = engine.attempts.groups(workload, members)
        if never:
            return {}
        ask = engine.attempts.ask_by_now(workload, groups, engine.world.layout, now)
        placement = trial.place(ask)
    except PluginError:
        return {}
    if placement is None:
        return {}
    profiles = [[member.profile for member in some] for _, some in groups]
    trial.restore(as_candidates(ask, placement, profiles))
    return _names(engine, place_members(groups, placement)) if _all_seated(engine, trial, others) else {}


def have_seats(engine: Engine, leavers: Sequence[MovingPod], avoided: Collection[str], now: float) -> bool:
    """Return whether all of some pods have a place elsewhere. ``avoided`` nodes that are no target."""
    trial = Trial(engine.planner, engine.world.layout, now, neighbours=True)
    trial.remove(as_candidate(one) for one in leavers)
    count_promised(engine, trial, min(one.workload.priority for one in leavers), lambda _: False)
    shut(engine, trial, avoided)
    return _all_seated(engine, trial, leavers)


def _all_seated(engine: Engine, trial: Trial, leavers: Sequence[MovingPod]) -> bool:
    """Whether all have a place, none of them on a node that one of them leaves."""
    shut(engine, trial, {one.entry.node for one in leavers})
    return all(place_group(engine, trial, group) is not None for group in together(leavers))


def _names(engine: Engine, rows: Mapping[str, int]) -> dict[str, str]:
    names = engine.world.nodes.names
    return {uid: names[row] for uid, row in rows.items()}


def unread(engine: Engine, uids: Iterable[str], read: set[str]) -> tuple[PodRef, ...]:
    """Return what `look_for_unread` comes to, at once."""
    return whole(look_for_unread(engine, uids, read))


def look_for_unread(engine: Engine, uids: Iterable[str], read: set[str]) -> Generator[None, None, tuple[PodRef, ...]]:
    """Return pods that an earlier process placed, of which too little is known to move them; the first few.

    Args:
        engine: what there is.
        uids: pods.
        read: uids of those of which nothing more is to be learned; those that were looked at are added.
    """
    found: list[PodRef] = []
    for number, uid in enumerate(uids):
        if number % LOOKED_AT == LOOKED_AT - 1:
            yield
        if uid in read:
            continue
        entry, one = engine.world.ledger.get(uid), leaver(engine, uid)
        occupant = entry.occupant if entry is not None else None
        if occupant is None:
            continue  # its bind is on its way
        read.add(uid)
        if not occupant.fixed and (one is None or not one.member.cls.amounts):
            found.append(PodRef(occupant.namespace, occupant.name, uid))
            if len(found) == MOST_READ:
                break
    return tuple(found)


# ---------------------------------------------------------------- leaves of a gang


def leaves_of(engine: Engine, nodes: Iterable[str]) -> int:
    """Return in how many leaves nodes lie."""
    return len({engine.world.leaf_of(node) for node in nodes})


def fewer_leaves(engine: Engine, leavers: Sequence[MovingPod], targets: Mapping[str, str]) -> bool:
    """Return whether a gang lies in fewer leaves once some of its members are where they are to go."""
    members = leavers[0].workload.members.values()
    now = [member.node for member in members if member.node]
    then = [targets.get(member.uid, member.node) for member in members if member.node]
    return leaves_of(engine, then) < leaves_of(engine, now)


def seats_of_whole(
    engine: Engine, members: Sequence[MovingPod], avoided: Collection[str], now: float
) -> dict[str, str]:
    """Return a node for each member of a gang as if it were placed now, by uid; empty without room.

    Of members that are alike those stay that run on nodes where one is to be.

    Args:
        engine: whose state is asked, not changed.
        members: all of the gang.
        avoided: nodes that are no target, also for those that run there.
        now: seconds.
    """
    trial = trial_without(engine, members, avoided, "", now, neighbours=True)
    try:
        groups, ask = asked_again(engine, members)
        placement = trial.place(ask)
    except PluginError:
        return {}
    if placement is None:
        return {}
    names = engine.world.nodes.names
    found: dict[str, str] = {}
    for (_, some), rows in zip(groups, placement.rows, strict=True):
        left = Counter(names[row] for row in rows)
        astray: list[str] = []
        for member in some:
            if left[member.node] > 0:
                left[member.node] -= 1
                found[member.uid] = member.node
            else:
                astray.append(member.uid)
        found |= dict(zip(astray, left.elements(), strict=True))
    return found


# ---------------------------------------------------------------- free nodes of a leaf


def free_nodes(engine: Engine) -> Int64:
    """Return the free GPUs of each row whose node is usable and on which no GPU is used: int64[rows]."""
    nodes = engine.world.nodes
    held = engine.world.held()[:, GPU]
    usable = nodes.exists & nodes.ready & ~nodes.unschedulable
    return np.where(usable & (held == 0), nodes.allocatable[:, GPU], 0)


def largest_block(engine: Engine, free: Int64) -> int:
    """Return the most GPUs of free nodes in one leaf. ``free`` as `free_nodes` returns it."""
    layout = engine.world.layout
    if not len(layout.order):
        return 0
    return int(np.add.reduceat(free[layout.order], layout.offsets[:-1]).max())


def block_after(engine: Engine, leavers: Sequence[MovingPod], targets: Mapping[str, str]) -> int:
    """Return the largest block of free nodes once pods have gone where they are to go."""
    world, free = engine.world, free_nodes(engine)
    nodes, held = world.nodes, world.held()[:, GPU].copy()
    for one in leavers:
        held[one.entry.row] -= one.entry.amount(GPU)
    for row in {one.entry.row for one in leavers}:
        usable = nodes.ready[row] and not nodes.unschedulable[row]
        free[row] = nodes.allocatable[row, GPU] if usable and held[row] == 0 else 0
    for one in leavers:
        target = nodes.row_of.get(targets.get(one.member.uid, ""))
        if one.entry.amount(GPU) and target is not None:
            free[target] = 0
    return largest_block(engine, free)
