"""The node scores of baselines as published, in integer arithmetic.

Each takes the node table or a trial of it, a request and n rows, and returns int64[n]; higher is better. Sources:
kube-scheduler's plugins NodeResourcesFit and NodeResourcesBalancedAllocation; Weng et al., "Beware of Fragmentation",
USENIX ATC 2023; the simulator of its authors for best fit, the dot product (of Tetris, SIGCOMM 2014) and FGD.
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.small_pods import FGD
from topo_scheduler.scheduling.extensions.extension import Nodes, Request
from topo_scheduler.scheduling.extensions.gradient import scored
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import CPU, GPU, MEMORY

BEST_SCORE: Final = 100
"""The best score of one plugin of kube-scheduler; the worst is 0."""
_MIB: Final = 1 << 20
_FRACTION_BITS: Final = 20
"""Fractional bits of products of shares."""
_DEFAULT_CPU_MILLI: Final = 100
_DEFAULT_MEMORY_MIB: Final = 200
"""Milli-CPU and MiB that kube-scheduler's scores assume for a pod without requests."""


NodeScore = Callable[[Nodes, Request, Int64], Int64]
"""Returns int64[n] for n rows; of the nodes it reads no more than `placing` offers of a trial."""


def least_allocated(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """kube-scheduler's default: LeastAllocated of CPU and memory, and BalancedAllocation, with equal weights."""
    used, total = _used_after(nodes, request, rows)
    free_shares = np.maximum(total - used, 0) * BEST_SCORE // np.maximum(total, 1)
    score: Int64 = free_shares.sum(axis=1) // 2 + _balanced(used, total)
    return score


def most_allocated(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """kube-scheduler's NodeResourcesFit with the strategy MostAllocated over CPU, memory and GPUs, of equal weights.

    A resource that a node does not have does not count on it.
    """
    used, total = _used_after(nodes, request, rows)
    capacity = WHOLE_GPU * nodes.allocatable[rows, GPU]
    gpus_used = capacity - _free_gpus(nodes, rows) + _asked_gpus(request)
    used, total = np.column_stack((used, gpus_used)), np.column_stack((total, capacity))
    shares = np.minimum(used, total) * BEST_SCORE // np.maximum(total, 1)
    score: Int64 = shares.sum(axis=1) // np.maximum((total > 0).sum(axis=1), 1)
    return score


def best_fit(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Prefer the least CPU and GPUs left free, each as a share of the largest node's."""
    largest_cpu, largest_gpu = _largest(nodes)
    cpu = nodes.allocatable[rows, CPU] - nodes.requested[rows, CPU] - request.cls.amount(CPU)
    gpu = _free_gpus(nodes, rows) - _asked_gpus(request)
    scale = 2 * largest_cpu * largest_gpu
    score: Int64 = (BEST_SCORE * scale - BEST_SCORE * (cpu * largest_gpu + gpu * largest_cpu)) // scale
    return score


def dot_product(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Prefer the least dot product of free and requested CPU and GPUs, as shares of the largest node's."""
    largest_cpu, largest_gpu = _largest(nodes)
    cpu = nodes.allocatable[rows, CPU] - nodes.requested[rows, CPU]
    shares = (cpu * request.cls.amount(CPU) << _FRACTION_BITS) // largest_cpu**2
    shares += (_free_gpus(nodes, rows) * _asked_gpus(request) << _FRACTION_BITS) // largest_gpu**2
    score: Int64 = ((BEST_SCORE << _FRACTION_BITS + 1) - BEST_SCORE * shares) >> _FRACTION_BITS + 1
    return score


def gradient(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """FGD: int(100 * sigmoid(decrease of stranded GPUs for typical pods))."""
    return gradient_and_gpu(nodes, request, rows)[:, 0]


def gradient_and_gpu(nodes: Nodes, request: Request, rows: Int64) -> Int64:
    """Return the FGD score, and the GPU index that a share would take (int64[n, 2])."""
    assert request.typical is not None
    return scored(FGD, nodes, request.cls, request.typical, rows)


def _used_after(nodes: Nodes, request: Request, rows: Int64) -> tuple[Int64, Int64]:
    """Return requested milli-CPU and MiB of each row including the pod, and the allocatable ones (int64[n, 2] each)."""
    scale = np.array((1, _MIB), np.int64)
    cpu = request.cls.amount(CPU) or _DEFAULT_CPU_MILLI
    memory = request.cls.amount(MEMORY) // _MIB or _DEFAULT_MEMORY_MIB
    requested = np.array((cpu, memory), np.int64)
    columns = (CPU, MEMORY)
    return nodes.requested[rows][:, columns] // scale + requested, nodes.allocatable[rows][:, columns] // scale


def _balanced(used: Int64, total: Int64) -> Int64:
    """Return 100 minus the standard deviation of the requested CPU and memory shares, in hundredths."""
    used, product = np.minimum(used, total), np.maximum(total[:, 0] * total[:, 1], 1)
    difference = np.abs(used[:, 0] * total[:, 1] - used[:, 1] * total[:, 0])
    score: Int64 = (BEST_SCORE * product - BEST_SCORE // 2 * difference) // product
    return score


def _free_gpus(nodes: Nodes, rows: Int64) -> Int64:
    """Return the free thousandths of GPUs on each row (int64[n])."""
    device_free = nodes.gpu_free[rows]
    whole = WHOLE_GPU * (nodes.allocatable[rows, GPU] - nodes.requested[rows, GPU])
    free: Int64 = whole + np.where(device_free < WHOLE_GPU, device_free, 0).sum(axis=1)
    return free


def _asked_gpus(request: Request) -> int:
    return WHOLE_GPU * request.cls.gpus + request.cls.share


def _largest(nodes: Nodes) -> tuple[int, int]:
    """Return milli-CPU and GPU-thousandths of the largest node; at least 1 each."""
    return max(1, int(nodes.allocatable[:, CPU].max())), max(1, WHOLE_GPU * int(nodes.allocatable[:, GPU].max()))
