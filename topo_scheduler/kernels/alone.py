"""Pods that are placed alone: scores in steps, and the best row by score and by what decides between equals."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64, int64[::1])")
def quantised(gain: int, thresholds: Int64) -> int:
    """Return the number of thresholds that are reached: int(100 * sigmoid(gain / 10**9)) for those of FGD.

    Args:
        gain: by how much less is stranded.
        thresholds: int64[n], ascending.
    """
    low, high = 0, thresholds.shape[0]
    while low < high:
        middle = (low + high) // 2
        if thresholds[middle] <= gain:
            low = middle + 1
        else:
            high = middle
    return np.int64(low)


@kernel(
    "int64(int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64[::1], int64, int64, int64[::1],"
    " int64[::1], int64[::1], int64[::1])"
)
def choose_row(
    order: Int64,
    leaf_of_row: Int64,
    fit: Int64,
    liking: Int64,
    preference: Int64,
    aligned: Int64,
    low: int,
    high: int,
    load: Int64,
    score: Int64,
    left: Int64,
    around: Int64,
) -> int:
    """Return the best row for a pod that is placed alone, -1 where none has room.

    Compared by the first difference: what it likes; labelled leaves; the preferred domain; the lower load; the higher
    score; what it prefers otherwise; the least that is left free on the row, then in its leaf; the first in order.

    Args:
        order: int64[n], rows in order of the fabric.
        leaf_of_row: int64[rows].
        fit: int64[rows], 0 where there is no room.
        liking: int64[rows].
        preference: int64[rows].
        aligned: int64[leaves], 1 where every level is labelled.
        low: first leaf of the preferred domain.
        high: the leaf after its last.
        load: int64[leaves], or empty where it does not matter.
        score: int64[rows].
        left: int64[rows], what is free now.
        around: int64[leaves], what is free now in each leaf, or empty where it does not matter.
    """
    best = np.int64(-1)
    likes, labelled, near, loaded = np.int64(0), np.int64(0), False, np.int64(0)
    scored, prefers, least = np.int64(0), np.int64(0), np.int64(0)
    for i in range(order.shape[0]):
        row = order[i]
        if fit[row] == 0 or (best >= 0 and liking[row] < likes):
            continue
        leaf = leaf_of_row[row]
        inside = low <= leaf < high
        here = load[leaf] if load.shape[0] > 0 else np.int64(0)
        better = True
        if best >= 0 and liking[row] == likes:
            if aligned[leaf] != labelled:
                better = aligned[leaf] > labelled
            elif inside != near:
                better = inside
            elif here != loaded:
                better = here < loaded
            elif score[row] != scored:
                better = score[row] > scored
            elif preference[row] != prefers:
                better = preference[row] > prefers
            elif left[row] != least:
                better = left[row] < least
            else:
                better = around.shape[0] > 0 and around[leaf] < around[leaf_of_row[best]]
        if better:
            best = row
            likes, labelled, near, loaded = liking[row], aligned[leaf], inside, here
            scored, prefers, least = score[row], preference[row], left[row]
    return best


@kernel("void(int64[:,::1], int64[:,::1], int64, int64, int64[:,::1], int64[::1], int64[::1])")
def left_free(
    allocatable: Int64, requested: Int64, cpu_column: int, gpu_column: int, free: Int64, rows: Int64, out: Int64
) -> None:
    """Write what is free on some rows as one number: GPU-thousandths, and among equals milli-CPU.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources].
        cpu_column: column of milli-CPU.
        gpu_column: column of whole GPUs.
        free: int64[rows, d], free thousandths of each GPU where they are told apart, 0 elsewhere.
        rows: int64[n], rows to compute.
        out: int64[rows], written at ``rows``.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        gpus = 1000 * (allocatable[row, gpu_column] - requested[row, gpu_column])
        for d in range(free.shape[1]):
            if free[row, d] < 1000:
                gpus += free[row, d]
        cpu = min(max(np.int64(0), allocatable[row, cpu_column] - requested[row, cpu_column]), np.int64(2**32 - 1))
        out[row] = gpus * np.int64(2**32) + cpu
