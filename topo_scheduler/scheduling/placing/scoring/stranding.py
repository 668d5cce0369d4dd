"""The room that a placement takes from gangs of usual sizes: the last criterion between equal placements."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from topo_scheduler.kernels.windows import least_lost
from topo_scheduler.scheduling.placing.model.leaf_totals import LeafTotals
from topo_scheduler.state.nodes.node_table import Int64

MAX_PLACEMENTS: Final = 64
"""The most placements in several leaves to compare, the first ones."""


def least_stranding(
    ties: Int64,
    sets: Int64,
    sizes: Int64,
    fits: Int64,
    common_gangs: list[tuple[int, int]],
    totals: LeafTotals,
    parent_free: Int64,
    requested: int,
    deal: Callable[[Int64], Int64],
) -> int:
    """Return the index of the set of leaves that leaves room for most of the common gangs, the first of equal ones.

    For each usual size, the function counts the gangs that fit the free resources before and after. It counts in each
    leaf used if a leaf could hold such a gang, otherwise in the domain that the leaves share. It ignores the borders
    between nodes.

    Args:
        ties: int64[n], indices of sets, ascending.
        sets: int64[>= n, k], leaves of each.
        sizes: int64[>= n], number of leaves in each set.
        fits: int64[leaves], units of the gang that a leaf holds.
        common_gangs: (size, weight) of common gangs.
        totals: capacity and use of leaves.
        parent_free: int64[leaves], free amount of the domain around each leaf.
        requested: request of the whole gang.
        deal: returns the amount that the gang takes from each leaf of a set.
    """
    size, weight = np.array(common_gangs, np.int64).T.copy()
    if sizes[ties[0]] == 1:
        return int(ties[least_lost(sets[ties, 0], requested, size, weight, totals.capacity, totals.used, parent_free)])
    size = size[:, None]
    ties = _different(ties[sizes[ties] == sizes[ties[0]]][:MAX_PLACEMENTS], sets, sizes, fits, totals, parent_free)
    lost = np.zeros(len(ties), np.int64)
    for number, tie in enumerate(ties.tolist()):
        leaves = sets[tie, : sizes[tie]]
        lost[number] = _lost(leaves, deal(leaves), requested, size, weight, totals, parent_free)
    return int(ties[int(lost.argmin())])


def stranded(
    leaves: Int64,
    taken: Int64,
    requested: int,
    common_gangs: Sequence[tuple[int, int]],
    totals: LeafTotals,
    parent_free: Int64,
) -> int:
    """Return the weight of the common gangs that no longer fit once a gang has taken its part of the leaves.

    Args:
        leaves: int64[n], of one domain.
        taken: int64[n], amount taken from each leaf.
        requested: amount taken in total.
        common_gangs: (size, weight) of common gangs.
        totals: capacity and use of leaves.
        parent_free: int64[leaves of the fabric], free amount of the domain around each leaf.
    """
    sizes_and_weights = np.array(common_gangs, np.int64)
    return _lost(leaves, taken, requested, sizes_and_weights[:, :1], sizes_and_weights[:, 1], totals, parent_free)


def _lost(
    leaves: Int64, taken: Int64, requested: int, size: Int64, weight: Int64, totals: LeafTotals, parent_free: Int64
) -> int:
    inside = _fewer(size, totals.capacity[leaves] - totals.used[leaves], taken).sum(axis=1)
    outside = _fewer(size[:, 0], parent_free[leaves[0]], requested)
    holds = (totals.capacity[leaves] >= size).any(axis=1)
    return int((weight * np.where(holds, inside, outside)).sum())


def _different(ties: Int64, sets: Int64, sizes: Int64, fits: Int64, totals: LeafTotals, parent_free: Int64) -> Int64:
    """Return the first of each group of sets with equal leaves; they strand the same amount."""
    leaves = sets[ties, : sizes[ties[0]]]
    state = (totals.capacity[leaves], totals.used[leaves], fits[leaves], parent_free[leaves[:, :1]])
    _, first = np.unique(np.concatenate(state, axis=1), axis=0, return_index=True)
    return ties[np.sort(first)]


def _fewer(size: Int64, free: Int64, taken: Int64 | int) -> Int64:
    """Return how many fewer gangs of a size fit."""
    fewer: Int64 = np.maximum(free, 0) // size - np.maximum(free - taken, 0) // size
    return fewer
