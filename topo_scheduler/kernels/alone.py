"""Single pods: quantised scores, and the best row by score and tie-breaking criteria."""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("int64(int64, int64[::1])")
def quantised(gain: int, thresholds: Int64) -> int:
    """Return the number of thresholds that ``gain`` reaches: int(100 * sigmoid(gain / 10**9)) for those of FGD.

    Args:
        gain: reduction of stranded resources.
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
    first_preferred: int,
    end_preferred: int,
    load: Int64,
    score: Int64,
    free: Int64,
    leaf_free: Int64,
) -> int:
    """Return the best row for a single pod, -1 if no row has room.

    The first difference decides: higher liking; labelled leaf; preferred domain; lower load; higher score; higher
    preference; less free on the row, then in its leaf; earlier in order.

    Args:
        order: int64[n], rows in order of the fabric.
        leaf_of_row: int64[rows].
        fit: int64[rows], 0 for rows without room.
        liking: int64[rows], score by the preferences of the pod.
        preference: int64[rows], like ``liking``, with further criteria.
        aligned: int64[leaves], 1 for leaves with the labels of all levels.
        first_preferred: first leaf of the preferred domain.
        end_preferred: the leaf after its last leaf.
        load: int64[leaves], or empty if load does not matter.
        score: int64[rows].
        free: int64[rows], free amount now.
        leaf_free: int64[leaves], free amount of each leaf now, or empty if it does not matter.
    """
    best = np.int64(-1)
    best_liking, best_aligned, best_inside, best_load = np.int64(0), np.int64(0), False, np.int64(0)
    best_score, best_preference, best_free = np.int64(0), np.int64(0), np.int64(0)
    for i in range(order.shape[0]):
        row = order[i]
        if fit[row] == 0 or (best >= 0 and liking[row] < best_liking):
            continue
        leaf = leaf_of_row[row]
        inside = first_preferred <= leaf < end_preferred
        leaf_load = load[leaf] if load.shape[0] > 0 else np.int64(0)
        better = True
        if best >= 0 and liking[row] == best_liking:
            if aligned[leaf] != best_aligned:
                better = aligned[leaf] > best_aligned
            elif inside != best_inside:
                better = inside
            elif leaf_load != best_load:
                better = leaf_load < best_load
            elif score[row] != best_score:
                better = score[row] > best_score
            elif preference[row] != best_preference:
                better = preference[row] > best_preference
            elif free[row] != best_free:
                better = free[row] < best_free
            else:
                better = leaf_free.shape[0] > 0 and leaf_free[leaf] < leaf_free[leaf_of_row[best]]
        if better:
            best = row
            best_liking, best_aligned, best_inside, best_load = liking[row], aligned[leaf], inside, leaf_load
            best_score, best_preference, best_free = score[row], preference[row], free[row]
    return best


@kernel("void(int64[:,::1], int64[:,::1], int64, int64, int64[:,::1], int64[::1], int64[::1])")
def left_free(
    allocatable: Int64, requested: Int64, cpu_column: int, gpu_column: int, free: Int64, rows: Int64, out: Int64
) -> None:
    """Write the free resources of rows as one number each: GPU-thousandths, then milli-CPU.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources].
        cpu_column: column of milli-CPU.
        gpu_column: column of whole GPUs.
        free: int64[rows, d], free thousandths of each GPU on nodes with GPU indexes, 0 elsewhere.
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
