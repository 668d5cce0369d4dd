"""The GPU for a MIG instance, and its place there: the one that costs the least capacity for other instances.

The capacity of a GPU is the sum over profiles of the share of their places that are free. A profile weighs as much as
it has memory slices. So a whole GPU counts as much for one large instance as for the small ones that could be in its
place. Loss of capacity decides between the starts on a GPU and between GPUs. A whole GPU loses most with its first
instance, so split GPUs are filled first. Of equal ones, that with the most instances comes first: it will be the last
to be whole again.

`device_order` has the same rule for devices, by the counters that drivers publish.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import Final

import numpy as np

from topo_scheduler.state.devices.hardware import Int64
from topo_scheduler.state.devices.mig import MigGeometry, MigProfile


@dataclass(frozen=True, slots=True)
class SplitGpu:
    """What the instances on a GPU take.

    ``memory``: memory slices as bits. ``compute``: number of compute slices. ``counts``: instances by profile, of those
    that may not be on a GPU as often as there is room. ``instances``: number of all of them.
    """

    memory: int = 0
    compute: int = 0
    counts: tuple[tuple[str, int], ...] = ()
    instances: int = 0

    def with_instance(self, profile: MigProfile, start: int) -> "SplitGpu":
        """Return the GPU with one more instance."""
        return self._changed(profile, start, 1)

    def without_instance(self, profile: MigProfile, start: int) -> "SplitGpu":
        """Return the GPU with one instance less."""
        return self._changed(profile, start, -1)

    def _changed(self, profile: MigProfile, start: int, by: int) -> "SplitGpu":
        counts = dict(self.counts)
        if profile.max_count < len(profile.starts):
            counts[profile.name] = counts.get(profile.name, 0) + by
        kept = tuple(sorted((name, count) for name, count in counts.items() if count))
        memory, compute = self.memory ^ slice_bits(profile, start), self.compute + by * profile.compute_slices
        return SplitGpu(memory, compute, kept, self.instances + by)


def slice_bits(profile: MigProfile, start: int) -> int:
    """Return the memory slices that an instance takes, as bits."""
    return ((1 << profile.memory_slices) - 1) << start


@dataclass(frozen=True, slots=True)
class MigSlot:
    """Where an instance goes: index of the GPU in the given order, and its first memory slice."""

    gpu: int
    start: int


class MigSlots:
    """Chooses slots on GPUs of one geometry."""

    def __init__(self, geometry: MigGeometry) -> None:
        """Compute the capacity of every state of a GPU: less than 10 ms."""
        self.geometry: Final = geometry
        states = 1 << geometry.memory_slices
        capacity: Int64 = np.zeros((states, geometry.compute_slices + 1), np.int64)
        starts = lcm(*(len(profile.starts) for profile in geometry.profiles))
        for profile in geometry.profiles:
            place = profile.memory_slices * (starts // len(profile.starts))
            enough = geometry.compute_slices - np.arange(geometry.compute_slices + 1) >= profile.compute_slices
            for start in profile.starts:
                places = (np.arange(states) & slice_bits(profile, start)) == 0
                capacity += np.outer(places, enough) * place
        self._capacity: Final[list[list[int]]] = capacity.tolist()

    def starts(self, gpu: SplitGpu, profile: MigProfile) -> list[int]:
        """Return where an instance can start on a GPU, in order."""
        if gpu.compute + profile.compute_slices > self.geometry.compute_slices:
            return []
        if dict(gpu.counts).get(profile.name, 0) >= profile.max_count:
            return []
        return [start for start in profile.starts if not gpu.memory & slice_bits(profile, start)]

    def choose(self, gpus: Sequence[SplitGpu], profile: MigProfile) -> MigSlot | None:
        """Return the slot where the least capacity is lost, or None if no GPU has room.

        Of equal slots the one on the GPU with the most instances is chosen, then the one on the lowest GPU, then the
        lowest start.
        """
        best: tuple[int, int, int, int] | None = None
        for index, gpu in enumerate(gpus):
            for start in self.starts(gpu, profile):
                rank = self.loss(gpu, profile, start), -gpu.instances, index, start
                best = rank if best is None else min(best, rank)
        return None if best is None else MigSlot(best[2], best[3])

    def capacity(self, gpu: SplitGpu) -> int:
        """Return the capacity of a GPU."""
        return self._capacity[gpu.memory][gpu.compute]

    def loss(self, gpu: SplitGpu, profile: MigProfile, start: int) -> int:
        """Return the capacity that a GPU loses with an instance."""
        after = self._capacity[gpu.memory | slice_bits(profile, start)][gpu.compute + profile.compute_slices]
        return self._capacity[gpu.memory][gpu.compute] - after
