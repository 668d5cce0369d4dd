"""Where pods that must move go: seats for their replacements, planned on a copy of the state.

The ordinary planner is asked, with the pods gone and without the nodes that are avoided: so members of a gang go to the
leaves where the others are, then to the nearest that the size rule allows, and whatever else is asked of a placement
holds. Nothing of the state is changed.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from topo_scheduler.api.migrations import Move
from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.words import few_of
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.extensions.extension import PluginError
from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, Candidate
from topo_scheduler.scheduling.reserving.replacements import ReservedSeat, requests_of
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.classes import Cap, PodClass
from topo_scheduler.state.ledger import LedgerEntry
from topo_scheduler.state.occupants import Occupant
from topo_scheduler.state.resources import Amounts
from topo_scheduler.state.workloads import Member, Stage, Workload

Groups = Sequence[tuple[PodClass, list[Member]]]
"""Members by class."""
_NOBODY: Final = Occupant("", "", "", 0, 0.0, 0.0, terminating=False, fixed=True)


@dataclass(frozen=True, slots=True)
class MovingPod:
    """A pod that is to move, and what it holds."""

    workload: Workload
    member: Member
    entry: LedgerEntry


def leaver(engine: Engine, uid: str) -> MovingPod | None:
    """Return a bound pod of ours; None for any other."""
    found, entry = engine.workloads.of_pod(uid), engine.world.ledger.get(uid)
    if found is None or entry is None or found[1].stage is not Stage.BOUND:
        return None
    return MovingPod(found[0], found[1], entry)


def who(leavers: Sequence[MovingPod]) -> str:
    """Return the names of some pods, for people."""
    return few_of([one.member.key for one in leavers])


def moves_of(engine: Engine, leavers: Sequence[MovingPod]) -> list[Move]:
    """Return what a Migration keeps of pods that are to move, without targets; in order of rank and name."""
    ordered = sorted(leavers, key=lambda one: (one.member.index is None, one.member.index or 0, one.member.name))
    return [move_of(engine, one.workload, one.member, one.entry.amounts, from_=one.entry.node) for one in ordered]


def move_of(
    engine: Engine, workload: Workload, member: Member, amounts: Amounts, *, from_: str = "", to: str = ""
) -> Move:
    """Return what a Migration keeps of a pod. ``amounts`` what its seat holds."""
    return Move(
        pod=member.name,
        uid=member.uid,
        workload=workload.id,
        controller=workload.controller,
        gang=workload.gang,
        index=member.index,
        priority=workload.priority,
        requests=requests_of(engine.world.resources.names, amounts),
        from_=from_,
        to=to,
    )


def seat_of(migration: str, namespace: str, move: Move) -> ReservedSeat:
    """Return the seat that a move holds."""
    return ReservedSeat(
        migration,
        move.uid,
        move.to,
        namespace,
        move.workload,
        move.controller,
        move.gang,
        move.index,
        move.priority,
        tuple(sorted(move.requests.items())),
    )


def find_seats(
    engine: Engine,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    prepare: Callable[[Trial], None] = lambda _: None,
) -> Mapping[str, str]:
    """Return a node for each pod that leaves, by uid; empty where there is no place for all of them.

    Args:
        engine: whose state is asked, not changed.
        leavers: pods of one workload, or pods alone of one controller.
        avoided: nodes that are no target.
        migration: whose own seats do not count.
        now: seconds.
        prepare: changes the copy on which places are looked for.
    """
    found: dict[str, str] = {}
    neighbours = any(looks_around(one.member.cls) for one in leavers) or bool(engine.world.residents.repelling)
    trial = trial_without(engine, leavers, avoided, migration, now, neighbours=neighbours)
    prepare(trial)
    for group in _together(leavers):
        rows = place_group(engine, trial, group)
        if rows is None:
            return {}
        found |= {one.member.uid: engine.world.nodes.names[row] for one, row in zip(group, rows, strict=True)}
    return found


def _together(leavers: Sequence[MovingPod]) -> list[list[MovingPod]]:
    """Members of a gang are placed together, others each for itself."""
    if leavers and leavers[0].workload.gang:
        return [list(leavers)]
    return [[one] for one in leavers]


def trial_without(
    engine: Engine,
    leavers: Sequence[MovingPod],
    avoided: Collection[str],
    migration: str,
    now: float,
    *,
    neighbours: bool,
) -> Trial:
    """Return a copy of the state in which pods are gone, avoided nodes are full, and what is promised counts."""
    workload = leavers[0].workload
    trial = Trial(engine.planner, engine.world.layout, now, neighbours=neighbours)
    trial.remove(as_candidate(one) for one in leavers if one.entry.row >= 0)
    own = f"seat:{migration}:"
    count_promised(engine, trial, workload.priority, lambda uid: uid.startswith(own) or uid in workload.members)
    shut(engine, trial, avoided)
    return trial


def count_promised(engine: Engine, trial: Trial, priority: int, mine: Callable[[str], bool]) -> None:
    """Let what is promised to pods of this priority or a higher one be held, but for those that are one's own."""
    row_of = engine.world.nodes.row_of
    for promised in engine.preempting.nominations:
        if promised.priority >= priority and not mine(promised.uid) and (row := row_of.get(promised.node)) is not None:
            trial.planner.nodes.charge(row, promised.amounts)


