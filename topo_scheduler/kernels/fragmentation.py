"""The fragmentation gradient: the amount of free GPUs that a pod makes unusable for typical pods.

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
    cpu: int, free_gpus: int, parts: Int64, number: int, sharing: bool, model: int, typical: Int64, access: Bool
) -> int:
    """Return the GPU-thousandths of one node that typical pods can't use, weighted by popularity.

    A typical pod without GPUs can use no free GPU. The same holds for a pod that can't run on the node because of its
    CPU, GPU model or number of GPUs. Any other pod can't use GPUs with less free than it requests of one GPU.

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
        gpus, share = typical[t, 1], typical[t, 2]
        unusable = idle
        if cpu >= typical[t, 0] and access[t, model + 1]:
            if share > 0 and sharing:
                unusable = np.int64(0)
                for i in range(number):
                    if parts[i] < share:
                        unusable += parts[i]
            elif gpus > 0 and free_gpus >= gpus:
                unusable = idle - 1000 * free_gpus
        total += typical[t, 3] * unusable
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
    request_cpu: int,
    request_gpus: int,
    request_share: int,
    typical: Int64,
    access: Bool,
    thresholds: Int64,
    out: Int64,
) -> None:
    """Write the score of a pod on each row, and the GPU that a share takes there.

    Of several GPUs with equal scores a share takes the lowest. On a row without room the score is 0 and the GPU -1. The
    function checks no other condition of the row.

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
        typical: as for `stranded`.
        access: as for `stranded`.
        thresholds: as for `quantised`.
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
        node = (sharing[row], model[row])
        before = stranded(cpu, free_gpus, parts, number, node[0], node[1], typical, access)
        if request_share == 0:
            after = stranded(
                cpu - request_cpu, free_gpus - request_gpus, parts, number, node[0], node[1], typical, access
            )
            out[i, 0] = quantised(before - after, thresholds)
            continue
        best, best_gpu = np.int64(-1), np.int64(0)
        for p in range(number + 1):
            free_before = parts[p] if p < number else np.int64(1000)
            if free_before < request_share or (p == number and (untouched < 0 or free_gpus == 0)):
                continue
            parts[p] = free_before - request_share
            after = stranded(
                cpu - request_cpu,
                free_gpus - (p == number),
                parts,
                max(number, p + 1),
                node[0],
                node[1],
                typical,
                access,
            )
            parts[p] = free_before
            score = quantised(before - after, thresholds)
            gpu = index[p] if p < number else np.int64(untouched)
            if score > best or (score == best and gpu < best_gpu):
                best, best_gpu = score, gpu
                out[i, 0], out[i, 1] = score, gpu
