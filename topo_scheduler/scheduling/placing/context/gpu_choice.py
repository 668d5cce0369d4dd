"""Choice of the GPUs that each placed pod gets on its node, by index.

Where GPUs are shared, pods get those that are chosen here. Elsewhere the device plugin chooses, and its choice is
predicted: for pods that ask how close their GPUs are, and on nodes where some GPUs have better links than others.
"""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.scheduling.devices.device_choice import DeviceChoiceError
from topo_scheduler.scheduling.devices.gpu_closeness import closeness_text
from topo_scheduler.scheduling.devices.gpu_sets import GpuSets, indexes_of
from topo_scheduler.scheduling.devices.linked_devices import NO_NEEDS
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext
from topo_scheduler.scheduling.rules.gpu_rules import asks_close_gpus, needs_close_gpus
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass


def choose_gpus(context: PlanningContext, placements: Sequence[tuple[PodClass, int]]) -> list[tuple[int, ...]]:
    """Return the GPU indexes of each pod of a placement; no indexes where it does not matter which GPUs it gets.

    On nodes that share their GPUs, pods with whole GPUs get the lowest free ones. If some GPUs of the node have better
    links, or if a pod asks how close they are, it gets those with the best links. A share that is placed alone gets the
    GPU by which its node was scored. Any other share gets the GPU with least free that has room, the lowest of equals.

    Raises:
        DeviceChoiceError: the pods can't have GPUs that are as close as they ask on these nodes together.
    """
    devices, sets = context.nodes.devices, context.around.gpu_sets
    if not any(devices.count[row] or _is_predicted(sets, cls, row) for cls, row in placements):
        return [()] * len(placements)
    free_by_row: dict[int, Int64] = {}
    close: dict[int, int] = {}
    """GPUs by row that pods got for being close; ``others``: those that pods have whole or a share of."""
    others: dict[int, int] = {}
    chosen: list[tuple[int, ...]] = []
    for cls, row in placements:
        if not (cls.gpus or cls.share):
            chosen.append(())
            continue
        gpus = 0
        if sets is not None and cls.gpus:
            gpus = _close(context, sets, cls, row, close.get(row, 0) | others.get(row, 0))
        if gpus or not devices.count[row]:
            chosen.append(indexes_of(gpus))
            close[row] = close.get(row, 0) | gpus
        else:
            free = free_by_row.setdefault(row, devices.free[row, : devices.count[row]].copy())
            free[list(indexes_of(close.get(row, 0)))] = 0
            chosen.append(_of_shared(context, cls, row, free, alone=len(placements) == 1))
            others[row] = others.get(row, 0) | set_of(chosen[-1])
    return chosen


def _is_predicted(sets: GpuSets | None, cls: PodClass, row: int) -> bool:
    """Return whether it matters which GPUs a pod gets on a node."""
    if sets is None or not cls.gpus:
        return False
    return (cls.gpu_needs is not None and asks_close_gpus(cls)) or sets.is_uneven(row)


def _close(context: PlanningContext, sets: GpuSets, cls: PodClass, row: int, taken: int) -> int:
    """Return the GPUs of a pod as bits, beside those that are ``taken``; 0 if it does not matter which ones it gets."""
    if not _is_predicted(sets, cls, row):
        return 0
    needs = cls.gpu_needs.closeness() if cls.gpu_needs is not None and asks_close_gpus(cls) else None
    if needs is None and sets.obeys_index(row):
        needs = NO_NEEDS
    gpus = sets.choose(needs, cls.gpus, row, taken)
    if gpus < 0 and needs is not None and needs_close_gpus(cls):
        raise DeviceChoiceError(
            f"node {context.nodes.names[row]} has too few GPUs that are {closeness_text(needs)} for all of these pods"
        )
    return max(0, gpus)


def _of_shared(context: PlanningContext, cls: PodClass, row: int, free: Int64, *, alone: bool) -> tuple[int, ...]:
    if cls.share:
        index = context.gpu_of_share(cls, row) if alone else -1
        indexes = (index,) if index >= 0 else _tightest(free, cls.share)
        free[list(indexes)] -= cls.share
        return indexes
    indexes = tuple(np.flatnonzero(free == WHOLE_GPU)[: cls.gpus].tolist())
    # Fewer than the count says: the records of other pods contradict each other. Record none.
    indexes = indexes if len(indexes) == cls.gpus else ()
    free[list(indexes)] = 0
    return indexes


def _tightest(free: Int64, share: int) -> tuple[int, ...]:
    room = np.flatnonzero(free >= share)
    return (int(room[np.argmin(free[room])]),) if len(room) else ()
