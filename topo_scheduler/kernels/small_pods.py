"""The score of single pods: the GPU resources that become unusable for typical pods, and how well a share fits.

The score is derived from the fragmentation gradient (see `fragmentation`) and uses integers only as well. For the
differences see docs/explanation/bin-packing.md. The worth of the rest of a GPU comes from the prices of the cutting
stock problem: Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research,
1961.
"""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.alone import quantised
from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@kernel("int64(int64, int64, int64[::1], int64, boolean, int64, int64[:,::1], boolean[:,::1])")
def unusable(
    cpu: int, free_gpus: int, parts: Int64, number: int, sharing: bool, model: int, typical: Int64, access: Bool
) -> int:
    """Return the GPU-thousandths of one node that typical pods can't use, weighted by popularity per requested GPU.

    Like `fragmentation.stranded`, with two differences. First, CPU limits shares. As many shares of a kind as the GPUs
    hold need three quarters of their CPU; with less CPU they use only a part. Second, a pod with several whole GPUs
    weighs its popularity divided by their number.

    Args:
        cpu: free milli-CPU.
        free_gpus: number of entirely free GPUs.
        parts: int64[d], free thousandths of GPUs that are in use by shares.
        number: number of valid entries in ``parts``.
        sharing: whether shares may be placed on the node.
        model: its GPU model, -1 if unknown.
        typical: int64[t, 4], each typical pod's milli-CPU, whole GPUs, thousandths of one GPU, and popularity.
        access: bool[t, models + 1], whether each pod can run on a model; the first column is for unknown models.
    """
    idle = 1000 * free_gpus
    for i in range(number):
        idle += parts[i]
    if idle == 0:
        return np.int64(0)
    total = np.int64(0)
    for t in range(typical.shape[0]):
        need, gpus, share = typical[t, 0], typical[t, 1], typical[t, 2]
        used = np.int64(0)
        if cpu >= need and access[t, model + 1]:
            if share > 0 and sharing:
                used, copies = 1000 * free_gpus, free_gpus * (1000 // share)
                for i in range(number):
                    if parts[i] >= share:
                        used += parts[i]
                        copies += parts[i] // share
                if 4 * cpu < 3 * need * copies:
                    used = used * 4 * cpu // (3 * need * copies)
            elif gpus > 0 and free_gpus >= gpus:
                used = 1000 * free_gpus
        total += typical[t, 3] // max(np.int64(1), gpus) * (idle - used)
    return total


@kernel("int64(int64, int64, int64[::1], int64[::1])")
def misfit(share: int, free_before: int, worth: Int64, price: Int64) -> int:
    """Return the worth that a GPU loses beyond the price of a share, in millionths of a GPU; 0 for a good fit.

    Args:
        share: thousandths that the share requests, at most ``free_before``.
        free_before: free thousandths of the GPU.
        worth: int64[1001], worth of one GPU by its free thousandths.
        price: int64[1001], price of a share by its thousandths.
    """
    lost: int = worth[free_before] - worth[free_before - share] - price[share]
    return max(np.int64(0), lost)


@kernel(
    "void(int64[:,::1], int64[:,::1], int64, int64, int64[:,::1], boolean[::1], int64[::1], int64[::1], int64, int64,"
    " int64, int64[:,::1], boolean[:,::1], int64[::1], int64[::1], int64[::1], int64[:,::1])"
)
def small_pod_scores(
    allocatable: Int64,
    requested: Int64,
    cpu_column: int,
    gpu_column: int,
    free: Int64,
    sharing: Bool,
    model: Int64,
    rows: Int64,
    request_cpu: int,
    request_gpus: int,
    request_share: int,
    typical: Int64,
    access: Bool,
    worth: Int64,
    price: Int64,
    thresholds: Int64,
    out: Int64,
) -> None:
    """Write the score of a pod on each row, and the GPU that a share takes there.

    The score is `alone.quantised` of the decrease of unusable resources, minus eight times the misfit. Of several GPUs
    with equal scores a share takes the GPU with least free, then the lowest. On a row without room the score is 0 and
    the GPU -1. The function checks no other condition of the row.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources]; a GPU counts as used if any part of it is used.
        cpu_column: column of milli-CPU.
        gpu_column: column of whole GPUs.
        free: int64[rows, d], free thousandths of each GPU on nodes with GPU indexes, 0 elsewhere.
        sharing: bool[rows], whether shares may be placed on a row.
        model: int64[rows], GPU model, -1 if unknown.
        rows: int64[n], rows to compute.
        request_cpu: milli-CPU that the pod requests.
        request_gpus: whole GPUs that the pod requests.
        request_share: thousandths of one GPU, 0 for none.
        typical: as for `unusable`.
        access: as for `unusable`.
        worth: as for `misfit`.
        price: as for `misfit`.
        thresholds: as for `alone.quantised`.
        out: int64[n, 2], score and GPU.
    """
    parts, index = np.empty(free.shape[1] + 1, np.int64), np.empty(free.shape[1] + 1, np.int64)
    for i in range(rows.shape[0]):
        row = rows[i]
        out[i, 0], out[i, 1] = 0, -1
        cpu = allocatable[row, cpu_column] - requested[row, cpu_column]
        free_gpus = max(np.int64(0), allocatable[row, gpu_column] - requested[row, gpu_column])
        number, untouched = 0, -1
        for d in range(free.shape[1]):
            if free[row, d] == 1000 and untouched < 0:
                untouched = d
            if 0 < free[row, d] < 1000:
                parts[number], index[number] = free[row, d], d
                number += 1
        if cpu < request_cpu or free_gpus < request_gpus:
            continue
        cpu_after, shares, kind = cpu - request_cpu, sharing[row], model[row]
        before = unusable(cpu, free_gpus, parts, number, shares, kind, typical, access)
        if request_share == 0:
            after = unusable(cpu_after, free_gpus - request_gpus, parts, number, shares, kind, typical, access)
            out[i, 0] = quantised(before - after, thresholds)
            continue
        best, best_free = np.int64(-1), np.int64(0)
        for p in range(number + 1):
            free_before = parts[p] if p < number else np.int64(1000)
            if free_before < request_share or (p == number and (untouched < 0 or free_gpus == 0)):
                continue
            parts[p] = free_before - request_share
            after = unusable(
                cpu_after, free_gpus - (p == number), parts, max(number, p + 1), shares, kind, typical, access
            )
            parts[p] = free_before
            worth_lost = misfit(request_share, int(free_before), worth, price)
            score = quantised(before - after - 8000 * worth_lost, thresholds)
            if score > best or (score == best and free_before < best_free):
                best, best_free = score, free_before
                out[i, 0], out[i, 1] = score, index[p] if p < number else untouched


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def best_fill(sizes: Int64, values: Int64, worth: Int64, last: Int64) -> None:
    """Write, for every room, the highest worth of items that fit it together; each item may occur any number of times.

    Args:
        sizes: int64[n], at least 1.
        values: int64[n], at least 0.
        worth: int64[room + 1], written.
        last: int64[room + 1], written: an item of the best filling, the first of equal ones; -1 if a room smaller by 1
            has the same worth.
    """
    worth[0], last[0] = 0, -1
    for room in range(1, worth.shape[0]):
        worth[room], last[room] = worth[room - 1], -1
        for i in range(sizes.shape[0]):
            if sizes[i] <= room and worth[room - sizes[i]] + values[i] > worth[room]:
                worth[room], last[room] = worth[room - sizes[i]] + values[i], i
