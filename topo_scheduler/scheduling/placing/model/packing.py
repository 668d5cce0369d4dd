"""Exact packing of members of several classes on nodes, by the sets of member counts that each node can hold.

The *frontier* of a node, a leaf or a domain describes what it can hold. It is the set of maximal vectors, with one
count per class. Any vector below one of them fits as well. The frontiers of two places add up to the frontier of both.
Frontiers stay small because no count has to exceed what the gang asks for. (Dynamic programming over Pareto sets, as
for the multi-objective knapsack: Nemhauser and Ullmann 1969.)

All work is counted, so a search that takes too long stops, always at the same point.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import add as plus
from operator import ge
from typing import Final

import numpy as np

from topo_scheduler.state.operation_budget import charge

UNBOUNDED: Final = 1 << 62
MANY_PAIRS: Final = 128
"""With more pairs of vectors, a grid is quicker."""
MAX_CLASSES: Final = 60
"""The most classes for a grid of counts: NumPy arrays have at most 64 dimensions."""
PAIRS_PER_PART: Final = 1 << 16
"""Pairs of vectors to add at once: a few MiB of memory."""
VECTORS_PER_OPERATION: Final = 4

Vector = tuple[int, ...]
Frontier = tuple[Vector, ...]


class SearchExhausted(Exception):
    """The search has used up its budget."""


@dataclass(slots=True)
class VectorBudget:
    """Number of vectors that a search may still examine."""

    left: int

    def spend(self, work: int) -> None:
        """Subtract work from the budget.

        Raises:
            SearchExhausted: the budget is used up.
            OverBudgetError: the whole scheduling attempt has used up its budget.
        """
        self.left -= work
        if self.left < 0:
            raise SearchExhausted
        charge(work // VECTORS_PER_OPERATION)


@dataclass(frozen=True, slots=True)
class LeafRoom:
    """A leaf: its rows and the frontier of each row.

    ``max_rows``: the most rows that may be used. ``max_gpus``: the most GPUs that may be used. 0 means no limit.
    ``gpus``: GPUs of one member of each class.
    """

    rows: tuple[int, ...]
    frontiers: tuple[Frontier, ...]
    max_rows: int = 0
    max_gpus: int = 0
    gpus: Vector = ()


def maximal(vectors: Iterable[Vector], budget: VectorBudget) -> Frontier:
    """Return the vectors that are not below another one, the largest first.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    kept: list[Vector] = []
    for vector in sorted(set(vectors), reverse=True):
        if len(vector) == 2:
            # In this order only the last kept vector can be above this one.
            budget.left -= 1
            if not kept or vector[1] > kept[-1][1]:
                kept.append(vector)
            continue
        budget.spend(len(kept) + 1)
        if not any(all(map(ge, other, vector)) for other in kept):
            kept.append(vector)
    budget.spend(0)
    return tuple(kept)


