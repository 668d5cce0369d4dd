"""The fewest pods whose move makes room for a workload, each with a target node.

A set of pods is a plan if the ordinary planner finds a place for the workload once the pods are gone. With the workload
placed, the planner must then find a place for each of the pods. Sets of fewer pods come first. The search for sets:

- With at most `EXHAUSTIVE_CANDIDATES` candidates it tries every set, in order of size. For pods without inter-pod rules
  it also tries all assignments of a set to nodes, up to a number of steps. So it finds the fewest pods.
- With more candidates it searches each domain for the fewest pods that would make room there (`clearing`). It tries the
  smallest sets over all domains first. For workloads of several classes, or with inter-pod rules, it finds sets as
  preemption does (`reprieve`). Both may miss a plan, or a smaller one.

A gang may lose the members beyond its minimum. If more members must go, all of them move, and are placed as a gang.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.placement_query import Placement, PlacementQuery
from topo_scheduler.scheduling.placing.planner import Planner
from topo_scheduler.scheduling.preemption.clearing import Clearing
from topo_scheduler.scheduling.preemption.reprieve import by_trial
from topo_scheduler.scheduling.preemption.trial import Trial
from topo_scheduler.scheduling.preemption.victims import NO_GANG, SHUT, WHOLE, Candidate, Candidates, VictimGang
from topo_scheduler.scheduling.rules.interpod_filters import looks_around
from topo_scheduler.scheduling.rules.volume_choice import have_volumes
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.victim_info import VictimInfo
from topo_scheduler.state.pods.workloads import MembersByClass
from topo_scheduler.state.topology.fabric import Layout

EXHAUSTIVE_CANDIDATES: Final = 10
"""Candidates up to which the search tries every set of them."""
MAX_SETS: Final = 300
"""Sets that make room and that the search tries at most."""
MAX_STEPS: Final = 2000
"""Steps at most to assign the pods of one set to nodes."""
PODS_PER_PART: Final = 8
"""Pods of a set that one part of the work covers."""
MAX_REGIONS: Final = 48
"""Domains that the search covers at most, those that lack room for fewest members first."""

Again = Callable[[Sequence[Candidate]], PlacementQuery]
"""Returns the query that places pods of one workload again."""


@dataclass(frozen=True, slots=True)
class PlannedMove:
    """A pod that would move to the row ``to``; for a MIG slot, with the devices that its replacement gets there."""

    pod: Candidate
    to: int
    devices: tuple[DeviceId, ...] = ()


@dataclass(frozen=True, slots=True)
class MovePlan:
    """The placement of the workload, once the pods of ``moves`` have moved; for a MIG slot, with its devices."""

    placement: Placement
    moves: tuple[PlannedMove, ...]
    devices: tuple[DeviceId, ...] = ()


def unbroken(candidates: Candidates, running: Callable[[str], int]) -> Candidates:
    """Return the candidates with a rule for each gang: all of it moves, or no more members than it can spare.

    ``running`` returns how many members of a gang run, by the ID of the gang.
    """
    gangs: list[VictimGang] = []
    for gang in candidates.gangs:
        is_complete = len(gang.members) == running(gang.id)
        # A gang below its minimum can spare no member.
        slack = gang.slack if gang.slack < running(gang.id) else 0
        gangs.append(replace(gang, rule=WHOLE if is_complete else SHUT, slack=slack))
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
    max_moves: int,
    profiles: Sequence[Sequence[Profile | None]] = (),
    groups: MembersByClass = (),
) -> Generator[None, None, MovePlan | None]:
    """Choose the pods to move. Yields after each part of the work. The first part makes a copy of the state.

    Args:
        planner: on the state as it is. The search does not change it.
        ask: the query that has no placement.
        layout: the fabric.
        candidates: pods that may move, with a GPU-time of 0, as `unbroken` returns them.
        again: returns the query that places pods of one workload again.
        now: time in seconds.
        max_moves: pods that may move at most.
        profiles: profile of each member of each group of the query, if they matter to pods that move; else empty.
        groups: the members by class, as in the query, for their volumes.

    Returns:
        None if there is no such set, or the search found none.

    Raises:
        PluginError: a plugin failed, so there is no result.
    """
    if not len(candidates.pods) or not _enough(planner, ask):
        return None
    neighbours = bool(profiles) or any(looks_around(cls) for cls, _ in ask.groups)
    trial = Trial(planner, layout, now, neighbours=neighbours)
    yield
    sets = _every_set if len(candidates.pods) <= EXHAUSTIVE_CANDIDATES else by_domain
    tried_sets = 0
    for chosen in sets(trial, ask, layout, candidates, max_moves):
        if chosen is None:
            yield
            continue
        if tried_sets >= MAX_SETS:
            break
        tried_sets += 1
        pods = [candidates.pods[number] for number in chosen]
        trial.remove(pods)
        try:
            placement = trial.place(ask)
            yield
            if placement is None or (groups and not have_volumes(trial.planner.around, groups, placement.rows)):
                continue
            member_candidates = as_candidates(ask, placement, profiles)
            trial.restore(member_candidates)
            try:
                rows = yield from seat_again(trial, candidates, chosen, again)
            finally:
                trial.remove(member_candidates)
            if rows is not None:
                moves = (PlannedMove(pod, row) for pod, row in zip(pods, rows, strict=True) if row != pod.row)
                return MovePlan(placement, tuple(moves))
        finally:
            trial.restore(pods)
    return None


# ---------------------------------------------------------------- sets


def _enough(planner: Planner, ask: PlacementQuery) -> bool:
    """Whether enough GPUs are free in the cluster: a pod that moves takes as many on its new node."""
    nodes = planner.nodes
    usable = nodes.exists & nodes.ready & ~nodes.unschedulable
    free = int(np.maximum(0, nodes.allocatable[usable, GPU] - nodes.requested[usable, GPU]).sum())
    return free >= sum(cls.gpus * count for cls, count in ask.groups)


def _every_set(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, max_moves: int
) -> Iterator[Sequence[int] | None]:
    """Yield sets, and None after each part of the work."""
    room = makes_room(trial, ask, layout, candidates)
    for size in range(1, min(max_moves, len(candidates.pods)) + 1):
        for number, chosen in enumerate(combinations(range(len(candidates.pods)), size), 1):
            if number % 32 == 0:
                yield None
            if candidates.closed(chosen) == list(chosen) and room(chosen):
                yield chosen


def makes_room(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates
) -> Callable[[Sequence[int]], bool]:
    """Return a quick test that passes every set that makes room, and possibly others."""
    if len(ask.groups) > 1 or any(looks_around(cls) for cls, _ in ask.groups):
        return lambda _: True
    nodes, (cls, members) = trial.planner.nodes, ask.groups[0]
    view = trial.planner.views.get(cls)
    amounts = candidates.amounts(view.columns)
    free: Int64 = nodes.allocatable[:, view.columns] - nodes.requested[:, view.columns]

    def room(chosen: Sequence[int]) -> bool:
        freed = free.copy()
        np.add.at(freed, candidates.row[list(chosen)], amounts[list(chosen)])
        fit = np.where(view.eligible, (np.maximum(freed, 0) // view.amounts).min(axis=1), 0)
        return int(fit.sum()) >= members

    return room


def by_domain(
    trial: Trial, ask: PlacementQuery, layout: Layout, candidates: Candidates, max_moves: int
) -> Iterator[Sequence[int] | None]:
    """Yield sets, and None after each part of the work."""
    level = max(candidates.levels)
    sets: set[tuple[int, ...]] = set()
    if (
        len(ask.groups) > 1
        or ask.in_segments
        or any(looks_around(cls) or trial.depends_on_sets(cls) for cls, _ in ask.groups)
    ):
        sets = {option.victims for option in by_trial(trial, ask, layout, candidates, level)}
    else:
        views = trial.planner.views_for(ask)
        yield None
        for view in views:
            clearing = Clearing(trial.planner, view, ask, layout, candidates, level)
            yield None
            fit = np.minimum(view.fit, ask.members)
            held = [int(fit[region.rows].sum()) for region in clearing.regions]
            for index in sorted(range(len(held)), key=lambda index: -held[index])[:MAX_REGIONS]:
                for option in clearing.options([clearing.regions[index]]):
                    sets.add(option.victims)
                    yield None
                yield None
    yield from sorted((chosen for chosen in sets if len(chosen) <= max_moves), key=lambda chosen: (len(chosen), chosen))


# ---------------------------------------------------------------- targets of the moves


_NO_OCCUPANT: Final = VictimInfo("", "", "", 0, 0.0, 0.0, terminating=False, fixed=True)


def as_candidates(
    ask: PlacementQuery, placement: Placement, profiles: Sequence[Sequence[Profile | None]]
) -> list[Candidate]:
    """Return the members of the workload as if they were running."""
    group_profiles = profiles or [[None] * count for _, count in ask.groups]
    return [
        Candidate(_NO_OCCUPANT, row, cls.amounts, profile, 0, NO_GANG, -1, cls.numa)
        for (cls, _), rows, group in zip(ask.groups, placement.rows, group_profiles, strict=True)
        for row, profile in zip(rows, group, strict=True)
    ]


def seat_again(
    trial: Trial, candidates: Candidates, chosen: Sequence[int], again: Again
) -> Generator[None, None, list[int] | None]:
    """Return a row for each pod of a set while the workload has its place, or None if a pod has no row.

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
            if len(classes) % PODS_PER_PART == 0:
                yield
        yield
        if any(looks_around(cls) or trial.depends_on_sets(cls) for cls in classes):
            for number in singles:
                if not _seat_together(trial, candidates, [number], again, seated, rows):
                    return None
                yield
            all_seated = True
        else:
            all_seated = yield from _seat_singles(trial, list(zip(singles, classes, strict=True)), rows)
        return [rows[number] for number in chosen] if all_seated else None
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
    placement = trial.place(ask)
    if placement is None:
        return False
    # Pods of a class are interchangeable: those that can stay on their node do.
    remaining = list(zip(numbers, pods, strict=True))
    for (cls, _), class_rows in zip(ask.groups, placement.rows, strict=True):
        of_class = (
            [item for item in remaining if again([item[1]]).groups[0][0] == cls] if len(ask.groups) > 1 else remaining
        )
        free = list(class_rows)
        for item in sorted(of_class, key=lambda item: item[1].row not in free)[: len(class_rows)]:
            row = item[1].row if item[1].row in free else free[0]
            free.remove(row)
            rows[item[0]] = row
            seated.append((item[1], row))
            trial.restore([replace(item[1], row=row)])
            remaining.remove(item)
    return not remaining


