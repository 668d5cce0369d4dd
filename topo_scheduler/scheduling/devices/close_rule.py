"""Which devices a pod may have if it requires something of its GPUs: the search for devices obeys this rule.

Whole GPUs count, and parts of them, such as MIG instances, by their GPU. Links do not reach parts, so a part is never
linked to another device. Devices that are no GPUs do not matter, nor does admin access.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import combinations
from operator import or_
from typing import Final

from topo_scheduler.api.gpu_needs import GpuNeeds
from topo_scheduler.scheduling.devices.gpu_closeness import (
    TablesOf,
    close_areas,
    is_close,
    knows_closeness,
    most_close,
)
from topo_scheduler.scheduling.devices.plugin_choice import members_of, set_of
from topo_scheduler.state.devices.node_hardware import NodeGpus
from topo_scheduler.state.devices.pools import DeviceId
from topo_scheduler.state.operation_budget import charge

NOWHERE: Final = -1
"""Index of a GPU or part of one if it is not known that anything is close to it."""
UNFIT: Final = -2
"""Index of a GPU or part of one that lacks the memory, the architecture or the MIG profile that the pod requires."""
Places = Mapping[DeviceId, int | None]
"""The GPU that each device is or is a part of, `NOWHERE` or `UNFIT`; None for devices that are no GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class CloseRule:
    """How close the GPUs of one pod must be on one node.

    Attributes:
        gpus: those of the node; None if it is not known how close they are.
        needs: what the pod requires.
        tables: bandwidths of rings.
        index_of: the GPUs of devices.
        held: GPUs that the pod has already, by claims that are allocated.
        least: whole GPUs that it has or must get.
        usable: GPUs that it has or may get, as bits.
        most: usable GPUs that are close, at most; 0 if that is not known.
        areas: sets of usable GPUs, as bits: close GPUs are all in one of them.
        all_close: whether the GPUs of an area are close to each other, whichever of them a pod has.
    """

    gpus: NodeGpus | None
    needs: GpuNeeds
    tables: TablesOf
    index_of: Places
    held: tuple[int, ...]
    least: int
    usable: int
    most: int = 0
    areas: tuple[int, ...] = ()
    all_close: bool = False

    def permits(self, indexes: Sequence[int]) -> bool:
        """Return whether GPUs may be among those of the pod, if others can make the set close."""
        if UNFIT in indexes:
            return False
        if len(indexes) < 2 or not self.needs.close:
            return True
        if NOWHERE in indexes:
            return False
        chosen = _bits(indexes)
        return any(not chosen & ~area for area in self.areas)

    def accepts(self, indexes: Sequence[int]) -> bool:
        """Return whether the pod may have these GPUs and no others."""
        if not self.permits(indexes):
            return False
        if len(indexes) < 2 or not self.needs.close:
            return True
        if self.gpus is None:
            return False
        charge(len(indexes))
        return self.all_close or is_close(self.gpus, self.needs, _bits(indexes), self.tables)

    def kind(self, device: DeviceId) -> object:
        """Return a value that is equal for devices that are equally close to all others."""
        index = self.index_of.get(device)
        if index is None or index < 0 or not self.all_close:
            return index
        return tuple(area for area in self.areas if area >> index & 1)

    def without_closeness(self) -> "CloseRule":
        """Return the rule for a pod that may have GPUs anywhere on the node."""
        return replace(self, needs=GpuNeeds(), least=0)

    def holding(self, devices: Iterable[DeviceId]) -> "CloseRule":
        """Return the rule for a pod that has these devices as well."""
        indexes = (index for id_ in devices if (index := self.index_of.get(id_)) is not None)
        return replace(self, held=(*self.held, *indexes))

    @property
    def is_possible(self) -> bool:
        """Whether enough usable GPUs are close, apart from selectors, constraints and counters."""
        return self.least <= max(1, self.most)


def close_rule(
    gpus: NodeGpus | None,
    needs: GpuNeeds,
    tables: TablesOf,
    index_of: Places,
    held: tuple[int, ...],
    free: int,
    asked: int,
) -> CloseRule:
    """Return the rule of a pod for a node.

    Args:
        gpus: those of the node; None if nothing is known of them.
        needs: as in `CloseRule`, like others.
        tables: bandwidths of rings.
        index_of: GPUs of devices.
        held: GPUs that the pod has.
        free: GPUs that it may get, as bits.
        asked: whole GPUs that it must get.
    """
    least = asked + len({index for index in held if index >= 0})
    usable = free | _bits([index for index in held if index >= 0])
    if not needs.close:
        return CloseRule(None, needs, tables, index_of, held, 0, usable)
    if gpus is None or not knows_closeness(gpus, needs):
        return CloseRule(None, needs, tables, index_of, held, least, usable)
    areas = tuple(sorted({area for area in close_areas(gpus, needs.locality, usable) if area}))
    pairs = sorted({set_of(pair) for area in areas for pair in combinations(members_of(area), 2)})
    charge(1 + len(pairs))
    all_close = all(is_close(gpus, needs, pair, tables) for pair in pairs)
    largest = most_close(gpus, needs, usable, tables)
    return CloseRule(gpus, needs, tables, index_of, held, least, usable, largest, areas, all_close)


def _bits(indexes: Sequence[int]) -> int:
    """Return indexes as bits; unlike with `set_of`, an index may occur twice."""
    return reduce(or_, (1 << index for index in indexes), 0)
