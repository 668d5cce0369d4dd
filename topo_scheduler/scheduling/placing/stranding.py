"""What a placement takes from the gangs that the cluster usually sees: the last thing that decides between equals."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from topo_scheduler.kernels.windows import least_lost
from topo_scheduler.scheduling.placing.totals import LeafTotals
from topo_scheduler.state.nodes import Int64

MOST_COMPARED: Final = 64
"""Placements in several leaves that are compared, at most, the first ones."""


def least_stranding(
    ties: Int64,
    sets: Int64,
    sizes: Int64,
    fits: Int64,
    usual: list[tuple[int, int]],
    totals: LeafTotals,
    parent_free: Int64,
    asked: int,
    deal: Callable[[Int64], Int64],
) -> int:
    """Return which of some sets of leaves leaves room for the most of the usual gangs, the first of equals.

    For each usual size it is counted how many such gangs fit in what is free, before and after: in each leaf used where
    a leaf could hold one, else in the domain that the leaves share. Where nodes begin and end is not looked at.

    Args:
        ties: int64[n], indices of sets, ascending.
        sets: int64[>= n, k], leaves of each.
        sizes: int64[>= n], how many they are.
        fits: int64[leaves], units of the gang that a leaf holds.
        usual: (size, weight) of usual gangs.
        totals: capacity and use of leaves.
        parent_free: int64[leaves], what is free in the domain each leaf lies in.
        asked: what the gang asks in all.
        deal: what is taken of each leaf of a set.
    """
    size, weight = np.array(usual, np.int64).T.copy()
    if sizes[ties[0]] == 1:
        return int(ties[least_lost(sets[ties, 0], asked, size, weight, totals.capacity, totals.used, parent_free)])
    size = size[:, None]
    ties = _different(ties[sizes[ties] == sizes[ties[0]]][:MOST_COMPARED], sets, sizes, fits, totals, parent_free)
    lost = np.zeros(len(ties), np.int64)
    for number, tie in enumerate(ties.tolist()):
        leaves = sets[tie, : sizes[tie]]
        lost[number] = _lost(leaves, deal(leaves), asked, size, weight, totals, parent_free)
    return int(ties[int(lost.argmin())])


def stranded(
    leaves: Int64, taken: Int64, asked: int, usual: Sequence[tuple[int, int]], totals: LeafTotals, parent_free: Int64
) -> int:
    """Return how many of the usual gangs, by weight, fit no more once so much is taken of some leaves.

    Args:
        leaves: int64[n], of one domain.
        taken: int64[n], what is taken of each.
        asked: what is taken in all.
        usual: (size, weight) of usual gangs.
        totals: capacity and use of leaves.
        parent_free: int64[leaves of the fabric], what is free in the domain each leaf lies in.
    """
    want = np.array(usual, np.int64)
    return _lost(leaves, taken, asked, want[:, :1], want[:, 1], totals, parent_free)


def _lost(
    leaves: Int64, taken: Int64, asked: int, size: Int64, weight: Int64, totals: LeafTotals, parent_free: Int64
) -> int:
    inside = _fewer(size, totals.capacity[leaves] - totals.used[leaves], taken).sum(axis=1)
    outside = _fewer(size[:, 0], parent_free[leaves[0]], asked)
    holds = (totals.capacity[leaves] >= size).any(axis=1)
    return int((weight * np.where(holds, inside, outside)).sum())


def _different(ties: Int64, sets: Int64, sizes: Int64, fits: Int64, totals: LeafTotals, parent_free: Int64) -> Int64:
    """Return the first of those in whose leaves all is the same: what they strand is too."""
    leaves = sets[ties, : sizes[ties[0]]]
    state = (totals.capacity[leaves], totals.used[leaves], fits[leaves], parent_free[leaves[:, :1]])
    _, first = np.unique(np.concatenate(state, axis=1), axis=0, return_index=True)
    return ties[np.sort(first)]


def _fewer(size: Int64, free: Int64, taken: Int64 | int) -> Int64:
    """How many fewer of a size fit."""
    fewer: Int64 = np.maximum(free, 0) // size - np.maximum(free - taken, 0) // size
    return fewer
