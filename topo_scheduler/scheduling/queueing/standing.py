"""How a workload stands: its turn, and how many of its pods must be placed or must yet appear."""

from collections.abc import Sequence

from topo_scheduler.scheduling.queueing.turns import Order
from topo_scheduler.state.workloads import Member, Stage, Workload, size_of


def order_of(workload: Workload) -> Order:
    """Return a workload's sort key in the queue."""
    if (only := workload.only) is not None:
        since = only.enqueued if only.stage is Stage.PENDING else 0.0
        return Order(workload.priority, only.created, workload.id, workload.namespace, since)
    since = min((m.enqueued for m in workload.members.values() if m.stage is Stage.PENDING), default=0.0)
    first = half_bound(workload) and (workload.resumed or not workload.found)
    return Order(workload.priority, workload.created, workload.id, workload.namespace, since, first)


def half_bound(workload: Workload) -> bool:
    """Return whether some members of a gang are bound that never ran whole, and others must yet be."""
    if not workload.gang or workload.complete or not workload.bound or not size_of(workload):
        return False
    bound = sum(m.stage is Stage.BOUND and not (m.leaving or m.evicted) for m in workload.members.values())
    return bound > 0 and max(bound, len(workload.ran)) < workload.size


def has_begun(workload: Workload) -> bool:
    """Return whether members of a gang are bound, or were, that never ran whole. Cheap, unlike `half_bound`."""
    return workload.gang and not workload.complete and (workload.found or workload.progressed > 0)


def needed_now(workload: Workload) -> int:
    """Return how many more members must be placed for the workload to have its size."""
    return max(0, workload.size - len(workload.members) + workload.pending)


def least_of(workload: Workload) -> int:
    """Return how many members must be placed together at least: the size, singly where it ran whole."""
    return 1 if workload.complete else max(1, needed_now(workload))


def lacking(workload: Workload, pending: Sequence[Member]) -> int:
    """Return how many pods must yet appear before the workload can be tried. A gang that ran whole waits for none.

    One whose size is not known yet waits for at least one.
    """
    if workload.awaits:
        return max(1, needed_now(workload) - len(pending))
    return 0 if workload.complete else max(0, needed_now(workload) - len(pending))