def shut(engine: Engine, trial: Trial, names: Collection[str]) -> None:
    """Let nodes be full."""
    nodes, row_of = trial.planner.nodes, engine.world.nodes.row_of
    rows = np.array(sorted(row_of[name] for name in set(names) if name in row_of), np.int64)
    nodes.charge_all(rows, np.maximum(nodes.allocatable[rows] - nodes.requested[rows], 0))


def place_group(engine: Engine, trial: Trial, group: Sequence[MovingPod]) -> list[int] | None:
    """Return the row of each of some pods that are placed together, and let them be there; None without room."""
    try:
        groups, ask = asked_again(engine, group)
        placement = trial.place(ask)
    except PluginError:
        return None
    if placement is None:
        return None
    seats = place_members(groups, placement)
    rows = [seats[one.member.uid] for one in group]
    trial.restore(replace(as_candidate(one), row=row) for one, row in zip(group, rows, strict=True))
    return rows


def asked_again(engine: Engine, group: Sequence[MovingPod]) -> tuple[Groups, PlacementQuery]:
    """Return what is asked for pods of one workload once they are gone, and them by class."""
    workload, members = group[0].workload, [one.member for one in group]
    groups, _, _ = engine.attempts.groups(workload, members)
    groups = _in_exchange(engine, groups, [one.entry.row for one in group])
    return groups, ask_without(engine, workload, groups, members)


def place_members(groups: Groups, placement: Placement) -> dict[str, int]:
    """Return the row of each member, by uid."""
    return {
        member.uid: row
        for (_, some), there in zip(groups, placement.rows, strict=True)
        for member, row in zip(some, there, strict=True)
    }


def _in_exchange(
    engine: Engine, groups: Sequence[tuple[PodClass, list[Member]]], rows: Sequence[int]
) -> list[tuple[PodClass, list[Member]]]:
    """Return groups without the quotas that already count the pods which leave: what comes takes no more of them."""
    domains = engine.world.domains

    def counts(cap: Cap) -> bool:
        return cap.reason is NodeReason.QUOTA and (
            not cap.domain or all(row >= 0 and bool(domains.rows(cap.domain)[row]) for row in rows)
        )

    return [
        (replace(cls, caps=tuple(cap for cap in cls.caps if not counts(cap))) if cls.caps else cls, members)
        for cls, members in groups
    ]


def ask_without(
    engine: Engine, workload: Workload, groups: Sequence[tuple[PodClass, list[Member]]], members: Sequence[Member]
) -> PlacementQuery:
    """Return what is asked for members of a workload once they are gone."""
    ask = engine.attempts.ask(workload, groups, (), engine.world.layout)
    gone = {member.uid for member in members}
    row_of = engine.world.nodes.row_of
    rows = [
        row_of[member.node]
        for member in workload.members.values()
        if member.stage is not Stage.PENDING and member.uid not in gone and member.node in row_of
    ]
    return replace(ask, running=sorted(rows))


def as_candidate(one: MovingPod) -> Candidate:
    """Return a pod as trials know pods."""
    occupant = one.entry.occupant or replace(_NOBODY, uid=one.member.uid)
    return Candidate(occupant, one.entry.row, one.entry.amounts, one.entry.profile, 0, NO_GANG, -1)


def vacant(engine: Engine, moves: Sequence[Move]) -> bool:
    """Return whether there is room for seats now, apart from what those who move hold there themselves."""
    nodes, names = engine.world.nodes, engine.world.resources.names
    free: dict[int, np.ndarray[tuple[int, ...], np.dtype[np.int64]]] = {}
    for move in moves:
        row = nodes.row_of[move.to]
        if row not in free:
            free[row] = nodes.allocatable[row] - nodes.requested[row]
        for name, amount in move.requests.items():
            if name in names and names.index(name) < len(free[row]):
                free[row][names.index(name)] -= amount
    for move in moves:
        entry = engine.world.ledger.get(move.uid)
        if entry is not None and entry.row in free:
            for column, amount in entry.amounts:
                free[entry.row][column] += amount
    asked = {names.index(name) for move in moves for name in move.requests if name in names}
    return all((there[sorted(asked)] >= 0).all() for there in free.values())
