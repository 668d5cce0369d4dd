"""How device plugins and kube-scheduler choose GPUs of a node, written from their published rules, to compare with.

A set of GPUs is an int: bit i is GPU i. Each chooser takes the free GPUs and a size, and returns the chosen GPUs, or -1
if fewer are free. None knows which pods come later.

Sources: NVIDIA/go-gpuallocator, `besteffort_policy.go`; ROCm/k8s-device-plugin, `device.go` of its allocator.
"""

import random
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from typing import Final

from topo_scheduler.state.devices.hardware import NodeHardware, PciePath

Choose = Callable[[int, int], int]
"""Takes the free GPUs as bits and a size; returns the chosen ones, or -1."""

NVLINK_SCORE: Final = 100
"""Of each link between two GPUs. NVIDIA's chooser knows no more than `MAX_SCORED_LINKS` of them."""
MAX_SCORED_LINKS: Final = 12
PATH_SCORES: Final = {
    PciePath.UNKNOWN: 10,
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOST_BRIDGE: 30,
    PciePath.SWITCHES: 40,
    PciePath.SWITCH: 50,
}
OTHER_GPU_WEIGHT: Final = 20
XGMI_WEIGHT: Final = 10
PCIE_WEIGHT: Final = 40
SAME_NUMA_WEIGHT: Final = 10
OTHER_NUMA_WEIGHT: Final = 20


def members(chosen: int) -> tuple[int, ...]:
    """Return the indexes of a set, in order."""
    return tuple(index for index in range(chosen.bit_length()) if chosen >> index & 1)


def as_bits(indexes: tuple[int, ...]) -> int:
    """Return a set of indexes as bits."""
    return sum(1 << index for index in indexes)


def first_fit(free: int, size: int) -> int:
    """Choose the lowest indexes, as kube-scheduler's allocator of ResourceClaims takes the first devices that fit."""
    indexes = members(free)
    return as_bits(indexes[:size]) if len(indexes) >= size else -1


class RandomChoice:
    """Chooses any free GPUs, each set as likely as the others."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of a seed."""
        self._rng = random.Random(seed)

    def choose(self, free: int, size: int) -> int:
        """Return any set of the size."""
        indexes = members(free)
        return as_bits(tuple(self._rng.sample(indexes, size))) if len(indexes) >= size else -1


class NvidiaBestEffort:
    """NVIDIA's best effort: divides all free GPUs into sets of the size, and takes the best set of the best division.

    A pair scores 100 for each NVLink, and 10 to 50 for its PCIe path. Links to an NVSwitch count for nothing. If the
    free GPUs are no multiple of the size, one set of the division lacks all that are missing. Of equal divisions and of
    equal sets the first counts, in the order of indexes.
    """

    def __init__(self, hardware: NodeHardware) -> None:
        """Compute the score of each pair. XGMI links count as NVLinks: the plugin itself knows GPUs of NVIDIA only."""
        count = len(hardware.gpus)
        links = {(link.first, link.second): link.count for link in hardware.links}
        self._scores = [[0] * count for _ in range(count)]
        for first, second in combinations(range(count), 2):
            linked = links.get((first, second), 0)
            score = NVLINK_SCORE * linked if linked <= MAX_SCORED_LINKS else 0
            score += PATH_SCORES[hardware.path(first, second)]
            self._scores[first][second] = self._scores[second][first] = score
        self._set_score = cache(self._set_score_of)
        self._best = cache(self._best_division)
        self.choose: Choose = cache(self._choose)

    def _set_score_of(self, chosen: int) -> int:
        return sum(self._scores[first][second] for first, second in combinations(members(chosen), 2))

    def _choose(self, free: int, size: int) -> int:
        count = free.bit_count()
        if count < size:
            return -1
        if size == 1:
            return free & -free
        sets: list[int] = []
        left, lacking = free, -count % size
        while left:
            _, chosen = self._best(left, size, lacking)
            lacking = 0 if chosen.bit_count() < size else lacking
            sets.append(chosen)
            left &= ~chosen
        return max((chosen for chosen in sets if chosen.bit_count() == size), key=self._set_score)

    def _best_division(self, left: int, size: int, lacking: int) -> tuple[int, int]:
        """Return the score of the best division, and its set with the lowest GPU."""
        if left.bit_count() <= size:
            return self._set_score(left), left
        best = -1, 0
        for chosen in _sets_of_first(left, size, lacking):
            remaining = 0 if chosen.bit_count() < size else lacking
            score = self._set_score(chosen) + self._best(left & ~chosen, size, remaining)[0]
            if score > best[0]:
                best = score, chosen
        return best


def _sets_of_first(left: int, size: int, lacking: int) -> Iterator[int]:
    """Yield each set with the lowest GPU, in order: full ones, and those that lack ``lacking`` members.

    What is lacking is ordered behind all GPUs, as the plugin fills the list of free GPUs up at its end.
    """
    lowest, *rest = members(left)
    padded = [*rest, *range(left.bit_length(), left.bit_length() + lacking)]
    for others in combinations(padded, size - 1):
        gpus = [index for index in others if left >> index & 1]
        if size - 1 - len(gpus) in (0, lacking):
            yield as_bits((lowest, *gpus))


class RocmWeights:
    """ROCm's best effort: the set with the lowest sum of weights over its pairs; of equal ones the first.

    A pair weighs less by XGMI than by PCIe, and less in one NUMA node. How many links there are does not count.
    """

    def __init__(self, hardware: NodeHardware) -> None:
        """Compute the weight of each pair. NVLinks count as XGMI: the plugin itself knows GPUs of AMD only."""
        linked = {(link.first, link.second) for link in hardware.links}
        self._weights = {}
        for first, second in combinations(range(len(hardware.gpus)), 2):
            link = XGMI_WEIGHT if (first, second) in linked else PCIE_WEIGHT
            same = hardware.gpus[first].numa_node == hardware.gpus[second].numa_node
            numa = SAME_NUMA_WEIGHT if same else OTHER_NUMA_WEIGHT
            self._weights[first, second] = OTHER_GPU_WEIGHT + link + numa
        self.choose: Choose = cache(self._choose)

    def _choose(self, free: int, size: int) -> int:
        indexes = members(free)
        if len(indexes) < size:
            return -1
        return as_bits(min(combinations(indexes, size), key=self._weight))

    def _weight(self, chosen: tuple[int, ...]) -> int:
        return sum(self._weights[pair] for pair in combinations(chosen, 2))
