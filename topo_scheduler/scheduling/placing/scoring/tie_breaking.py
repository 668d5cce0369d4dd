"""Tie-breaking between equally close placements, after a search has found one.

For gangs of several classes, and gangs whose members have constraints on each other, the search goes by level, number
of leaves and width. This module ranks the sets of leaves of equal level and number by the order of preference of all
gangs. It takes the first set that holds the gang.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, islice, pairwise
from typing import Final, Generic, TypeVar

import numpy as np

from topo_scheduler.scheduling.placing.context.planning_context import PlanningTask
from topo_scheduler.scheduling.placing.model.class_views import ClassView
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery
from topo_scheduler.scheduling.placing.scoring.stranding import MAX_PLACEMENTS, stranded
from topo_scheduler.scheduling.placing.scoring.weighted_score import LOAD_COLUMN, SCORE_COLUMN, Sets, Weighed, weigh
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.topology.fabric import Layout

MAX_LEAF_SETS_ON_FEW_NODES: Final = 4096
"""The most sets of leaves to score where few nodes can take a member: all sets."""
MAX_LEAF_SETS: Final = 512
"""The most sets to score on more nodes: the first ones, in order of the fabric."""
MAX_TRIED_SETS: Final = 16
"""The most sets to try of those that were scored, the best first."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EqualSearch(Generic[T]):
    """A search that found a placement, and functions to search other leaves.

    ``depth``: of the level. ``rule``: the size rule of the gang. ``view``: of the class that asks for most, and ``fit``
    int64[rows] how many of its members each node takes. ``held`` int64[classes, leaves]: the most members of each class
    alone that a leaf holds. ``few``: whether few nodes can take a member.

    ``hold`` places the gang on given leaves only. ``rows_of`` returns the rows of each group of a placement.
    """

    depth: int
    rule: SizeRule
    view: ClassView
    fit: Int64
    held: Int64
    few: bool
    hold: Callable[[Sequence[int]], T | None]
    rows_of: Callable[[T], Sequence[Sequence[int]]]


def best_of_equals(task: PlanningTask, search: EqualSearch[T], first_placement: T) -> tuple[T, ScoreParts, int]:
    """Return the best placement at one level and number of leaves, its score, and how many sets were compared.

    The order: smaller width; lower link load where latency counts; higher score; more room left for usual gangs; order
    of the fabric. The search itself chooses nodes within the same leaves.

    Raises:
        PluginError: a plugin failed.
    """
    query, layout = task.query, task.layout
    found_leaves = tuple(sorted(layout.leaves_of(row for rows in search.rows_of(first_placement) for row in rows)))
    leaf_sets = _listed(task, search, found_leaves)
    sets = np.array(leaf_sets, np.int64)
    sizes = np.full(len(sets), len(found_leaves), np.int64)
    column = search.view.cls.scarce
    requested = sum(cls.amount(column) * count for cls, count in query.groups)
    scored_sets = Sets(sets, sizes, len(sets), search.depth, len(found_leaves), search.rule, sets[:, -1])
    weighed = weigh(task, search.view, search.fit, scored_sets, requested)
    ranks = [_order(leaves, parts, query) for leaves, parts in zip(leaf_sets, weighed.parts.tolist(), strict=True)]
    ranked = sorted(range(len(leaf_sets)), key=lambda number: (ranks[number], leaf_sets[number]))
    tries = MAX_LEAF_SETS_ON_FEW_NODES if search.few else MAX_TRIED_SETS
    for _, tied in groupby(ranked, key=lambda number: ranks[number]):
        numbers = list(tied)
        placements = _held(search, leaf_sets, numbers[:tries], found_leaves, first_placement)
        tries -= len(numbers)
        best = _least_stranding(task, search, weighed, leaf_sets, requested, placements)
        if best is not None:
            return best[1], weighed.score(best[0]), len(leaf_sets)
        if tries <= 0 or found_leaves in (leaf_sets[number] for number in numbers):
            break
    return first_placement, weighed.score(leaf_sets.index(found_leaves)), len(leaf_sets)


