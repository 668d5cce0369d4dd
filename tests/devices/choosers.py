"""How device plugins of NVIDIA and AMD choose GPUs, written from what they document, to compare with."""

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from topo_scheduler.state.devices.hardware import NodeHardware, PciePath

_NVIDIA_PATHS = {
    PciePath.UNKNOWN: 10,
    PciePath.SYSTEM: 10,
    PciePath.NODE: 20,
    PciePath.HOST_BRIDGE: 30,
    PciePath.SWITCHES: 40,
    PciePath.SWITCH: 50,
}


def members(chosen: int) -> tuple[int, ...]:
    """Return the indexes of a set."""
    return tuple(index for index in range(chosen.bit_length()) if chosen >> index & 1)


def _bits(indexes: tuple[int, ...]) -> int:
    return sum(1 << index for index in indexes)


class BestEffort:
    """NVIDIA's best effort: of all partitions of the free GPUs into sets of the size, the best set of the best one.

    A pair scores 100 for each NVLink, and more for a closer PCIe path. Links to a switch count for nothing.
    """

    def __init__(self, hardware: NodeHardware) -> None:
        count = len(hardware.gpus)
        self._scores = [[0] * count for _ in range(count)]
        links = {(link.first, link.second): link.count for link in hardware.links}
        for first, second in combinations(range(count), 2):
            score = 100 * links.get((first, second), 0) + _NVIDIA_PATHS[hardware.path(first, second)]
            self._scores[first][second] = self._scores[second][first] = score
        self.choose = cache(self._choose)

    def _score(self, chosen: tuple[int, ...]) -> int:
        return sum(self._scores[first][second] for first, second in combinations(chosen, 2))

    def _choose(self, free: int, size: int) -> int:
        indexes = members(free)
        if len(indexes) < size:
            return -1
        if size == 1:
            return 1 << indexes[0]
        spare = -len(indexes) % size
        partitions = (p for p in _partitions(indexes, size, spare) if any(len(chosen) == size for chosen in p))
        best = max(partitions, key=lambda partition: sum(map(self._score, partition)))
        return _bits(max((chosen for chosen in best if len(chosen) == size), key=self._score))


def _partitions(left: tuple[int, ...], size: int, spare: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every partition into sets of a size, of which some lack ``spare`` members in all."""
    if not left:
        yield ()
        return
    first, rest = left[0], left[1:]
    for lacking in range(min(spare, size - 1) + 1):
        for others in combinations(rest, size - 1 - lacking):
            remaining = tuple(index for index in rest if index not in others)
            for partition in _partitions(remaining, size, spare - lacking):
                yield ((first, *others), *partition)


class LowestWeight:
    """ROCm's: the set with the lowest sum of weights over its pairs. The number of links does not count."""

    def __init__(self, hardware: NodeHardware) -> None:
        self._hardware = hardware
        self._linked = {(link.first, link.second) for link in hardware.links}
        self.choose = cache(self._choose)

    def _weight(self, pair: tuple[int, int]) -> int:
        first, second = (self._hardware.gpus[index] for index in pair)
        link = 10 if pair in self._linked else 40
        return 20 + link + (10 if first.numa_node == second.numa_node else 20)

    def _choose(self, free: int, size: int) -> int:
        indexes = members(free)
        if len(indexes) < size:
            return -1
        return _bits(
            min(combinations(indexes, size), key=lambda chosen: sum(map(self._weight, combinations(chosen, 2))))
        )
