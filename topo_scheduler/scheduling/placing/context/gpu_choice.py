"""Choice of the GPUs that each placed pod gets on its node, where GPUs are shared and have indexes."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.scheduling.placing.context.planning_context import PlanningContext
from topo_scheduler.state.nodes.gpu_shares import WHOLE_GPU
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.classes import PodClass


def choose_gpus(context: PlanningContext, placements: Sequence[tuple[PodClass, int]]) -> list[tuple[int, ...]]:
    """Return the GPU indexes of each pod of a placement; no indexes on nodes that only count their GPUs.

    Pods with whole GPUs get the lowest free ones. A share that is placed alone gets the GPU by which its node was
    scored. Any other share gets the GPU with least free that has room, the lowest of equal ones.
    """
    devices = context.nodes.devices
    if not any(devices.count[row] for _, row in placements):
        return [()] * len(placements)
    free_by_row: dict[int, Int64] = {}
    chosen: list[tuple[int, ...]] = []
    for cls, row in placements:
        if not devices.count[row] or not (cls.gpus or cls.share):
            chosen.append(())
            continue
        free = free_by_row.setdefault(row, devices.free[row, : devices.count[row]].copy())
        if cls.share:
            index = context.gpu_of_share(cls, row) if len(placements) == 1 else -1
            indexes = (index,) if index >= 0 else _tightest(free, cls.share)
            free[list(indexes)] -= cls.share
        else:
            indexes = tuple(np.flatnonzero(free == WHOLE_GPU)[: cls.gpus].tolist())
            # Fewer than the count says: the records of other pods contradict each other. Record none.
            indexes = indexes if len(indexes) == cls.gpus else ()
            free[list(indexes)] = 0
        chosen.append(indexes)
    return chosen


def _tightest(free: Int64, share: int) -> tuple[int, ...]:
    room = np.flatnonzero(free >= share)
    return (int(room[np.argmin(free[room])]),) if len(room) else ()
