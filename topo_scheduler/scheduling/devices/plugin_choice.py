"""Which GPUs the stock device plugins give to a pod: predictions, as nothing on such a node obeys a scheduler.

- NVIDIA's plugin for whole GPUs (*best effort*): of all partitions of the free GPUs into sets of the asked size, the
  best set of the best partition. A pair scores 100 for each NVLink, and 10 to 60 for its PCIe path. Links to a switch
  count for nothing. Of equal partitions and sets the first counts.
- AMD's plugin: the set with the lowest sum of weights over its pairs. The number of links does not count.

The plugin is asked for each container; a prediction is for the pod as a whole. For GPUs that several pods share,
nothing is predicted: NVIDIA's plugin takes those with the fewest users or with the most, and no label names the rule.
"""

from collections.abc import Sequence
from functools import lru_cache, partial
from heapq import merge
from itertools import chain, combinations
from math import comb
from typing import Final

import numpy as np
import numpy.typing as npt

from topo_scheduler.state.devices.hardware import NodeHardware, PciePath

NVLINK_SCORE: Final = 100
MAX_SCORED_LINKS: Final = 12
"""NVLinks of a pair that NVIDIA's plugin knows; more score nothing."""
_PATH_SCORES: Final = {
    PciePath.UNKNOWN: 10,
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOST_BRIDGE: 30,
    PciePath.SWITCHES: 40,
    PciePath.SWITCH: 50,
    PciePath.SELF: 60,
}
OTHER_GPU_WEIGHT: Final = 20
"""Of each pair of GPUs, for AMD's plugin; its link and its NUMA nodes add to it."""
XGMI_WEIGHT: Final = 10
PCIE_WEIGHT: Final = 40
SAME_NUMA_WEIGHT: Final = 10
OTHER_NUMA_WEIGHT: Final = 20
MAX_PARTITIONED_GPUS: Final = 10
"""Free GPUs of which all partitions are compared; of more, the best single set is taken."""
SETS_PER_OPERATION: Final = 64
_MAX_HARDWARE: Final = 256
_MAX_SETS: Final = 32
"""Lists of sets that are kept: of 16 GPUs 0.8 MB at most."""

Int64 = npt.NDArray[np.int64]


def members_of(chosen: int) -> tuple[int, ...]:
    """Return the indexes of a set of GPUs."""
    return tuple(index for index in range(chosen.bit_length()) if chosen >> index & 1)


def set_of(indexes: Sequence[int]) -> int:
    """Return a set of GPUs as bits, from their indexes."""
    return sum(1 << index for index in indexes)


# ---------------------------------------------------------------- NVIDIA


@lru_cache(maxsize=_MAX_HARDWARE)
def pair_scores(hardware: NodeHardware) -> tuple[tuple[int, ...], ...]:
    """Return the score of each pair of GPUs for NVIDIA's plugin. XGMI links count as NVLinks."""
    count = len(hardware.gpus)
    links = {(link.first, link.second): link.count for link in hardware.links}
    return tuple(
        tuple(
            NVLINK_SCORE * _scored(links.get((min(first, second), max(first, second)), 0))
            + _PATH_SCORES[hardware.path(first, second)]
            for second in range(count)
        )
        for first in range(count)
    )


def _scored(links: int) -> int:
    return links if links <= MAX_SCORED_LINKS else 0


def best_effort(hardware: NodeHardware, free: int, size: int) -> int:
    """Return the GPUs that NVIDIA's plugin gives to a pod; -1 if fewer are free.

    Args:
        hardware: GPUs and links of the node.
        free: free GPUs as bits.
        size: GPUs of the pod.
    """
    indexes = members_of(free)
    if not 0 < size <= len(indexes):
        return 0 if size == 0 else -1
    if size in (1, len(indexes)):
        return set_of(indexes[:size])
    scores = pair_scores(hardware)
    if len(indexes) > MAX_PARTITIONED_GPUS:
        return _best_single_set(scores, indexes, size)
    partition = _best_partition(scores, indexes, size)
    return set_of(max((chosen for chosen in partition if len(chosen) == size), key=lambda c: _score(scores, c)))


def _score(scores: Sequence[Sequence[int]], chosen: Sequence[int]) -> int:
    return sum(scores[first][second] for first, second in combinations(chosen, 2))


