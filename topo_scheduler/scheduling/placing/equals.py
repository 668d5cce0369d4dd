"""Which of the places that are equally near is taken, where a search found that there is one.

Gangs of several classes, and gangs whose members look at each other, are searched for by level, number of leaves and
width. Sets of leaves with as many are put here in the order of preference that all gangs have, and the first that
holds the gang is taken.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby, islice, pairwise
from typing import Final, Generic, TypeVar

import numpy as np

from topo_scheduler.scheduling.placing.ask import PlacementQuery
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.scheduling.placing.stranding import MOST_COMPARED, stranded
from topo_scheduler.scheduling.placing.views import ClassView
from topo_scheduler.scheduling.placing.weighing import Sets, Weighed, weigh
from topo_scheduler.state.decision import ScoreParts, SizeRule
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.operation_budget import charge

SETS_ON_FEW: Final = 4096
"""Sets of leaves that are scored at most where few nodes could take a member: all there are."""
SETS: Final = 512
"""The same on more nodes: the first ones, in the order of the fabric."""
TRIES: Final = 16
"""Of these so many are tried at most, the best ones."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EqualSearch(Generic[T]):
    """What was found, and how to look for it elsewhere.

    ``depth`` of the level and ``rule`` that was asked; ``view`` of the class that asks for most and ``fit`` int64[rows]
    members of it each node takes; ``held`` int64[classes, leaves] members of each class alone that a leaf holds at
    most; ``few`` whether few nodes could take a member. ``hold`` places the gang in some leaves and no others;
    ``rows_of`` tells the rows of each group of a place.
    """

    depth: int
    rule: SizeRule
    view: ClassView
    fit: Int64
    held: Int64
    few: bool
    hold: Callable[[Sequence[int]], T | None]
    rows_of: Callable[[T], Sequence[Sequence[int]]]


def best_of_equals(
    site: PlanningContext, ask: PlacementQuery, layout: Layout, search: EqualSearch[T], found: T, now: float
) -> tuple[T, ScoreParts, int]:
    """Return the best place among those of one level and number of leaves, its score, and how many were compared.

    Compared are the width, then (where latency counts) the load of links, the score, what is left for usual gangs, and
    the order of the fabric; among the nodes of the same leaves the search has the last word.

    Raises:
        PluginError: a plugin failed.
    """
    mine = tuple(sorted(layout.leaves_of(row for rows in search.rows_of(found) for row in rows)))
    listed = _listed(site, ask, layout, search, mine)
    sets = np.array(listed, np.int64)
    sizes = np.full(len(sets), len(mine), np.int64)
    column = search.view.cls.scarce
    asked = sum(cls.amount(column) * count for cls, count in ask.groups)
    told = Sets(sets, sizes, len(sets), search.depth, len(mine), search.rule, sets[:, -1])
    weighed = weigh(site, ask, layout, search.view, search.fit, told, asked, now)
    order = [_order(one, parts, ask) for one, parts in zip(listed, weighed.parts.tolist(), strict=True)]
    ranked = sorted(range(len(listed)), key=lambda number: (order[number], listed[number]))
    tries = SETS_ON_FEW if search.few else TRIES
    for _, equal in groupby(ranked, key=lambda number: order[number]):
        numbers = list(equal)
        places = _held(search, listed, numbers[:tries], mine, found)
        tries -= len(numbers)
        best = _least_stranding(site, ask, layout, search, weighed, listed, asked, places)
        if best is not None:
            return best[1], weighed.score(best[0]), len(listed)
        if tries <= 0 or mine in (listed[number] for number in numbers):
            break
    return found, weighed.score(listed.index(mine)), len(listed)


def _order(leaves: Sequence[int], parts: Sequence[int], ask: PlacementQuery) -> tuple[int, int, int]:
    *_, score, load = parts
    return leaves[-1] - leaves[0], load if ask.latency else 0, -score


def _listed(
    site: PlanningContext, ask: PlacementQuery, layout: Layout, search: EqualSearch[T], mine: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Return sets of as many leaves that may hold the gang and are no wider, that which was found among them."""
    most = SETS_ON_FEW if search.few or len(mine) == 1 else SETS
    sets = list(islice(_sets(layout, search, mine), most))
    charge(len(sets) * len(mine))
    needed = np.array([count for _, count in ask.groups], np.int64)
    if sets:
        enough = (search.held[:, np.array(sets, np.int64)].sum(axis=2) >= needed[:, None]).all(axis=0)
        sets = [one for one, is_enough in zip(sets, enough.tolist(), strict=True) if is_enough]
    if site.policy.most_scored and sets:
        index = np.array(sets, np.int64)
        nodes = np.cumsum((layout.offsets[index + 1] - layout.offsets[index]).sum(axis=1))
        sets = sets[: max(1, int(np.searchsorted(nodes, site.policy.most_scored, side="right")))]
    return sets if mine in sets else [*sets, mine]


def _sets(layout: Layout, search: EqualSearch[T], mine: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield sets of leaves in the order of the fabric; of labelled ones only where those that were found are."""
    usable = search.held.max(axis=0)
    if layout.aligned[list(mine)].all():
        usable = usable * layout.aligned
    width = mine[-1] - mine[0]
    for low, high in pairwise(layout.domains[search.depth].tolist()):
        leaves = [leaf for leaf, room in enumerate(usable[low:high].tolist(), low) if room]
        for at, first in enumerate(leaves):
            near = [leaf for leaf in leaves[at + 1 :] if leaf - first <= width]
            for others in combinations(near, len(mine) - 1):
                yield first, *others


def _held(
    search: EqualSearch[T], listed: Sequence[tuple[int, ...]], numbers: Sequence[int], mine: tuple[int, ...], found: T
) -> Iterator[tuple[int, T]]:
    for number in numbers:
        place = found if listed[number] == mine else search.hold(listed[number])
        if place is not None:
            yield number, place


def _least_stranding(
    site: PlanningContext,
    ask: PlacementQuery,
    layout: Layout,
    search: EqualSearch[T],
    weighed: Weighed,
    listed: Sequence[tuple[int, ...]],
    asked: int,
    places: Iterator[tuple[int, T]],
) -> tuple[int, T] | None:
    """Return that of some places which leaves room for the most of the usual gangs, the first of equals."""
    column = search.view.cls.scarce
    usual = site.history.gangs.sizes(column)
    if not usual:
        return next(places, None)
    best: tuple[int, tuple[int, T]] | None = None
    for number, place in islice(places, MOST_COMPARED):
        leaves = np.array(listed[number], np.int64)
        taken = np.zeros(len(layout.paths), np.int64)
        for (cls, _), rows in zip(ask.groups, search.rows_of(place), strict=True):
            np.add.at(taken, layout.leaf_of_row[np.array(rows, np.int64)], cls.amount(column))
        lost = stranded(leaves, taken[leaves], asked, usual, weighed.totals, weighed.outside)
        if best is None or lost < best[0]:
            best = lost, (number, place)
    return None if best is None else best[1]
