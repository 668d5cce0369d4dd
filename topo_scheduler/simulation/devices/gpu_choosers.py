"""How device plugins and kube-scheduler choose GPUs of a node, written from their published rules, to compare with.

A set of GPUs is an int: bit i is GPU i. Each chooser takes the free GPUs and a size, and returns the chosen GPUs, or -1
if fewer are free. None knows which pods come later.

Sources: NVIDIA/go-gpuallocator, `besteffort_policy.go`; ROCm/k8s-device-plugin, `device.go` of its allocator.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import combinations

from topo_scheduler.scheduling.devices.plugin_choice import members_of, pair_scores, pair_weights, set_of
from topo_scheduler.state.devices.hardware import NodeHardware

Choose = Callable[[int, int], int]
"""Takes the free GPUs as bits and a size; returns the chosen ones, or -1."""


def first_fit(free: int, size: int) -> int:
    """Choose the lowest indexes, as kube-scheduler's allocator of ResourceClaims takes the first devices that fit."""
    indexes = members_of(free)
    return set_of(indexes[:size]) if len(indexes) >= size else -1


class RandomChoice:
    """Chooses any free GPUs, each set as likely as the others."""

    def __init__(self, seed: int) -> None:
        """Start the sequence of a seed."""
        self._rng = random.Random(seed)

    def choose(self, free: int, size: int) -> int:
        """Return any set of the size."""
        indexes = members_of(free)
        return set_of(tuple(self._rng.sample(indexes, size))) if len(indexes) >= size else -1


class NvidiaBestEffort:
    """NVIDIA's best effort: divides all free GPUs into sets of the size, and takes the best set of the best division.

    A pair scores 100 for each NVLink, and 10 to 50 for its PCIe path. Links to an NVSwitch count for nothing. If the
    free GPUs are no multiple of the size, one set of the division lacks all that are missing. Of equal divisions and of
    equal sets the first counts, in the order of indexes.
    """

    def __init__(self, hardware: NodeHardware) -> None:
        """Set up. XGMI links count as NVLinks: the plugin itself knows GPUs of NVIDIA only."""
        self._scores = pair_scores(hardware)
        self._set_score = cache(self._set_score_of)
        self._best = cache(self._best_division)
        self.choose: Choose = cache(self._choose)

    def _set_score_of(self, chosen: int) -> int:
        return sum(self._scores[first][second] for first, second in combinations(members_of(chosen), 2))

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
    lowest, *rest = members_of(left)
    padded = [*rest, *range(left.bit_length(), left.bit_length() + lacking)]
    for others in combinations(padded, size - 1):
        gpus = [index for index in others if left >> index & 1]
        if size - 1 - len(gpus) in (0, lacking):
            yield set_of((lowest, *gpus))


class RocmWeights:
    """ROCm's best effort: the set with the lowest sum of weights over its pairs; of equal ones the first.

    A pair weighs less by XGMI than by PCIe, and less in one NUMA node. How many links there are does not count.
    """

    def __init__(self, hardware: NodeHardware) -> None:
        """Set up. NVLinks count as XGMI: the plugin itself knows GPUs of AMD only."""
        self._weights = pair_weights(hardware)
        self.choose: Choose = cache(self._choose)

    def _choose(self, free: int, size: int) -> int:
        indexes = members_of(free)
        if len(indexes) < size:
            return -1
        return set_of(min(combinations(indexes, size), key=self._weight))

    def _weight(self, chosen: Sequence[int]) -> int:
        return sum(self._weights[first][second] for first, second in combinations(chosen, 2))
