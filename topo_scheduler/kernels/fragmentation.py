"""The fragmentation gradient: how many GPUs a pod would leave that typical pods can't use.

Source: Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC 2023. All in integers: popularity in millionths, GPUs in thousandths. The quantised score and the order among
equals are part of the algorithm, so they are the same on every machine.
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
def stranded(
    cpu: int, whole: int, parts: Int64, number: int, sharing: bool, model: int, typical: Int64, access: Bool
) -> int:
    """Return the GPU-thousandths of one node that typical pods can't use, weighted by popularity.

    A typical pod without GPUs, or one that can't run on the node at all (its CPU, GPU model or number of GPUs), can use
    none of what is free; any other can't use the GPUs that have less free than it asks of one.

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
        gpus, share = typical[t, 1], typical[t, 2]
        lost = idle
        if cpu >= typical[t, 0] and access[t, model + 1]:
            if share > 0 and sharing:
                lost = np.int64(0)
                for i in range(number):
                    if parts[i] < share:
                        lost += parts[i]
            elif gpus > 0 and whole >= gpus:
                lost = idle - 1000 * whole
        total += typical[t, 3] * lost
    return total


@kernel(
    "void(int64[:,::1], int64[:,::1], int64, int64, int64[:,::1], boolean[::1], int64[::1], int64[::1], int64, int64,"
    " int64, int64[:,::1], boolean[:,::1], int64[::1], int64[:,::1])"
)
def fragmentation(
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
    thresholds: Int64,
    out: Int64,
) -> None:
    """Write the score of a pod on some rows, and which GPU a share takes there.

    Of several GPUs that score alike a share takes the lowest. Where it has no room the score is 0 and the GPU -1; what
    else keeps it from the row is not looked at.

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
        typical: as of `stranded`.
        access: as of `stranded`.
        thresholds: as of `quantised`.
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
        node = (sharing[row], model[row])
        before = stranded(cpu, whole, parts, number, node[0], node[1], typical, access)
        if ask_share == 0:
            after = stranded(cpu - ask_cpu, whole - ask_gpus, parts, number, node[0], node[1], typical, access)
            out[i, 0] = quantised(before - after, thresholds)
            continue
        best, lowest = np.int64(-1), np.int64(0)
        for p in range(number + 1):
            had = parts[p] if p < number else np.int64(1000)
            if had < ask_share or (p == number and (untouched < 0 or whole == 0)):
                continue
            parts[p] = had - ask_share
            after = stranded(
                cpu - ask_cpu, whole - (p == number), parts, max(number, p + 1), node[0], node[1], typical, access
            )
            parts[p] = had
            score = quantised(before - after, thresholds)
            at = index[p] if p < number else np.int64(untouched)
            if score > best or (score == best and at < lowest):
                best, lowest = score, at
                out[i, 0], out[i, 1] = score, at