def _best_single_set(scores: Sequence[Sequence[int]], indexes: Sequence[int], size: int) -> int:
    """Return the first of the sets with the highest sum over their pairs, as bits.

    There are up to 12,870 sets of 16 GPUs, and the event loop waits meanwhile: so the sums are computed together.
    """
    members = _members_of_sets(len(indexes), size)
    pairs = np.array([[scores[first][second] for second in indexes] for first in indexes], np.int64)
    sums = np.zeros(members.shape[1], np.int64)
    for first, second in combinations(range(size), 2):
        sums += pairs[members[first], members[second]]
    return set_of([indexes[position] for position in members[:, int(sums.argmax())].tolist()])


@lru_cache(maxsize=_MAX_SETS)
def _members_of_sets(count: int, size: int) -> Int64:
    """Return all sets of ``size`` of some GPUs, in lexicographic order (int64[size, sets])."""
    sets = np.fromiter(chain.from_iterable(combinations(range(count), size)), np.int64)
    return np.ascontiguousarray(sets.reshape(-1, size).T)


def _best_partition(scores: Sequence[Sequence[int]], indexes: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """Return the first partition with the highest score, for more GPUs than ``size``.

    If the number does not divide, one set lacks all members that are missing.
    """
    known: dict[tuple[int, int], tuple[int, tuple[tuple[int, ...], ...]]] = {}
    score_of = lru_cache(maxsize=None)(partial(_score, scores))

    def best(left: int, lacking: int) -> tuple[int, tuple[tuple[int, ...], ...]]:
        gpus = members_of(left)
        if len(gpus) <= size:
            return score_of(gpus), (gpus,)
        if (answer := known.get((left, lacking))) is not None:
            return answer
        answer = -1, ()
        # What is lacking comes after all GPUs, as the plugin fills its list up at the end. One set lacks all of it.
        padding = tuple(range(left.bit_length(), left.bit_length() + lacking))
        complete = combinations(gpus[1:], size - 1)
        incomplete = (others + padding for others in combinations(gpus[1:], size - 1 - lacking)) if lacking else ()
        for others in merge(complete, incomplete):
            lacks = lacking and others[-1] >= padding[0]
            chosen = (gpus[0], *(others[:-lacking] if lacks else others))
            score, partition = best(left & ~set_of(chosen), 0 if lacks else lacking)
            if (score := score + score_of(chosen)) > answer[0]:
                answer = score, (chosen, *partition)
        known[left, lacking] = answer
        return answer

    return best(set_of(indexes), -len(indexes) % size)[1]


# ---------------------------------------------------------------- AMD


def lowest_weight(hardware: NodeHardware, free: int, size: int) -> int:
    """Return the GPUs that AMD's plugin gives to a pod; -1 if fewer are free. Arguments are as for `best_effort`."""
    indexes = members_of(free)
    if not 0 < size <= len(indexes):
        return 0 if size == 0 else -1
    if size in (1, len(indexes)):
        return set_of(indexes[:size])
    weights = pair_weights(hardware)
    return _best_single_set([[-weight for weight in row] for row in weights], indexes, size)


@lru_cache(maxsize=_MAX_HARDWARE)
def pair_weights(hardware: NodeHardware) -> tuple[tuple[int, ...], ...]:
    """Return the weight of each pair of GPUs for AMD's plugin. NVLinks count as XGMI."""
    linked = {(link.first, link.second) for link in hardware.links}
    gpus = hardware.gpus
    return tuple(tuple(_weight(hardware, linked, first.index, second.index) for second in gpus) for first in gpus)


def _weight(hardware: NodeHardware, linked: set[tuple[int, int]], first: int, second: int) -> int:
    pair = min(first, second), max(first, second)
    same_numa = hardware.gpus[first].numa_node == hardware.gpus[second].numa_node
    link = XGMI_WEIGHT if pair in linked else PCIE_WEIGHT
    return OTHER_GPU_WEIGHT + link + (SAME_NUMA_WEIGHT if same_numa else OTHER_NUMA_WEIGHT)


# ---------------------------------------------------------------- either


def prediction_operations(free: int, size: int) -> int:
    """Return what to charge for a prediction: large nodes may each have other free GPUs."""
    return comb(free.bit_count(), size) // SETS_PER_OPERATION


@lru_cache(maxsize=16_384)
def predicted(hardware: NodeHardware, vendor: str, free: int, size: int) -> int:
    """Return the GPUs that the plugin of a vendor (``nvidia`` or ``amd``) gives to a pod; -1 if fewer are free."""
    return (lowest_weight if vendor == "amd" else best_effort)(hardware, free, size)
