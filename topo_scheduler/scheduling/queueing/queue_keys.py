"""Sort key of a workload in the queue, and how many of its pods must be placed or must still appear."""

from collections.abc import Sequence

from topo_scheduler.scheduling.queueing.fair_queue import Order
from topo_scheduler.state.pods.workloads import Member, Stage, Workload, size_of


def order_of(workload: Workload) -> Order:
    """Return a workload's sort key in the queue."""
    if (single := workload.only) is not None:
        since = single.enqueued if single.stage is Stage.PENDING else 0.0
        return Order(workload.priority, single.created, workload.id, workload.namespace, since)
    since = workload.pending_since
    partially_bound_first = is_partially_bound(workload) and (workload.resumed or not workload.bound_earlier)
    return Order(workload.priority, workload.created, workload.id, workload.namespace, since, partially_bound_first)


def is_partially_bound(workload: Workload) -> bool:
    """Return whether a gang that never ran with all members has some members bound and others still to be bound."""
    if not workload.gang or workload.complete or not workload.bound or not size_of(workload):
        return False
    bound = sum(
        member.stage is Stage.BOUND and not (member.leaving or member.evicted) for member in workload.members.values()
    )
    return 0 < bound < workload.size and not workload.ran_whole


def has_begun(workload: Workload) -> bool:
    """Return whether a gang that never ran with all members has or had bound members, which is cheap to know."""
    return workload.gang and not workload.complete and (workload.bound_earlier or workload.progressed > 0)


def needed_now(workload: Workload) -> int:
    """Return how many more members must be placed until the workload has its size."""
    return max(0, workload.size - len(workload.members) + workload.pending)


def least_of(workload: Workload) -> int:
    """Return how many members must be placed together at least: those up to its size, or 1 once it ran whole."""
    return 1 if workload.complete else max(1, needed_now(workload))


def lacking(workload: Workload, pending: Sequence[Member]) -> int:
    """Return how many more pods must appear before the engine can try the workload.

    A gang that ran with all members needs none. A gang of unknown size needs at least one.
    """
    if workload.awaits:
        return max(1, needed_now(workload) - len(pending))
    return 0 if workload.complete else max(0, needed_now(workload) - len(pending))
