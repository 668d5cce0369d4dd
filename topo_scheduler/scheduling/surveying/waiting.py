"""Who waits, for how long, and who has how much: what metrics show of an engine."""

from typing import TYPE_CHECKING

from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.state.accounts import WHOLE
from topo_scheduler.state.workloads import Stage

if TYPE_CHECKING:  # with it come the kernels
    from topo_scheduler.scheduling.engine import Engine


def pending_pods(engine: "Engine") -> dict[str, int]:
    """Return how many pods wait, by the place of their workload in the queue."""
    counts = dict.fromkeys((place.value for place in Place), 0)
    for workload in engine.workloads:
        place = engine.queue.place(workload.id)
        if place is not None:
            counts[place.value] += sum(m.stage is Stage.PENDING for m in workload.members.values())
    counts["outside"] = len(engine.arrivals.outside)
    return counts


def longest_waits(engine: "Engine", now: float) -> dict[str, float]:
    """Return how long the pod has waited that has waited longest, in seconds by place in the queue."""
    waits = dict.fromkeys((place.value for place in Place), 0.0)
    for workload in engine.workloads:
        place = engine.queue.place(workload.id)
        if place is not None:
            waiting = (now - m.enqueued for m in workload.members.values() if m.stage is Stage.PENDING)
            waits[place.value] = max(waits[place.value], *waiting, 0.0)
    return waits


def shares(engine: "Engine") -> dict[str, float]:
    """Return the dominant share of each namespace that has pods of ours, from 0 to 1."""
    namespaces = sorted({workload.namespace for workload in engine.workloads})
    return {namespace: engine.world.accounts.share(namespace) / WHOLE for namespace in namespaces}
