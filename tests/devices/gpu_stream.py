"""A stream of pods on the GPUs of one node, and how much of the empty node's bandwidth they get."""

import heapq
import random
from dataclasses import dataclass
from typing import Final

from topo_scheduler.scheduling.devices.gpu_tables import GpuTables
from topo_scheduler.simulation.devices.gpu_choosers import Choose

SIZES: Final = (1, 2, 4)
"""GPUs of a pod, each as likely as the others."""
MEAN_SECONDS: Final = 100.0


@dataclass(frozen=True, slots=True)
class BandwidthKept:
    """What the pods of a stream got.

    Attributes:
        share: mean over pods of several GPUs: ring bandwidth of their GPUs over the best on the empty node.
        ideal: share of these pods that got the best.
        placed: pods of several GPUs that ran.
        blocked: share of all pods for which too few GPUs were free.
    """

    share: float
    ideal: float
    placed: int
    blocked: float


def bandwidth_kept(
    tables: GpuTables, choose: Choose, seed: int, *, pods: int, load: float, beside: bool = False
) -> BandwidthKept:
    """Run a stream. Arrivals are Poisson, durations exponential; a pod without room is not run.

    A pod with a single GPU has no ring: it decides only what is left for others.

    Args:
        tables: of the node.
        choose: chooses the GPUs of a pod.
        seed: of arrivals, sizes and durations; equal for all choosers.
        pods: number of arrivals.
        load: GPUs that pods ask for at once on average, over the GPUs of the node.
        beside: whether of choices that are alike the one counts that leaves the most once a running pod ends.
    """
    rng = random.Random(seed)
    sizes = [size for size in SIZES if size <= tables.size]
    gap_seconds = MEAN_SECONDS * sum(sizes) / len(sizes) / (load * tables.size)
    now, free, blocked = 0.0, tables.all_gpus, 0
    running: list[tuple[float, int]] = []
    shares: list[float] = []
    for _ in range(pods):
        now += rng.expovariate(1 / gap_seconds)
        size, seconds = rng.choice(sizes), rng.expovariate(1 / MEAN_SECONDS)
        while running and running[0][0] <= now:
            free |= heapq.heappop(running)[1]
        chosen = choose(free, size)
        if chosen > 0 and beside:
            chosen = tables.choose_beside(free, chosen, [gpus for _, gpus in running])
        if chosen < 0:
            blocked += 1
            continue
        free &= ~chosen
        heapq.heappush(running, (now + seconds, chosen))
        if size > 1:
            shares.append(int(tables.rings[chosen]) / tables.best_ring(tables.all_gpus, size))
    ideal = sum(share == 1.0 for share in shares) / len(shares)
    return BandwidthKept(sum(shares) / len(shares), ideal, len(shares), blocked / pods)


def usual_sizes(size: int) -> list[int]:
    """Return how often pods of each number of GPUs come, for `GpuTables`: all of `SIZES` equally often."""
    return [int(number in SIZES) for number in range(size + 1)]
