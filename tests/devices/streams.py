"""A stream of jobs on one node, and how much of the bandwidth of the empty node they get."""

import heapq
import random
from collections.abc import Callable, Sequence
from typing import Final

from topo_scheduler.scheduling.devices.gpu_tables import GpuTables

SIZES: Final = (1, 2, 4)
MEAN_SECONDS: Final = 100.0

Choose = Callable[[int, int], int]
"""Takes the free GPUs as bits and a size; returns the chosen ones, or -1."""


def share_of_ideal(tables: GpuTables, choose: Choose, seed: int, *, jobs: int, load: float) -> float:
    """Return the mean share of the best ring bandwidth on the empty node that jobs of several GPUs get.

    Jobs without room are not run, as in a cluster that puts them on another node.

    Args:
        tables: of the node.
        choose: chooses the GPUs of a job.
        seed: of the random arrivals.
        jobs: number of arrivals.
        load: GPUs that jobs want at once on average, as a share of the node.
    """
    rng = random.Random(seed)
    mean_size = sum(SIZES) / len(SIZES)
    gap_seconds = MEAN_SECONDS * mean_size / (load * tables.size)
    now, free = 0.0, tables.all_gpus
    running: list[tuple[float, int]] = []
    shares: list[float] = []
    for _ in range(jobs):
        now += rng.expovariate(1 / gap_seconds)
        size, seconds = rng.choice(SIZES), rng.expovariate(1 / MEAN_SECONDS)
        while running and running[0][0] <= now:
            free |= heapq.heappop(running)[1]
        chosen = choose(free, size)
        if chosen < 0:
            continue
        free &= ~chosen
        heapq.heappush(running, (now + seconds, chosen))
        if size > 1:
            shares.append(int(tables.rings[chosen]) / tables.best_ring(tables.all_gpus, size))
    return sum(shares) / len(shares)


def weights_of(sizes: Sequence[int], size: int) -> list[int]:
    """Return how often each number of GPUs comes, for `GpuTables`."""
    return [sum(other == number for other in sizes) for number in range(size + 1)]