def _order(leaves: Sequence[int], parts: Sequence[int], query: PlacementQuery) -> tuple[int, int, int]:
    return leaves[-1] - leaves[0], parts[LOAD_COLUMN] if query.latency else 0, -parts[SCORE_COLUMN]


def _listed(task: PlanningTask, search: EqualSearch[T], found_leaves: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return sets of as many leaves that may hold the gang and are no wider, including ``found_leaves``."""
    layout, most_scored = task.layout, task.context.policy.most_scored
    limit = MAX_LEAF_SETS_ON_FEW_NODES if search.few or len(found_leaves) == 1 else MAX_LEAF_SETS
    sets = list(islice(_sets(layout, search, found_leaves), limit))
    charge(len(sets) * len(found_leaves))
    needed = np.array([count for _, count in task.query.groups], np.int64)
    if sets:
        has_room = (search.held[:, np.array(sets, np.int64)].sum(axis=2) >= needed[:, None]).all(axis=0)
        sets = [leaves for leaves, enough in zip(sets, has_room.tolist(), strict=True) if enough]
    if most_scored and sets:
        index = np.array(sets, np.int64)
        nodes = np.cumsum((layout.offsets[index + 1] - layout.offsets[index]).sum(axis=1))
        sets = sets[: max(1, int(np.searchsorted(nodes, most_scored, side="right")))]
    return sets if found_leaves in sets else [*sets, found_leaves]


def _sets(layout: Layout, search: EqualSearch[T], found_leaves: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sets of leaves in order of the fabric; only labelled leaves where all of ``found_leaves`` are labelled."""
    usable = search.held.max(axis=0)
    if layout.aligned[list(found_leaves)].all():
        usable = usable * layout.aligned
    width = found_leaves[-1] - found_leaves[0]
    for low, high in pairwise(layout.domains[search.depth].tolist()):
        leaves = [leaf for leaf, room in enumerate(usable[low:high].tolist(), low) if room]
        for index, first in enumerate(leaves):
            near = [leaf for leaf in leaves[index + 1 :] if leaf - first <= width]
            for further in combinations(near, len(found_leaves) - 1):
                yield first, *further


def _held(
    search: EqualSearch[T],
    leaf_sets: Sequence[tuple[int, ...]],
    numbers: Sequence[int],
    found_leaves: tuple[int, ...],
    first_placement: T,
) -> Iterator[tuple[int, T]]:
    for number in numbers:
        placement = first_placement if leaf_sets[number] == found_leaves else search.hold(leaf_sets[number])
        if placement is not None:
            yield number, placement


def _least_stranding(
    task: PlanningTask,
    search: EqualSearch[T],
    weighed: Weighed,
    leaf_sets: Sequence[tuple[int, ...]],
    requested: int,
    placements: Iterator[tuple[int, T]],
) -> tuple[int, T] | None:
    """Return the placement that leaves room for most of the usual gangs, the first of equal ones."""
    column, layout = search.view.cls.scarce, task.layout
    gang_sizes = task.context.history.gangs.sizes(column)
    if not gang_sizes:
        return next(placements, None)
    best: tuple[int, tuple[int, T]] | None = None
    for number, placement in islice(placements, MAX_PLACEMENTS):
        leaves = np.array(leaf_sets[number], np.int64)
        taken = np.zeros(len(layout.paths), np.int64)
        for (cls, _), rows in zip(task.query.groups, search.rows_of(placement), strict=True):
            np.add.at(taken, layout.leaf_of_row[np.array(rows, np.int64)], cls.amount(column))
        lost = stranded(leaves, taken[leaves], requested, gang_sizes, weighed.totals, weighed.outside)
        if best is None or lost < best[0]:
            best = lost, (number, placement)
    return None if best is None else best[1]
