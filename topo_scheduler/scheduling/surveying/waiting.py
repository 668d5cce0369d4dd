"""Metrics of an engine: pending pods, how long they have been pending, and the share of each namespace."""

from typing import TYPE_CHECKING

from topo_scheduler.scheduling.queueing.queue import Place
from topo_scheduler.state.ledger.namespace_usage import WHOLE_SHARE
from topo_scheduler.state.pods.workloads import Stage

if TYPE_CHECKING:  # with it come the kernels
    from topo_scheduler.scheduling.engine import Engine


def pending_pods(engine: "Engine") -> dict[str, int]:
    """Return the number of pending pods by the place of their workload in the queue."""
    counts = dict.fromkeys((place.value for place in Place), 0)
    for workload in engine.workloads:
        place = engine.queue.place(workload.id)
        if place is not None:
            counts[place.value] += sum(member.stage is Stage.PENDING for member in workload.members.values())
    counts["outside"] = len(engine.arrivals.outside)
    return counts


def longest_waits(engine: "Engine", now: float) -> dict[str, float]:
    """Return how long the oldest pending pod has been pending, in seconds by place in the queue."""
    waits = dict.fromkeys((place.value for place in Place), 0.0)
    for workload in engine.workloads:
        place = engine.queue.place(workload.id)
        if place is not None:
            waits_of_pods = (
                now - member.enqueued for member in workload.members.values() if member.stage is Stage.PENDING
            )
            waits[place.value] = max(waits[place.value], *waits_of_pods, 0.0)
    return waits


def shares(engine: "Engine") -> dict[str, float]:
    """Return the dominant share of each namespace with pods of this scheduler, from 0 to 1."""
    namespaces = sorted({workload.namespace for workload in engine.workloads})
    return {namespace: engine.world.accounts.share(namespace) / WHOLE_SHARE for namespace in namespaces}
