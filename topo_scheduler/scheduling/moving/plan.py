"""The fewest pods whose move makes room for a workload, each with a node to go to.

A set of pods is a plan if the ordinary planner finds a place for the workload once they are gone, and then, with the
workload there, a place for each of them. Sets of fewer pods come first. How they are found:

- Among at most `EXACT` pods that might have to move every set is tried, in order of its size. For pods that don't look
  at other pods all ways to seat those of a set are tried as well, up to a number of steps: the fewest are found.
- Among more, domain by domain: for each the fewest pods whose going makes room there (`clearing`), of which the sets
  that are fewest over all domains are tried first. For workloads of different pods, and where it depends on other pods
  who may go where, sets are found as for preemption (`reprieve`). Both may miss a plan, or one of fewer pods.

A gang may lose what it has beyond its minimum; if more of it must go, all of it does, and is placed as a gang.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.ask import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.clearing import Clearing
from topo_scheduler.scheduling.preemption.reprieve import by_trial
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, SHUT, WHOLE, Candidate, Candidates, VictimGang
from topo_scheduler.scheduling.rules.neighbours import looks_around
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.occupants import Occupant
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.resources import GPU

EXACT: Final = 10
"""Pods that might have to move up to which every set of them is tried."""
MOST_SETS: Final = 300
"""Sets that are tried at most, of those that make room."""
MOST_STEPS: Final = 2000
"""Steps in which the pods of one set are seated."""
SEATED_AT_ONCE: Final = 8
"""Pods of a set that are looked at in one part."""
MOST_REGIONS: Final = 48
"""Domains that are looked at, those that lack room for fewest members first."""

Again = Callable[[Sequence[Candidate]], PlacementQuery]
"""Returns what is asked for pods of one workload that are to be placed again, without those rows."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A pod that would go from one row to another."""

    pod: Candidate
    to: int


@dataclass(frozen=True, slots=True)
class MovePlan:
    """Where the workload goes once the pods have moved."""

    placement: Placement
    moves: tuple[PlannedMove, ...]


def unbroken(candidates: Candidates, running: Callable[[str], int]) -> Candidates:
    """Return candidates of which a gang goes whole, or loses no more than it can spare.

    ``running`` how many members of a gang run, by its id.
    """
    gangs: list[VictimGang] = []
    for gang in candidates.gangs:
        whole = len(gang.members) == running(gang.id)
        # One that is below its minimum already can spare nobody.
        slack = gang.slack if gang.slack < running(gang.id) else 0
        gangs.append(replace(gang, rule=WHOLE if whole else SHUT, slack=slack))
    table = candidates.whole.copy()
    table[:, 0] = [gang.rule for gang in gangs]
    return replace(candidates, gangs=gangs, whole=table, slack=np.array([gang.slack for gang in gangs], np.int64))


def plan_moves(
    planner: Planner,
    ask: PlacementQuery,
    layout: Layout,
    candidates: Candidates,
    again: Again,
    now: float,
    most: int,
    profiles: Sequence[Sequence[Profile | None]] = (),
) -> Generator[None, None, MovePlan | None]:
    """Choose the pods to move. Yields after each part of the work; the first makes the copy on which all is tried.

    Args:
        planner: on the state as it is. Nothing of it is changed.
        ask: what can't be placed.
        layout: the fabric.
        candidates: who may move, with GPU-time of 0, as `unbroken` returns them.
        again: what is asked for pods of one workload, or one pod, once they are gone.
        now: seconds.
        most: pods that may move at most.
        profiles: what others see of each member of each group of the ask, where that matters to who moves.

    Returns:
        None when there is no such set, or none was found.

    Raises:
        PluginError: a plugin failed, so that nothing can be said.
    """
    if not len(candidates.pods) or not _enough(planner, ask):
        return None
    neighbours = bool(profiles) or any(looks_around(cls) for cls, _ in ask.groups)
    trial = Trial(planner, layout, now, neighbours=neighbours)
    yield
    sets = _every_set if len(candidates.pods) <= EXACT else by_domain
    tried = 0
    for chosen in sets(trial, ask, layout, candidates, most):
        if chosen is None:
            yield
            continue
        if tried >= MOST_SETS:
            break
        tried += 1
        pods = [candidates.pods[number] for number in chosen]
        trial.remove(pods)
        try:
            placement = trial.place(ask)
            yield
            if placement is None:
                continue
            there = as_candidates(ask, placement, profiles)
            trial.restore(there)
            try:
                rows = yield from seat_again(trial, candidates, chosen, again)
            finally:
                trial.remove(there)
            if rows is not None:
                moves = (PlannedMove(pod, row) for pod, row in zip(pods, rows, strict=True) if row != pod.row)
                return MovePlan(placement, tuple(moves))
        finally:
            trial.restore(pods)
    return None


