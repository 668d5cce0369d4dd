"""Choice of nodes in the chosen leaves."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64[::1], int64[::1], int64, int64)")
def deal(limits: Int64, out: Int64, members: int, spread: int) -> int:
    """Distribute members over leaves.

    To pack, the function fills the leaf with least room first, so that free resources stay together. To spread, it adds
    one member at a time to the leaf with the fewest members, on a tie the first one.

    Args:
        limits: int64[n], the most members of each leaf.
        out: int64[n], members of each leaf; on entry, the members that it has already.
        members: number to distribute.
        spread: 1 to spread, 0 to pack.

    Returns:
        The number of members that could not be distributed.
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


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1])")
def pack_nodes(
    rows: Int64, fit: Int64, free: Int64, preference: Int64, members: int, max_nodes: int, out: Int64
) -> int:
    """Place members on the fewest nodes of a leaf, with the least stranded resources.

    If a node can take all remaining members, the function takes one, with the highest preference, then the least free.
    Otherwise it fills the node that holds most. Ties: higher preference, then less free, then the earlier node.

    Args:
        rows: int64[n], the leaf's rows in order.
        fit: int64[rows], members that a node holds.
        free: int64[rows], free amount of the scarce resource.
        preference: int64[rows], preference of the workload for a node.
        members: number to place.
        max_nodes: the most nodes to use; 0 means no limit.
        out: int64[n], members on each of ``rows``; zero on entry.

    Returns:
        The number of members that could not be placed.
    """
    left = members
    used = 0
    while left > 0 and (max_nodes == 0 or used < max_nodes):
        takes_all = -1
        roomiest = -1
        for i in range(rows.shape[0]):
            row = rows[i]
            if out[i] > 0 or fit[row] == 0:
                continue
            if fit[row] >= left:
                if takes_all < 0:
                    takes_all = i
                    continue
                best_row = rows[takes_all]
                if preference[row] > preference[best_row] or (
                    preference[row] == preference[best_row] and free[row] < free[best_row]
                ):
                    takes_all = i
            elif roomiest < 0 or fit[row] > fit[rows[roomiest]]:
                roomiest = i
            elif fit[row] == fit[rows[roomiest]]:
                best_row = rows[roomiest]
                if preference[row] > preference[best_row] or (
                    preference[row] == preference[best_row] and free[row] < free[best_row]
                ):
                    roomiest = i
        chosen = takes_all if takes_all >= 0 else roomiest
        if chosen < 0:
            break
        out[chosen] = min(left, fit[rows[chosen]])
        left -= out[chosen]
        used += 1
    return left


@kernel("int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64, int64[::1])")
def spread_nodes(
    rows: Int64,
    fit: Int64,
    free: Int64,
    preference: Int64,
    siblings: Int64,
    request: int,
    members: int,
    max_nodes: int,
    out: Int64,
) -> int:
    """Spread members over the nodes of a leaf, one at a time.

    Each member goes to the node with the fewest pods of the workload, then the highest preference, then the most free,
    then the earlier node.

    Args:
        rows: int64[n], the leaf's rows in order.
        fit: int64[rows], members that a node holds.
        free: int64[rows], free amount of the scarce resource.
        preference: int64[rows], preference of the workload for a node.
        siblings: int64[rows], pods of the workload that a node runs already.
        request: request of one member for the scarce resource.
        members: number to place.
        max_nodes: the most nodes to use; 0 means no limit.
        out: int64[n], members on each of ``rows``; zero on entry.

    Returns:
        The number of members that could not be placed.
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
            best_row = rows[best]
            pods_here, pods_on_best = siblings[row] + out[i], siblings[best_row] + out[best]
            if pods_here != pods_on_best:
                if pods_here < pods_on_best:
                    best = i
            elif preference[row] != preference[best_row]:
                if preference[row] > preference[best_row]:
                    best = i
            elif free[row] - out[i] * request > free[best_row] - out[best] * request:
                best = i
        if best < 0:
            break
        if out[best] == 0:
            used += 1
        out[best] += 1
        left -= 1
    return left