def of_node(free: Sequence[int], requests: Sequence[Sequence[int]], members: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of a node.

    Args:
        free: free amount of each resource.
        requests: request of a member of each class, by resource.
        members: members of each class to place; 0 for a class that may not use the node.
        budget: of the search.

    Raises:
        SearchExhausted: the search has used up its budget.
    """

    def most_of(group: int, left: Sequence[int]) -> int:
        limits = (amount // request for amount, request in zip(left, requests[group], strict=True) if request)
        return max(0, min([members[group], *limits]))

    groups = [group for group in range(len(members)) if most_of(group, free)]
    if len(groups) > MAX_CLASSES:
        budget.spend(budget.left + 1)
    vectors: list[Vector] = []
    steps = 4 * budget.left + 10_000  # with several classes, a vector takes several steps
    # Number of groups decided, their counts, and the remaining resources; the largest counts are popped first.
    stack: list[tuple[int, Vector, Sequence[int]]] = [(0, (0,) * len(members), free)]
    while stack:
        index, chosen, left = stack.pop()
        charge(2)
        steps -= 1
        # All vectors differ and each costs at least 1, so more than the budget can't be examined.
        if steps < 0 or len(vectors) > budget.left:
            budget.spend(budget.left + 1)
        if index == len(groups):
            vectors.append(chosen)
            continue
        group = groups[index]
        for count in range(most_of(group, left) + 1):
            remaining = (
                [amount - count * request for amount, request in zip(left, requests[group], strict=True)]
                if count
                else left
            )
            stack.append((index + 1, (*chosen[:group], count, *chosen[group + 1 :]) if count else chosen, remaining))
    return maximal(vectors, budget)


def add(first: Frontier, second: Frontier, members: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of two places together, each count at most the members to place.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    if len(first) * len(second) > MANY_PAIRS:
        return _tops(first, second, members, budget)
    sums = (tuple(map(min, map(plus, left, right), members)) for left in first for right in second)
    return maximal(sums, budget)


def either(first: Frontier, second: Frontier, members: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of what the better of two places holds.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    if len(first) * len(second) > MANY_PAIRS:
        return _tops((*first, *second), ((0,) * len(members),), members, budget)
    return maximal((*first, *second), budget)


def _tops(first_frontier: Frontier, second_frontier: Frontier, members: Vector, budget: VectorBudget) -> Frontier:
    """Return the maximal sums, as `maximal` does, on a grid of all counts: quicker for many vectors."""
    cells = prod(count + 1 for count in members)
    # Spend the budget before the arrays are allocated.
    budget.spend((len(first_frontier) * len(second_frontier) + 4 * len(members) * cells) // 64 + 64)
    if len(members) > MAX_CLASSES:
        raise SearchExhausted
    below = np.zeros([count + 1 for count in members], np.bool_)
    addends, at_once = np.array(second_frontier)[None, :, :], max(1, PAIRS_PER_PART // len(second_frontier))
    for start in range(0, len(first_frontier), at_once):
        sums = np.minimum(np.array(first_frontier[start : start + at_once])[:, None, :] + addends, members)
        below[tuple(sums.reshape(-1, len(members)).T)] = True
    for axis in range(below.ndim):
        below = np.flip(np.logical_or.accumulate(np.flip(below, axis), axis=axis), axis)
    top = below.copy()
    for axis in range(below.ndim):
        cells_at, below_at = np.moveaxis(top, axis, 0), np.moveaxis(below, axis, 0)
        cells_at[:-1] &= ~below_at[1:]
    return tuple(tuple(vector) for vector in np.argwhere(top)[::-1].tolist())


def holds(frontier: Frontier, members: Vector) -> bool:
    """Return whether a place with this frontier holds the wanted members of each class."""
    return any(all(map(ge, vector, members)) for vector in frontier)


def of_leaf(room: LeafRoom, members: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of a leaf within its limits.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    unlimited = _suffixes(room, members, budget)[0][-1]
    if not room.max_gpus:
        return unlimited
    # Replace vectors with too many GPUs by the vectors below them that fit.
    fitting: set[Vector] = set()
    pending = list(unlimited)
    seen = set(pending)
    while pending:
        vector = pending.pop()
        budget.spend(1)
        if sum(count * per_member for count, per_member in zip(vector, room.gpus, strict=True)) <= room.max_gpus:
            fitting.add(vector)
            continue
        for group, count in enumerate(vector):
            if (
                count
                and room.gpus[group]
                and (smaller := (*vector[:group], count - 1, *vector[group + 1 :])) not in seen
            ):
                seen.add(smaller)
                pending.append(smaller)
    return maximal(fitting, budget)


def _suffixes(room: LeafRoom, members: Vector, budget: VectorBudget) -> list[list[Frontier]]:
    """Return tables[i][n]: the frontier of the rows from i on, of which at most n may be used."""
    no_members: Frontier = (tuple(0 for _ in members),)
    # Without a limit one entry per table suffices.
    limits = min(room.max_rows, len(room.rows)) if room.max_rows else 0
    tables = [[no_members] * (limits + 1)]
    for frontier in reversed(room.frontiers):
        previous = tables[-1]
        if limits:
            with_row = (add(frontier, previous[used - 1], members, budget) for used in range(1, limits + 1))
            table = [
                no_members,
                *(either(old, new, members, budget) for old, new in zip(previous[1:], with_row, strict=True)),
            ]
        else:
            table = [add(frontier, previous[0], members, budget)]
        tables.append(table)
    return tables[::-1]


def seat(room: LeafRoom, members: Vector, budget: VectorBudget) -> list[tuple[int, Vector]]:
    """Return the rows of a leaf to use, and the members of each class on each row; the leaf must hold them all.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    tables = _suffixes(room, members, budget)
    used = len(tables[0]) - 1
    left, seats = members, []
    for number, (row, frontier) in enumerate(zip(room.rows, room.frontiers, strict=True)):
        later_rows = tables[number + 1]
        if holds(later_rows[used], left):
            continue  # use as few rows as possible
        later_rows_if_used = later_rows[max(0, used - 1)]
        for vector in frontier:
            remaining = tuple(max(0, needed - held) for needed, held in zip(left, vector, strict=True))
            if holds(later_rows_if_used, remaining):
                seats.append((row, tuple(needed - unplaced for needed, unplaced in zip(left, remaining, strict=True))))
                left, used = remaining, max(0, used - 1)
                break
    return seats


def fewest_leaves(
    frontiers: Sequence[Frontier], max_leaves: int, members: Vector, budget: VectorBudget
) -> list[tuple[int, Vector]] | None:
    """Return the fewest leaves of one domain that hold the members, as close to each other as possible.

    Args:
        frontiers: of each leaf, in order of the fabric.
        max_leaves: the most leaves.
        members: members of each class to place.
        budget: of the search.

    Returns:
        Leaves in order, each with its members of each class; of equal sets the first; None if no set holds them.

    Raises:
        SearchExhausted: the search has used up its budget.
    """
    size = _fewest(frontiers, max_leaves, members, budget)
    if not size:
        return None
    best: tuple[int, int] | None = None
    try:
        for first in range(len(frontiers)):
            last = _reach(frontiers, first, size, members, best, budget)
            if last is not None and (best is None or last - first < best[0]):
                best = (last - first, first)
    except SearchExhausted:
        if best is None:
            raise
    assert best is not None
    width, first = best
    # Distribution gets no limit: it takes less work than the search.
    return _share(frontiers[first : first + width + 1], first, size, members, VectorBudget(UNBOUNDED))


def _fewest(frontiers: Sequence[Frontier], max_leaves: int, members: Vector, budget: VectorBudget) -> int:
    """Return the fewest leaves that hold the members, 0 if ``max_leaves`` leaves are not enough."""
    # held[n]: the frontier of the best n leaves among those examined.
    held: list[Frontier] = [(tuple(0 for _ in members),)]
    for frontier in frontiers:
        if not any(map(any, frontier)):
            continue
        for used in range(min(max_leaves, len(held)), 0, -1):
            with_leaf = add(held[used - 1], frontier, members, budget)
            if used == len(held):
                held.append(with_leaf)
            else:
                held[used] = either(held[used], with_leaf, members, budget)
        # More leaves than necessary need no entry.
        enough = next((used for used, best in enumerate(held) if holds(best, members)), 0)
        max_leaves = enough or max_leaves
        del held[max_leaves + 1 :]
    return max_leaves if len(held) > max_leaves and holds(held[max_leaves], members) else 0


def _reach(
    frontiers: Sequence[Frontier],
    first: int,
    size: int,
    members: Vector,
    best: tuple[int, int] | None,
    budget: VectorBudget,
) -> int | None:
    """Return the nearest last leaf so that ``size`` leaves from ``first`` to it, both included, hold the members."""
    if not any(map(any, frontiers[first])):
        return None
    # held[n]: the frontier of the best n leaves that include the first.
    held: list[Frontier] = [(), frontiers[first]]
    stop = len(frontiers) if best is None else min(len(frontiers), first + best[0])
    if holds(frontiers[first], members):
        return first
    for last in range(first + 1, stop):
        if not any(map(any, frontiers[last])):
            continue
        for used in range(min(size, len(held)), 1, -1):
            with_leaf = add(held[used - 1], frontiers[last], members, budget)
            if used == len(held):
                held.append(with_leaf)
            else:
                held[used] = either(held[used], with_leaf, members, budget)
        if holds(held[-1], members):
            return last
    return None


def _share(
    frontiers: Sequence[Frontier], first: int, size: int, members: Vector, budget: VectorBudget
) -> list[tuple[int, Vector]]:
    """Return the leaves of a window to use, each with its members of each class."""
    room = LeafRoom(tuple(range(first, first + len(frontiers))), tuple(frontiers), size)
    return seat(room, members, budget)
