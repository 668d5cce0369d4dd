"""Whether MIG instances fit on so many GPUs however they are placed, exactly.

A GPU holds one of a few maximal sets of instances. The search fills one GPU after the other, each with a maximal set
that has the largest instance still missing. Weights of the instances, of which no set holds more than so much, bound
how many GPUs are needed.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Final

import numpy as np

from topo_scheduler.scheduling.devices.mig_slots import MigSlots, SplitGpu
from topo_scheduler.state.devices.hardware import Int64
from topo_scheduler.state.devices.mig import MigGeometry

MAX_STEPS: Final = 2_000
"""Steps of one search; without an answer by then it is not known whether the instances fit."""
_Counts = tuple[int, ...]


def maximal_sets(geometry: MigGeometry) -> list[_Counts]:
    """Return every set of instances that a GPU can hold and to which none can be added: counts by profile, in order."""
    slots = MigSlots(geometry)
    none = (0,) * len(geometry.profiles)
    seen = {(SplitGpu(), none)}
    pending = list(seen)
    while pending:
        gpu, counts = pending.pop()
        for number, profile in enumerate(geometry.profiles):
            for start in slots.starts(gpu, profile):
                more = tuple(count + (number == at) for at, count in enumerate(counts))
                state = gpu.with_instance(profile, start), more
                if state not in seen:
                    seen.add(state)
                    pending.append(state)
    sets = {counts for _, counts in seen}
    return sorted(first for first in sets if not any(first != other and _within(first, other) for other in sets))


class MigRepacking:
    """Whether instances fit on a number of GPUs of one geometry."""

    def __init__(self, geometry: MigGeometry, gpus: int) -> None:
        """Set up for so many GPUs."""
        # Large instances first: they leave the fewest choices.
        order = sorted(range(len(geometry.profiles)), key=lambda number: _size(geometry, number), reverse=True)
        self._names: Final = [geometry.profiles[number].name for number in order]
        self._gpus: Final = gpus
        sets = [tuple(counts[number] for number in order) for counts in maximal_sets(geometry)]
        self._sets: Final = sorted(sets, reverse=True)
        self._bounds: Final = _bounds(
            [geometry.profiles[number].memory_slices for number in order],
            [geometry.profiles[number].compute_slices for number in order],
            self._sets,
        )
        self._known: dict[_Counts, bool | None] = {}

    def fits(self, instances: Counter[str]) -> bool | None:
        """Return whether instances, counted by profile, fit after a repack of all; None if that is not known."""
        counts = tuple(instances[name] for name in self._names)
        if counts not in self._known:
            if len(self._known) >= MAX_STEPS:
                self._known.clear()
            self._known[counts] = _RepackSearch(self._sets, self._bounds).fits(counts, self._gpus)
        return self._known[counts]


class _RepackSearch:
    def __init__(self, sets: Sequence[_Counts], bounds: tuple[Int64, Int64]) -> None:
        self._sets = sets
        self._bounds = bounds
        self._failed: dict[_Counts, int] = {}
        """The most GPUs that were found too few for these instances."""
        self._steps = 0

    def fits(self, counts: _Counts, gpus: int) -> bool | None:
        try:
            return self._fits(counts, gpus)
        except _TooLongError:
            return None

    def _fits(self, counts: _Counts, gpus: int) -> bool:
        if not any(counts):
            return True
        if gpus <= self._failed.get(counts, 0) or self._needs(counts) > gpus:
            return False
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise _TooLongError
        largest = next(number for number, count in enumerate(counts) if count)
        for left in self._choices(counts, largest):
            if self._fits(left, gpus - 1):
                return True
        self._failed[counts] = max(gpus, self._failed.get(counts, 0))
        return False

    def _choices(self, counts: _Counts, largest: int) -> list[_Counts]:
        """Return what is left after one GPU more, by the sets that take the largest instance; no worse one of two."""
        left = {
            tuple(max(0, count - held) for count, held in zip(counts, held_by_gpu, strict=True))
            for held_by_gpu in self._sets
            if held_by_gpu[largest]
        }
        best = [choice for choice in left if not any(other != choice and _within(other, choice) for other in left)]
        return sorted(best, key=lambda choice: (self._needs(choice), choice))

    def _needs(self, counts: _Counts) -> int:
        """Return a number of GPUs below which they can't fit."""
        weights, max_instances = self._bounds
        return int((-(-(weights @ np.array(counts, np.int64)) // max_instances)).max())


class _TooLongError(Exception):
    """The search took too many steps."""


def _bounds(memory: Sequence[int], compute: Sequence[int], sets: Sequence[_Counts]) -> tuple[Int64, Int64]:
    """Return weights of the instances (int64[weights, profiles]), and the most that one GPU holds of each."""
    weights = [tuple(memory), tuple(compute)]
    for share in (1, 2, 3):
        weights.append(tuple(share * many + few for many, few in zip(memory, compute, strict=True)))
        weights.append(tuple(many + share * few for many, few in zip(memory, compute, strict=True)))
    numbers = range(len(memory))
    for size in range(1, len(memory) + 1):
        for members in combinations(numbers, size):
            weights.append(tuple(int(number in members) for number in numbers))
            weights.append(tuple(memory[number] if number in members else 0 for number in numbers))
    weight_array = np.array(weights, np.int64)
    max_instances = (weight_array @ np.array(sets, np.int64).T).max(axis=1)
    scaled = weight_array[max_instances > 0] / max_instances[max_instances > 0, None]
    needed = [
        number
        for number, candidate in enumerate(scaled)
        if not any(
            (candidate <= other).all() and ((candidate < other).any() or before < number)
            for before, other in enumerate(scaled)
        )
    ]
    return weight_array[max_instances > 0][needed], max_instances[max_instances > 0][needed]


def _size(geometry: MigGeometry, number: int) -> tuple[int, int, int]:
    profile = geometry.profiles[number]
    return profile.memory_slices, profile.compute_slices, -number


def _within(first: _Counts, other: _Counts) -> bool:
    return all(a <= b for a, b in zip(first, other, strict=True))
