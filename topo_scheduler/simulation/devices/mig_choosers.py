"""How others choose the slot of a MIG instance, written from their published rules, to compare with.

Each chooser takes GPUs of one geometry and a profile, and returns the slot, or None if no GPU has room. All of them
fill whatever has room: they differ only in which slot they take.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from topo_scheduler.scheduling.devices.mig_slots import MigSlot, MigSlots, SplitGpu
from topo_scheduler.state.devices.mig import MigProfile

ChooseSlot = Callable[[Sequence[SplitGpu], MigProfile], MigSlot | None]


def _options(slots: MigSlots, gpus: Sequence[SplitGpu], profile: MigProfile) -> list[MigSlot]:
    return [MigSlot(index, start) for index, gpu in enumerate(gpus) for start in slots.starts(gpu, profile)]


@dataclass(frozen=True, slots=True)
class BySlotKey:
    """Chooses the slot with the lowest key; of equal ones the lowest GPU, then the lowest start."""

    slots: MigSlots
    key: Callable[[SplitGpu, MigSlot], Any]

    def __call__(self, gpus: Sequence[SplitGpu], profile: MigProfile) -> MigSlot | None:
        """Return the slot, or None."""
        options = _options(self.slots, gpus, profile)
        return min(options, key=lambda slot: (self.key(gpus[slot.gpu], slot), slot.gpu, slot.start), default=None)


def first_fit(slots: MigSlots) -> ChooseSlot:
    """Take the lowest GPU with room and its lowest start, as kube-scheduler's allocator of ResourceClaims does."""
    return BySlotKey(slots, lambda _gpu, slot: slot.gpu)


def spread(slots: MigSlots) -> ChooseSlot:
    """Take the GPU with the fewest used memory slices, as NVIDIA's device plugin spreads by default (distributed)."""
    return BySlotKey(slots, lambda gpu, _slot: gpu.memory.bit_count())


def packed(slots: MigSlots) -> ChooseSlot:
    """Take the GPU with the most used memory slices, and its highest start."""
    return BySlotKey(slots, lambda gpu, slot: (-gpu.memory.bit_count(), slot.gpu, -slot.start))


@dataclass(frozen=True, slots=True)
class RandomSlot:
    """Takes any slot, each as likely as the others."""

    slots: MigSlots
    rng: random.Random

    def __call__(self, gpus: Sequence[SplitGpu], profile: MigProfile) -> MigSlot | None:
        """Return the slot, or None."""
        options = _options(self.slots, gpus, profile)
        return self.rng.choice(options) if options else None