# ---------------------------------------------------------------- sets


def _enough(planner: Planner, ask: PlacementQuery) -> bool:
    """Whether so many GPUs are free at all: who moves takes as many elsewhere."""
    nodes = planner.nodes
    usable = nodes.exists & nodes.ready & ~nodes.unschedulable
    free = int(np.maximum(0, nodes.allocatable[usable, GPU] - nodes.requested[usable, GPU]).sum())
    return free >= sum(cls.gpus * count for cls, count in ask.groups)


def _every_set(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, most: int
) -> Iterator[Sequence[int] | None]:
    """Yield sets, and None after each part of the work."""
    room = makes_room(trial, ask, layout, candidates)
    for size in range(1, min(most, len(candidates.pods)) + 1):
        for number, chosen in enumerate(combinations(range(len(candidates.pods)), size), 1):
            if number % 32 == 0:
                yield None
            if candidates.closed(chosen) == list(chosen) and room(chosen):
                yield chosen


def makes_room(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates
) -> Callable[[Sequence[int]], bool]:
    """Return a quick test that every set passes which makes room."""
    if len(ask.groups) > 1 or any(looks_around(cls) for cls, _ in ask.groups):
        return lambda _: True
    nodes, (cls, members) = trial.planner.nodes, ask.groups[0]
    view = trial.planner.views.get(cls)
    amounts = candidates.amounts(view.columns)
    free: Int64 = nodes.allocatable[:, view.columns] - nodes.requested[:, view.columns]

    def room(chosen: Sequence[int]) -> bool:
        left = free.copy()
        np.add.at(left, candidates.row[list(chosen)], amounts[list(chosen)])
        fit = np.where(view.eligible, (np.maximum(left, 0) // view.amounts).min(axis=1), 0)
        return int(fit.sum()) >= members

    return room


def by_domain(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, most: int
) -> Iterator[Sequence[int] | None]:
    """Yield sets, and None after each part of the work."""
    level = max(candidates.levels)
    found: set[tuple[int, ...]] = set()
    if len(ask.groups) > 1 or ask.in_segments or any(looks_around(cls) for cls, _ in ask.groups):
        found = {option.victims for option in by_trial(trial, ask, layout, candidates, level)}
    else:
        views = trial.planner.views_for(ask)
        yield None
        for view in views:
            clearing = Clearing(trial.planner, view, ask, layout, candidates, level)
            yield None
            fit = np.minimum(view.fit, ask.members)
            held = [int(fit[region.rows].sum()) for region in clearing.regions]
            for at in sorted(range(len(held)), key=lambda at: -held[at])[:MOST_REGIONS]:
                for option in clearing.options([clearing.regions[at]]):
                    found.add(option.victims)
                    yield None
                yield None
    yield from sorted((chosen for chosen in found if len(chosen) <= most), key=lambda chosen: (len(chosen), chosen))


# ---------------------------------------------------------------- where they go


_NOBODY: Final = Occupant("", "", "", 0, 0.0, 0.0, terminating=False, fixed=True)


def as_candidates(
    ask: PlacementQuery, placement: Placement, profiles: Sequence[Sequence[Profile | None]]
) -> list[Candidate]:
    """Return the members of the workload as if they ran."""
    seen = profiles or [[None] * count for _, count in ask.groups]
    return [
        Candidate(_NOBODY, row, cls.amounts, profile, 0, NO_GANG, -1)
        for (cls, _), rows, group in zip(ask.groups, placement.rows, seen, strict=True)
        for row, profile in zip(rows, group, strict=True)
    ]


def seat_again(
    trial: Trial, candidates: Candidates, chosen: Sequence[int], again: Again
) -> Generator[None, None, list[int] | None]:
    """Return a row for each pod of a set, the workload having its place; None where one has none.

    Yields after each part of the work.
    """
    seated: list[tuple[Candidate, int]] = []
    rows: dict[int, int] = {}
    try:
        by_gang: dict[int, list[int]] = {}
        for number in chosen:
            gang = candidates.pods[number].gang
            if gang != NO_GANG:
                by_gang.setdefault(gang, []).append(number)
        for numbers in by_gang.values():
            if not _seat_together(trial, candidates, numbers, again, seated, rows):
                return None
            yield
        singles = [number for number in chosen if candidates.pods[number].gang == NO_GANG]
        classes: list[PodClass] = []
        for number in singles:
            classes.append(again([candidates.pods[number]]).groups[0][0])
            if len(classes) % SEATED_AT_ONCE == 0:
                yield
        yield
        if any(looks_around(cls) for cls in classes):
            for number in singles:
                if not _seat_together(trial, candidates, [number], again, seated, rows):
                    return None
                yield
            ok = True
        else:
            ok = yield from _seat_singles(trial, list(zip(singles, classes, strict=True)), rows)
        return [rows[number] for number in chosen] if ok else None
    finally:
        trial.remove(replace(pod, row=row) for pod, row in seated)


def _seat_together(
    trial: Trial,
    candidates: Candidates,
    numbers: Sequence[int],
    again: Again,
    seated: list[tuple[Candidate, int]],
    rows: dict[int, int],
) -> bool:
    pods = [candidates.pods[number] for number in numbers]
    ask = again(pods)
    found = trial.place(ask)
    if found is None:
        return False
    # The pods of a class are alike: which of them goes where does not matter, those that can stay do.
    left = list(zip(numbers, pods, strict=True))
    for (cls, _), there in zip(ask.groups, found.rows, strict=True):
        mine = [one for one in left if again([one[1]]).groups[0][0] == cls] if len(ask.groups) > 1 else left
        free = list(there)
        for one in sorted(mine, key=lambda one: one[1].row not in free)[: len(there)]:
            row = one[1].row if one[1].row in free else free[0]
            free.remove(row)
            rows[one[0]] = row
            seated.append((one[1], row))
            trial.restore([replace(one[1], row=row)])
            left.remove(one)
    return not left


def _seat_singles(
    trial: Trial, wanted: Sequence[tuple[int, PodClass]], rows: dict[int, int]
) -> Generator[None, None, bool]:
    """Seat pods that don't look at others, most demanding first, where least is left; choices are taken back.

    Yields after some steps.
    """
    nodes = trial.planner.nodes
    free: Int64 = nodes.allocatable - nodes.requested
    order = sorted(wanted, key=lambda one: (-one[1].gpus, -one[1].amount(0), one[0]))
    steps = MOST_STEPS

    def seat(at: int) -> Generator[None, None, bool]:
        nonlocal steps
        if at == len(order):
            return True
        if steps % SEATED_AT_ONCE == 0:
            yield
        number, cls = order[at]
        view = trial.planner.views.get(cls)
        fits = view.open & (free[:, view.columns] >= view.amounts).all(axis=1)
        found = np.flatnonzero(fits)
        found = found[np.lexsort((found, free[found, GPU]))]
        looked: set[bytes] = set()
        for row in found.tolist():
            # Nodes on which as much is left are as good, unless others may use only one of them.
            key = free[row].tobytes() + bytes(bool(one.open[row]) for one in views)
            if key in looked:
                continue
            looked.add(key)
            steps -= 1
            if steps < 0:
                return False
            free[row, view.columns] -= view.amounts
            rows[number] = row
            if (yield from seat(at + 1)):
                return True
            free[row, view.columns] += view.amounts
        return False

    views = [trial.planner.views.get(cls) for cls in dict.fromkeys(cls for _, cls in order)]
    return (yield from seat(0))
