"""The score of pods that are placed alone: what they leave unusable for typical pods, and how well a share fits.

It grew out of the fragmentation gradient (see `fragmentation`), and all of it is in integers as well. What differs is
told in docs/explanation/bin-packing.md. The worth of what is left of a GPU comes from the prices of the cutting stock
problem: Gilmore and Gomory, "A Linear Programming Approach to the Cutting-Stock Problem", Operations Research, 1961.
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
    cpu: int, whole: int, parts: Int64, number: int, sharing: bool, model: int, typical: Int64, access: Bool
) -> int:
    """Return the GPU-thousandths of one node that typical pods can't use, weighted by popularity for each GPU asked.

    As `fragmentation.stranded`, with two differences. Shares use no more than the CPU is enough for: as many of a kind
    as the GPUs hold need three quarters of their CPU, and with less of it they use a part. A pod of several whole GPUs
    weighs its popularity divided by their number.

    Args:
        cpu: free milli-CPU.
        whole: GPUs of which everything is free.
        parts: int64[d], free thousandths of GPUs that are in use by shares.
        number: how many entries of ``parts`` count.
        sharing: whether shares may be placed on the node.
        model: its GPU model, -1 when it is not known.
        typical: int64[t, 4], each typical pod's milli-CPU, whole GPUs, thousandths of one GPU, and popularity.
        access: bool[t, models + 1], on which models each can run; the first column for unknown ones.
    """
    idle = 1000 * whole
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
                used, copies = 1000 * whole, whole * (1000 // share)
                for i in range(number):
                    if parts[i] >= share:
                        used += parts[i]
                        copies += parts[i] // share
                if 4 * cpu < 3 * need * copies:
                    used = used * 4 * cpu // (3 * need * copies)
            elif gpus > 0 and whole >= gpus:
                used = 1000 * whole
        total += typical[t, 3] // max(np.int64(1), gpus) * (idle - used)
    return total


@kernel("int64(int64, int64, int64[::1], int64[::1])")
def misfit(share: int, had: int, worth: Int64, price: Int64) -> int:
    """Return by how much a GPU loses more than a share is worth, in millionths of a GPU: 0 where it fits well.

    Args:
        share: thousandths that the share asks for, at most ``had``.
        had: thousandths that are free of the GPU.
        worth: int64[1001], what so many free thousandths of one GPU are worth.
        price: int64[1001], what a share of so many thousandths is worth.
    """
    lost: int = worth[had] - worth[had - share] - price[share]
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
    ask_cpu: int,
    ask_gpus: int,
    ask_share: int,
    typical: Int64,
    access: Bool,
    worth: Int64,
    price: Int64,
    thresholds: Int64,
    out: Int64,
) -> None:
    """Write the score of a pod on some rows, and which GPU a share takes there.

    The score is `alone.quantised` of how much less is unusable with it, less eight times the misfit. Of several
    GPUs that score alike a share takes the one with least free, then the lowest. Where it has no room the score is 0
    and the GPU -1; what else keeps it from the row is not looked at.

    Args:
        allocatable: int64[rows, resources].
        requested: int64[rows, resources]; GPUs of which any part is held count as held.
        cpu_column: column of milli-CPU.
        gpu_column: column of whole GPUs.
        free: int64[rows, d], free thousandths of each GPU where they are told apart, 0 elsewhere.
        sharing: bool[rows], where shares may be placed.
        model: int64[rows], GPU model, -1 when not known.
        rows: int64[n], rows to compute.
        ask_cpu: milli-CPU of the pod.
        ask_gpus: whole GPUs of the pod.
        ask_share: thousandths of one GPU, 0 where it asks for none.
        typical: as of `unusable`.
        access: as of `unusable`.
        worth: as of `misfit`.
        price: as of `misfit`.
        thresholds: as of `alone.quantised`.
        out: int64[n, 2], score and GPU.
    """
    parts, index = np.empty(free.shape[1] + 1, np.int64), np.empty(free.shape[1] + 1, np.int64)
    for i in range(rows.shape[0]):
        row = rows[i]
        out[i, 0], out[i, 1] = 0, -1
        cpu = allocatable[row, cpu_column] - requested[row, cpu_column]
        whole = max(np.int64(0), allocatable[row, gpu_column] - requested[row, gpu_column])
        number, untouched = 0, -1
        for d in range(free.shape[1]):
            if free[row, d] == 1000 and untouched < 0:
                untouched = d
            if 0 < free[row, d] < 1000:
                parts[number], index[number] = free[row, d], d
                number += 1
        if cpu < ask_cpu or whole < ask_gpus:
            continue
        left, shares, kind = cpu - ask_cpu, sharing[row], model[row]
        before = unusable(cpu, whole, parts, number, shares, kind, typical, access)
        if ask_share == 0:
            after = unusable(left, whole - ask_gpus, parts, number, shares, kind, typical, access)
            out[i, 0] = quantised(before - after, thresholds)
            continue
        best, least = np.int64(-1), np.int64(0)
        for p in range(number + 1):
            had = parts[p] if p < number else np.int64(1000)
            if had < ask_share or (p == number and (untouched < 0 or whole == 0)):
                continue
            parts[p] = had - ask_share
            after = unusable(left, whole - (p == number), parts, max(number, p + 1), shares, kind, typical, access)
            parts[p] = had
            lost = misfit(ask_share, int(had), worth, price)
            score = quantised(before - after - 8000 * lost, thresholds)
            if score > best or (score == best and had < least):
                best, least = score, had
                out[i, 0], out[i, 1] = score, index[p] if p < number else untouched


@kernel("void(int64[::1], int64[::1], int64[::1], int64[::1])")
def best_fill(sizes: Int64, values: Int64, worth: Int64, last: Int64) -> None:
    """Write the most that items are worth which fit a room together, each as often as it likes, for every room.

    Args:
        sizes: int64[n], at least 1.
        values: int64[n], at least 0.
        worth: int64[room + 1], written.
        last: int64[room + 1], written: an item of the best filling, -1 where one less of room does as well. Of equals
            the first item.
    """
    worth[0], last[0] = 0, -1
    for room in range(1, worth.shape[0]):
        worth[room], last[room] = worth[room - 1], -1
        for i in range(sizes.shape[0]):
            if sizes[i] <= room and worth[room - sizes[i]] + values[i] > worth[room]:
                worth[room], last[room] = worth[room - sizes[i]] + values[i], i