def _seat_singles(
    trial: Trial, singles: Sequence[tuple[int, PodClass]], rows: dict[int, int]
) -> Generator[None, None, bool]:
    """Assign pods without inter-pod rules to nodes, with backtracking: the most demanding first, best fit.

    Yields after some steps.
    """
    nodes = trial.planner.nodes
    free: Int64 = nodes.allocatable - nodes.requested
    order = sorted(singles, key=lambda item: (-item[1].gpus, -item[1].amount(0), item[0]))
    steps = MAX_STEPS

    def seat(position: int) -> Generator[None, None, bool]:
        nonlocal steps
        if position == len(order):
            return True
        if steps % PODS_PER_PART == 0:
            yield
        number, cls = order[position]
        view = trial.planner.views.get(cls)
        fits = view.open & (free[:, view.columns] >= view.amounts).all(axis=1)
        rows_that_fit = np.flatnonzero(fits)
        rows_that_fit = rows_that_fit[np.lexsort((rows_that_fit, free[rows_that_fit, GPU]))]
        seen_keys: set[bytes] = set()
        for row in rows_that_fit.tolist():
            # Nodes with the same free resources are equivalent, unless another pod may use only one of them.
            key = free[row].tobytes() + bytes(bool(item.open[row]) for item in views)
            if key in seen_keys:
                continue
            seen_keys.add(key)
            steps -= 1
            if steps < 0:
                return False
            free[row, view.columns] -= view.amounts
            rows[number] = row
            if (yield from seat(position + 1)):
                return True
            free[row, view.columns] += view.amounts
        return False

    views = [trial.planner.views.get(cls) for cls in dict.fromkeys(cls for _, cls in order)]
    return (yield from seat(0))
