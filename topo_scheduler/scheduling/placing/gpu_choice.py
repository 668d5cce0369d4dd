"""Which GPUs of its node each placed pod gets, where GPUs are shared and so told apart."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.small_pods import FGD, FRAGMENTATION
from topo_scheduler.scheduling.extensions.gradient import scored
from topo_scheduler.scheduling.placing.site import PlanningContext
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.devices import WHOLE
from topo_scheduler.state.nodes import Int64


def choose_gpus(site: PlanningContext, placed: Sequence[tuple[PodClass, int]]) -> list[tuple[int, ...]]:
    """Return the indexes of the GPUs of each of some pods that were placed together; none where they are a number only.

    Whole GPUs are the lowest that are free. A share that is placed alone gets the GPU by which its node was scored;
    every other the one with least free that has room, the lowest of them.
    """
    devices = site.nodes.devices
    if not any(devices.count[row] for _, row in placed):
        return [()] * len(placed)
    left: dict[int, Int64] = {}
    chosen: list[tuple[int, ...]] = []
    for cls, row in placed:
        if not devices.count[row] or not (cls.gpus or cls.share):
            chosen.append(())
            continue
        free = left.setdefault(row, devices.free[row, : devices.count[row]].copy())
        if cls.share:
            at = _scored(site, cls, row) if len(placed) == 1 else -1
            found = (at,) if at >= 0 else _tightest(free, cls.share)
            free[list(found)] -= cls.share
        else:
            found = tuple(np.flatnonzero(free == WHOLE)[: cls.gpus].tolist())
            # Fewer than are free by number: the records of others contradict each other, and nothing is recorded.
            found = found if len(found) == cls.gpus else ()
            free[list(found)] = 0
        chosen.append(found)
    return chosen


def _scored(site: PlanningContext, cls: PodClass, row: int) -> int:
    if site.policy.baseline is not None:
        return site.policy.baseline.choose_share(site, cls, row)
    if site.policy.alone not in (FRAGMENTATION, FGD):
        return -1
    typical = site.small_pods.typical.now(site.policy.typical)
    return int(scored(site.policy.alone, site.nodes, cls, typical, np.array([row], np.int64))[0, 1])


def _tightest(free: Int64, share: int) -> tuple[int, ...]:
    room = np.flatnonzero(free >= share)
    return (int(room[np.argmin(free[room])]),) if len(room) else ()
