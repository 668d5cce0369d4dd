"""Whether nodes hold members of several classes together, and how: exact, by the sets of counts that each can hold.

What a node, a leaf or a domain can hold is told by its *frontier*: the vectors of counts, one of each class, of which
none could be larger; whatever is below one of them fits as well. Frontiers of two places add up to that of both. They
stay small because no count need be larger than what is asked. (Dynamic programming over Pareto sets, as for the
multi-objective knapsack: Nemhauser and Ullmann 1969.)

All work is counted, so that a search may be given up where it takes too long, always at the same point.
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
MANY: Final = 128
"""Pairs of vectors from which on a grid is quicker."""
MOST_CLASSES: Final = 60
"""Classes with members on one node from which on no grid of counts can be made: NumPy has 64 dimensions at most."""
PAIRS_AT_ONCE: Final = 1 << 16
"""Pairs of vectors that are added at once: some MiB."""
VECTORS_PER_OPERATION: Final = 4

Vector = tuple[int, ...]
Frontier = tuple[Vector, ...]


class TooMuch(Exception):
    """The work allowed is used up."""


@dataclass(slots=True)
class VectorBudget:
    """Vectors that may still be looked at."""

    left: int

    def spend(self, work: int) -> None:
        """Count some work.

        Raises:
            TooMuch: nothing is left.
            OverBudgetError: the whole attempt has used up its budget.
        """
        self.left -= work
        if self.left < 0:
            raise TooMuch
        charge(work // VECTORS_PER_OPERATION)


@dataclass(frozen=True, slots=True)
class LeafRoom:
    """A leaf: its rows, the frontier of each, and most of them that may be used; 0 for no limit.

    ``most`` GPUs of one leaf, 0 for no limit, of which a member of each class takes ``gpus``.
    """

    rows: tuple[int, ...]
    frontiers: tuple[Frontier, ...]
    most_rows: int = 0
    most: int = 0
    gpus: Vector = ()


def maximal(vectors: Iterable[Vector], budget: VectorBudget) -> Frontier:
    """Return the vectors of which none is below another, the largest first.

    Raises:
        TooMuch: the work allowed is used up.
    """
    found: list[Vector] = []
    for one in sorted(set(vectors), reverse=True):
        if len(one) == 2:
            # In this order only the last that was kept can be above.
            budget.left -= 1
            if not found or one[1] > found[-1][1]:
                found.append(one)
            continue
        budget.spend(len(found) + 1)
        if not any(all(map(ge, other, one)) for other in found):
            found.append(one)
    budget.spend(0)
    return tuple(found)


def of_node(free: Sequence[int], requests: Sequence[Sequence[int]], asked: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of a node.

    Args:
        free: what is free of each resource.
        requests: what a member of each class asks of it.
        asked: members of each class that are to be placed; 0 for a class that may not use the node.
        budget: of the search.

    Raises:
        TooMuch: the work allowed is used up.
    """

    def most_of(group: int, left: Sequence[int]) -> int:
        limits = (have // want for have, want in zip(left, requests[group], strict=True) if want)
        return max(0, min([asked[group], *limits]))

    groups = [group for group in range(len(asked)) if most_of(group, free)]
    if len(groups) > MOST_CLASSES:
        budget.spend(budget.left + 1)
    found: list[Vector] = []
    steps = 4 * budget.left + 10_000  # several to each vector, where there are several classes
    # What is chosen of the first so many groups, and what is left of the node; the largest counts come out first.
    stack: list[tuple[int, Vector, Sequence[int]]] = [(0, (0,) * len(asked), free)]
    while stack:
        at, chosen, left = stack.pop()
        charge(2)
        steps -= 1
        # Each vector is different and costs one at least: more than are left can't be looked at.
        if steps < 0 or len(found) > budget.left:
            budget.spend(budget.left + 1)
        if at == len(groups):
            found.append(chosen)
            continue
        group = groups[at]
        for count in range(most_of(group, left) + 1):
            less = [have - count * want for have, want in zip(left, requests[group], strict=True)] if count else left
            stack.append((at + 1, (*chosen[:group], count, *chosen[group + 1 :]) if count else chosen, less))
    return maximal(found, budget)


def add(one: Frontier, other: Frontier, asked: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of two places together, no count larger than what is asked.

    Raises:
        TooMuch: the work allowed is used up.
    """
    if len(one) * len(other) > MANY:
        return _tops(one, other, asked, budget)
    few = (tuple(map(min, map(plus, a, b), asked)) for a in one for b in other)
    return maximal(few, budget)


def either(one: Frontier, other: Frontier, asked: Vector, budget: VectorBudget) -> Frontier:
    """Return what one of two places holds.

    Raises:
        TooMuch: the work allowed is used up.
    """
    if len(one) * len(other) > MANY:
        return _tops((*one, *other), ((0,) * len(asked),), asked, budget)
    return maximal((*one, *other), budget)


def _tops(one: Frontier, other: Frontier, asked: Vector, budget: VectorBudget) -> Frontier:
    """Return what `maximal` does of all sums, on a grid of all counts: quicker where there are many vectors."""
    cells = prod(count + 1 for count in asked)
    # Before anything is allocated.
    budget.spend((len(one) * len(other) + 4 * len(asked) * cells) // 64 + 64)
    if len(asked) > MOST_CLASSES:
        raise TooMuch
    below = np.zeros([count + 1 for count in asked], np.bool_)
    others, at_once = np.array(other)[None, :, :], max(1, PAIRS_AT_ONCE // len(other))
    for first in range(0, len(one), at_once):
        sums = np.minimum(np.array(one[first : first + at_once])[:, None, :] + others, asked)
        below[tuple(sums.reshape(-1, len(asked)).T)] = True
    for axis in range(below.ndim):
        below = np.flip(np.logical_or.accumulate(np.flip(below, axis), axis=axis), axis)
    top = below.copy()
    for axis in range(below.ndim):
        here, further = np.moveaxis(top, axis, 0), np.moveaxis(below, axis, 0)
        here[:-1] &= ~further[1:]
    return tuple(tuple(one) for one in np.argwhere(top)[::-1].tolist())


def holds(frontier: Frontier, wanted: Vector) -> bool:
    """Return whether a place holds so many of each class."""
    return any(all(map(ge, one, wanted)) for one in frontier)


def of_leaf(room: LeafRoom, asked: Vector, budget: VectorBudget) -> Frontier:
    """Return the frontier of a leaf, within its limits.

    Raises:
        TooMuch: the work allowed is used up.
    """
    whole = _suffixes(room, asked, budget)[0][-1]
    if not room.most:
        return whole
    # What is too much together: all that is below, and no longer too much.
    fitting: set[Vector] = set()
    left = list(whole)
    seen = set(left)
    while left:
        one = left.pop()
        budget.spend(1)
        if sum(count * each for count, each in zip(one, room.gpus, strict=True)) <= room.most:
            fitting.add(one)
            continue
        for at, count in enumerate(one):
            if count and room.gpus[at] and (less := (*one[:at], count - 1, *one[at + 1 :])) not in seen:
                seen.add(less)
                left.append(less)
    return maximal(fitting, budget)


def _suffixes(room: LeafRoom, asked: Vector, budget: VectorBudget) -> list[list[Frontier]]:
    """Return for each row on from the first, and each number of rows that may be used, what they hold."""
    none: Frontier = (tuple(0 for _ in asked),)
    # Without a limit one entry says it all.
    limits = min(room.most_rows, len(room.rows)) if room.most_rows else 0
    tables = [[none] * (limits + 1)]
    for frontier in reversed(room.frontiers):
        before = tables[-1]
        if limits:
            more = (add(frontier, before[used - 1], asked, budget) for used in range(1, limits + 1))
            here = [none, *(either(old, new, asked, budget) for old, new in zip(before[1:], more, strict=True))]
        else:
            here = [add(frontier, before[0], asked, budget)]
        tables.append(here)
    return tables[::-1]


def seat(room: LeafRoom, wanted: Vector, budget: VectorBudget) -> list[tuple[int, Vector]]:
    """Return how many of each class go to which row of a leaf that holds them.

    Raises:
        TooMuch: the work allowed is used up.
    """
    tables = _suffixes(room, wanted, budget)
    used = len(tables[0]) - 1
    left, seats = wanted, []
    for number, (row, frontier) in enumerate(zip(room.rows, room.frontiers, strict=True)):
        behind = tables[number + 1]
        if holds(behind[used], left):
            continue  # the fewer rows the better
        after = behind[max(0, used - 1)]
        for one in frontier:
            rest = tuple(max(0, want - have) for want, have in zip(left, one, strict=True))
            if holds(after, rest):
                seats.append((row, tuple(want - more for want, more in zip(left, rest, strict=True))))
                left, used = rest, max(0, used - 1)
                break
    return seats


def fewest_leaves(
    frontiers: Sequence[Frontier], most: int, asked: Vector, budget: VectorBudget
) -> list[tuple[int, Vector]] | None:
    """Return the fewest leaves of one domain that hold what is asked, next to each other as far as can be.

    Args:
        frontiers: of each leaf, in order of the fabric.
        most: leaves at most.
        asked: members of each class.
        budget: of the search.

    Returns:
        Leaves in order, each with how many of each class go there; the first of equals; None where there are none.

    Raises:
        TooMuch: the work allowed is used up.
    """
    size = _fewest(frontiers, most, asked, budget)
    if not size:
        return None
    best: tuple[int, int] | None = None
    try:
        for first in range(len(frontiers)):
            last = _reach(frontiers, first, size, asked, best, budget)
            if last is not None and (best is None or last - first < best[0]):
                best = (last - first, first)
    except TooMuch:
        if best is None:
            raise
    assert best is not None
    width, first = best
    # What was found is shared out whatever it takes: it is less than what was done to find it.
    return _share(frontiers[first : first + width + 1], first, size, asked, VectorBudget(UNBOUNDED))


def _fewest(frontiers: Sequence[Frontier], most: int, asked: Vector, budget: VectorBudget) -> int:
    """Return how many leaves it takes at least, 0 where so many are not enough."""
    # held[n]: what n leaves hold at most, of those looked at.
    held: list[Frontier] = [(tuple(0 for _ in asked),)]
    for frontier in frontiers:
        if not any(map(any, frontier)):
            continue
        for used in range(min(most, len(held)), 0, -1):
            more = add(held[used - 1], frontier, asked, budget)
            if used == len(held):
                held.append(more)
            else:
                held[used] = either(held[used], more, asked, budget)
        # More leaves than it takes need not be looked at.
        enough = next((used for used, one in enumerate(held) if holds(one, asked)), 0)
        most = enough or most
        del held[most + 1 :]
    return most if len(held) > most and holds(held[most], asked) else 0


def _reach(
    frontiers: Sequence[Frontier],
    first: int,
    size: int,
    asked: Vector,
    best: tuple[int, int] | None,
    budget: VectorBudget,
) -> int | None:
    """Return the nearest leaf with which so many leaves from the first on hold all, the first among them."""
    if not any(map(any, frontiers[first])):
        return None
    # held[n]: what n leaves hold at most, the first among them.
    held: list[Frontier] = [(), frontiers[first]]
    stop = len(frontiers) if best is None else min(len(frontiers), first + best[0])
    if holds(frontiers[first], asked):
        return first
    for last in range(first + 1, stop):
        if not any(map(any, frontiers[last])):
            continue
        for used in range(min(size, len(held)), 1, -1):
            more = add(held[used - 1], frontiers[last], asked, budget)
            if used == len(held):
                held.append(more)
            else:
                held[used] = either(held[used], more, asked, budget)
        if holds(held[-1], asked):
            return last
    return None


def _share(
    frontiers: Sequence[Frontier], first: int, size: int, asked: Vector, budget: VectorBudget
) -> list[tuple[int, Vector]]:
    """Return which leaves of a window are used, and how many of each class go to each."""
    room = LeafRoom(tuple(range(first, first + len(frontiers))), tuple(frontiers), size)
    return seat(room, asked, budget)
