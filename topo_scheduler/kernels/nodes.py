"""Choosing nodes inside the chosen leaves."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64[::1], int64, int64)")
def deal(limits: Int64, out: Int64, members: int, spread: int) -> int:
    """Deal members to leaves.

    Packed: the leaf that holds least is filled first, so that what stays free stays together. Spread: one at a time
    to the leaf that has got fewest, the first of them on a tie.

    Args:
        limits: int64[n], most members of each leaf.
        out: int64[n], members of each leaf; read as what each has already.
        members: how many to deal.
        spread: 1 to spread, 0 to pack.

    Returns:
        How many could not be dealt.
    """
    n = limits.shape[0]
    left = members
    while left > 0:
        best = -1
        for i in range(n):
            room = limits[i] - out[i]
            if room <= 0:
                continue
            if best < 0:
                best = i
            elif spread == 1:
                if out[i] < out[best]:
                    best = i
            elif room < limits[best] - out[best]:
                best = i
        if best < 0:
            break
        step = np.int64(1) if spread == 1 else min(left, limits[best] - out[best])
        out[best] += step
        left -= step
    return left


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def pack_nodes(
    rows: Int64, fit: Int64, free: Int64, preference: Int64, ask: int, members: int, max_nodes: int, out: Int64
) -> int:
    """Put members on the fewest nodes of a leaf, leaving the least stranded.

    The last node is the one that is left with the least free; a node that takes part of the gang only is the one
    that holds most. Ties: higher preference, then less left free, then the earlier node. Where one node suffices,
    preference comes first.

    Args:
        rows: int64[n], the leaf's rows in order.
        fit: int64[rows], members a node holds.
        free: int64[rows], what is free of the scarce resource.
        preference: int64[rows], how much the workload prefers a node.
        ask: what one member asks of the scarce resource.
        members: how many to place.
        max_nodes: most nodes to use; 0 means no limit.
        out: int64[n], members on each of ``rows``, zero before.

    Returns:
        How many could not be placed.
    """
    left = members
    used = 0
    while left > 0 and (max_nodes == 0 or used < max_nodes):
        last = -1
        most = -1
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i] > 0 or fit[row] == 0:
                continue
            if fit[row] >= left:
                if last < 0:
                    last = i
                    continue
                held = rows[last]
                if preference[row] > preference[held] or (
                    preference[row] == preference[held] and free[row] < free[held]
                ):
                    last = i
            elif most < 0 or fit[row] > fit[rows[most]]:
                most = i
            elif fit[row] == fit[rows[most]]:
                held = rows[most]
                if preference[row] > preference[held] or (
                    preference[row] == preference[held] and free[row] < free[held]
                ):
                    most = i
        pick = last if last >= 0 else most
        if pick < 0:
            break
        out[pick] = min(left, fit[rows[pick]])
        left -= out[pick]
        used += 1
    return left


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def spread_nodes(
    rows: Int64,
    fit: Int64,
    free: Int64,
    preference: Int64,
    siblings: Int64,
    ask: int,
    members: int,
    max_nodes: int,
    out: Int64,
) -> int:
    """Spread members over the nodes of a leaf, one at a time.

    Each goes to the node with the fewest of this workload, then highest preference, then most free, then the earlier
    node.

    Args:
        rows: int64[n], the leaf's rows in order.
        fit: int64[rows], members a node holds.
        free: int64[rows], what is free of the scarce resource.
        preference: int64[rows], how much the workload prefers a node.
        siblings: int64[rows], pods of this workload that a node runs already.
        ask: what one member asks of the scarce resource.
        members: how many to place.
        max_nodes: most nodes to use; 0 means no limit.
        out: int64[n], members on each of ``rows``, zero before.

    Returns:
        How many could not be placed.
    """
    left = members
    used = 0
    while left > 0:
        best = -1
        for i in range(rows.shape[0]):
            row = rows[i]
            if fit[row] <= out[i] or (out[i] == 0 and max_nodes > 0 and used >= max_nodes):
                continue
            if best < 0:
                best = i
                continue
            held = rows[best]
            mine, theirs = siblings[row] + out[i], siblings[held] + out[best]
            if mine != theirs:
                if mine < theirs:
                    best = i
            elif preference[row] != preference[held]:
                if preference[row] > preference[held]:
                    best = i
            elif free[row] - out[i] * ask > free[held] - out[best] * ask:
                best = i
        if best < 0:
            break
        if out[best] == 0:
            used += 1
        out[best] += 1
        left -= 1
    return left
