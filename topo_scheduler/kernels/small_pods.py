"""Single pods: the score of each node, the GPU that a share takes there, and the best row by score and other criteria.

There are two scores. FGD is the fragmentation gradient as published: Weng et al., "Beware of Fragmentation: Scheduling
GPU-Sharing Workloads with Fragmentation Gradient Descent", USENIX ATC 2023. Our own score is derived from it; for the
differences see docs/explanation/bin-packing.md. The worth of the rest of a GPU comes from the prices of the cutting
stock problem: Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research,
1961.

All in integers: popularity in millionths, GPUs in thousandths. The quantised score and the order among equals are part
of the algorithm, so they are the same on every machine.
"""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


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


@kernel("int64(int64, int64, int64[::1], int64, boolean, int64, int64[:,::1], int64[::1], boolean[:,::1], boolean)")
def unusable(
    cpu: int,
    free_gpus: int,
    parts: Int64,
    number: int,
    sharing: bool,
    model: int,
    typical: Int64,
    weight: Int64,
    access: Bool,
    published: bool,
) -> int:
    """Return the GPU-thousandths of one node that typical pods can't use, weighted.

    A typical pod without GPUs can use no free GPU. The same holds for a pod that can't run on the node because of its
    CPU, GPU model or number of GPUs. Any other pod can't use GPUs with less free than it requests of one GPU.

    For our own score, CPU limits shares as well. As many shares of a kind as the GPUs hold need three quarters of their
    CPU; with less CPU they use only a part.

    Args:
        cpu: free milli-CPU.
        free_gpus: number of entirely free GPUs.
        parts: int64[d], free thousandths of GPUs that are in use by shares.
        number: number of valid entries in ``parts``.
        sharing: whether shares may be placed on the node.
        model: its GPU model, -1 if unknown.
        typical: int64[t, 4], each typical pod's milli-CPU, whole GPUs, thousandths of one GPU, and popularity.
        weight: int64[t], weight of each typical pod.
        access: bool[t, models + 1], whether each pod can run on a model; the first column is for unknown models.
        published: whether to compute it for FGD, as published.
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
                if not published and 4 * cpu < 3 * need * copies:
                    used = used * 4 * cpu // (3 * need * copies)
            elif gpus > 0 and free_gpus >= gpus:
                used = 1000 * free_gpus
        total += weight[t] * (idle - used)
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
    " int64, int64[:,::1], boolean[:,::1], int64[::1], int64[::1], boolean, int64[::1], int64[:,::1])"
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
    published: bool,
    thresholds: Int64,
    out: Int64,
) -> None:
    """Write the score of a pod on each row, and the GPU that a share takes there.

    Typical pods weigh their popularity; for our own score, divided by the number of their GPUs if they have several.
    The score is `quantised` of the decrease of unusable resources, minus eight times the misfit. Of several GPUs with
    equal scores a share takes the GPU with least free, then the lowest; with FGD, the lowest. On a row without room the
    score is 0 and the GPU -1. The function checks no other condition of the row.

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
        published: whether to compute FGD, for which ``worth`` and ``price`` are 0.
        thresholds: as for `quantised`.
        out: int64[n, 2], score and GPU.
    """
    weight = typical[:, 3].copy()
    if not published:
        for t in range(typical.shape[0]):
            weight[t] //= max(np.int64(1), typical[t, 1])
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
        before = unusable(cpu, free_gpus, parts, number, shares, kind, typical, weight, access, published)
        if request_share == 0:
            after = unusable(
                cpu_after, free_gpus - request_gpus, parts, number, shares, kind, typical, weight, access, published
            )
            out[i, 0] = quantised(before - after, thresholds)
            continue
        best, best_tie = np.int64(-1), np.int64(0)
        for p in range(number + 1):
            free_before = parts[p] if p < number else np.int64(1000)
            if free_before < request_share or (p == number and (untouched < 0 or free_gpus == 0)):
                continue
            parts[p] = free_before - request_share
            after = unusable(
                cpu_after,
                free_gpus - (p == number),
                parts,
                max(number, p + 1),
                shares,
                kind,
                typical,
                weight,
                access,
                published,
            )
            parts[p] = free_before
            worth_lost = misfit(request_share, int(free_before), worth, price)
            score = quantised(before - after - 8000 * worth_lost, thresholds)
            gpu = index[p] if p < number else np.int64(untouched)
            tie = gpu if published else free_before
            if score > best or (score == best and tie < best_tie):
                best, best_tie = score, tie
                out[i, 0], out[i, 1] = score, gpu


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
        gpus = 1000 * max(np.int64(0), allocatable[row, gpu_column] - requested[row, gpu_column])
        for d in range(free.shape[1]):
            if free[row, d] < 1000:
                gpus += free[row, d]
        cpu = min(max(np.int64(0), allocatable[row, cpu_column] - requested[row, cpu_column]), np.int64(2**32 - 1))
        out[row] = gpus * np.int64(2**32) + cpu
