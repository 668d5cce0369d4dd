"""Tables over all sets of the GPUs of a node. A set is a number: bit i is GPU i.

Ring bandwidth of a set: the highest bandwidth at which a ring through all its GPUs can run, which is that of its
slowest pair. It bounds what collective operations such as all-reduce reach.

Source: the dynamic programme over sets of Held and Karp (1962), with the minimum in place of the sum.
"""

# Numba types these functions; to mypy an int and a np.int64 are strangers.
# mypy: disable-error-code="assignment,call-overload,return-value"

import numpy as np
import numpy.typing as npt

from topo_scheduler.kernels.jit import kernel

Int64 = npt.NDArray[np.int64]


@kernel("void(int64[:,::1], int64[::1])")
def ring_bandwidths(pairs: Int64, rings: Int64) -> None:
    """Compute the ring bandwidth of every set. A pair has its own bandwidth, and a single GPU 0.

    Args:
        pairs: int64[n, n], bandwidth between each pair of GPUs in any unit; symmetric and not negative.
        rings: int64[2**n]; written, in the same unit.
    """
    n = pairs.shape[0]
    count = np.int64(1) << n
    # paths[s, j]: the best path from the lowest GPU of s over all of s to j.
    paths = np.full((count, n), -1, np.int64)
    largest = np.int64(np.iinfo(np.int64).max)
    rings[:] = 0
    for s in range(1, count):
        first = np.int64(0)
        while not (s >> first) & 1:
            first += 1
        if s == np.int64(1) << first:
            paths[s, first] = largest
            continue
        best = np.int64(0)
        for j in range(first + 1, n):
            if not (s >> j) & 1:
                continue
            rest = s ^ (np.int64(1) << j)
            longest = np.int64(-1)
            for i in range(first, n):
                if (rest >> i) & 1 and paths[rest, i] >= 0:
                    through = min(paths[rest, i], pairs[i, j])
                    longest = max(longest, through)
            paths[s, j] = longest
            if longest >= 0:
                best = max(best, min(longest, pairs[j, first]))
        rings[s] = best


@kernel("void(int64[::1], int64[::1], int64, int64[:,::1])")
def best_divisions(rings: Int64, weights: Int64, n: int, divisions: Int64) -> None:
    """Compute for every set of free GPUs and every size how much bandwidth it offers to several sets of that size.

    It is the highest sum of ring bandwidths of disjoint subsets of the size. GPUs may be left over.

    Args:
        rings: int64[2**n], as `ring_bandwidths` computes them.
        weights: int64[n + 1]. Sizes of weight 0 are left out.
        n: number of GPUs.
        divisions: int64[2**n, n + 1]; written, in the unit of ``rings``. 0 for sizes that are left out, and where the
            set has fewer GPUs than the size.
    """
    count = np.int64(1) << n
    sizes = np.zeros(count, np.int8)
    for s in range(1, count):
        sizes[s] = sizes[s >> 1] + (s & 1)
    searched = np.zeros(n + 1, np.bool_)
    divisions[0, :] = 0
    for free in range(1, count):
        # The lowest GPU is left over, or in one of the subsets.
        lowest = np.int64(free) & -np.int64(free)
        rest = free ^ lowest
        gpus = np.int64(sizes[free])
        divisions[free, :] = divisions[rest, :]
        searched[:] = False
        search = False
        for size in range(1, gpus + 1):
            if not weights[size]:
                continue
            if size == gpus:
                divisions[free, size] = rings[free]
            elif size == 1:
                divisions[free, size] += rings[lowest]
            elif gpus % size or size == 2:
                # A GPU is left over, any one; or the lowest has one of the others as its partner.
                others = rest
                while others:
                    gpu = others & -others
                    others ^= gpu
                    total = divisions[free ^ gpu, size]
                    if size == 2:
                        total = max(total, rings[lowest | gpu] + divisions[rest ^ gpu, size])
                    divisions[free, size] = max(divisions[free, size], total)
            else:
                searched[size] = search = True
        if not search:
            continue
        others = rest
        while others:
            chosen = others | lowest
            size = np.int64(sizes[chosen])
            if searched[size]:
                total = rings[chosen] + divisions[free ^ chosen, size]
                divisions[free, size] = max(divisions[free, size], total)
            others = (others - 1) & rest


@kernel("void(int64[::1], int64[::1], int64, int64[::1])")
def best_choices(own: Int64, left: Int64, free: int, choices: Int64) -> None:
    """Compute for one set of free GPUs and every size the subset with the highest rank.

    Args:
        own: int64[2**n], rank of a set as the choice. No two sets of one size may have the same rank.
        left: int64[2**n], rank of a set as what is left free. The sum of the two is compared, so the one that matters
            less must be smaller than any difference of the other.
        free: the free GPUs.
        choices: int64[n + 1]; written: the subset as bits, or -1 where fewer GPUs are free than the size.
    """
    ranks = np.full(choices.shape[0], -1, np.int64)
    choices[:] = -1
    # Every subset of the free set, the empty one last.
    s = free
    while True:
        rank = own[s] + left[free ^ s]
        size = 0
        members = s
        while members:
            members &= members - 1
            size += 1
        if rank > ranks[size]:
            ranks[size] = rank
            choices[size] = s
        if s == 0:
            break
        s = (s - 1) & free
