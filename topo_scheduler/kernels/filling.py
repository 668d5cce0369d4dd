"""Packing of members of several classes on nodes."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@kernel("int64(int64[::1], int64[:,::1], int64[:,::1], int64[:,::1], boolean[:,::1], int64[::1], int64, int64[:,::1])")
def fill_nodes(
    rows: Int64,
    allocatable: Int64,
    used: Int64,
    requests: Int64,
    eligible: Bool,
    counts: Int64,
    max_nodes: int,
    out: Int64,
) -> int:
    """Place members of several classes on nodes, each class on the nodes that hold most of its members.

    The function handles classes in the given order (largest first). It fills each node before it opens the next. Nodes
    that already hold members of the gang come first, to use few nodes. It is a heuristic: it may miss a packing.

    Args:
        rows: int64[n], rows that may be used, in order.
        allocatable: int64[rows, resources].
        used: int64[rows, resources].
        requests: int64[classes, resources], request of one member.
        eligible: bool[classes, rows].
        counts: int64[classes], members of each class.
        max_nodes: the most nodes to use; 0 means no limit.
        out: int64[classes, n], members of each class on each of ``rows``; zero on entry.

    Returns:
        The number of members that could not be placed.
    """
    n = rows.shape[0]
    resources = requests.shape[1]
    free = np.empty((n, resources), np.int64)
    opened = np.zeros(n, np.bool_)
    number_opened = 0
    for i in range(n):
        for r in range(resources):
            free[i, r] = allocatable[rows[i], r] - used[rows[i], r]
    missing = np.int64(0)
    for c in range(counts.shape[0]):
        left = counts[c]
        while left > 0:
            best = -1
            best_fit = np.int64(0)
            for i in range(n):
                if not eligible[c, rows[i]] or (not opened[i] and max_nodes > 0 and number_opened >= max_nodes):
                    continue
                members = left
                for r in range(resources):
                    if requests[c, r] > 0:
                        members = min(members, max(np.int64(0), free[i, r]) // requests[c, r])
                if members == 0:
                    continue
                if best < 0 or (opened[i] and not opened[best]) or (opened[i] == opened[best] and members > best_fit):
                    best = i
                    best_fit = members
            if best < 0:
                break
            if not opened[best]:
                opened[best] = True
                number_opened += 1
            for r in range(resources):
                free[best, r] -= best_fit * requests[c, r]
            out[c, best] += best_fit
            left -= best_fit
        missing += left
    return missing
