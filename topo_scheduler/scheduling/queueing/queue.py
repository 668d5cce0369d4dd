"""The queue of pending workloads: a state machine without I/O. `fair_queue` orders the workloads that are ready.

A workload is in one of four places. *Active*: to be tried. *Backing off*: a bind failed, and the engine tries the
workload again at a given time. *Unschedulable*: tried again after an event that could help. *Waiting*: some of its pods
do not exist yet, and the engine tries it again when more appear. Nothing is polled.
"""

import heapq
from collections.abc import Collection
from enum import StrEnum

from topo_scheduler.scheduling.queueing.fair_queue import FairnessLimits, FairWorkloadQueue, HeldShares, Order


class Place(StrEnum):
    """Place of a workload in the queue. The values are kube-scheduler's names where it has one."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    UNSCHEDULABLE = "unschedulable"
    WAITING = "gated"


class Queue:
    """All workloads with pending members. Each is in one place."""

    def __init__(self, shares: HeldShares | None = None, fairness: FairnessLimits | None = None) -> None:
        self._fair_queue = FairWorkloadQueue(shares, fairness)
        self._place: dict[str, Place] = {}
        self._ticket: dict[str, int] = {}
        self._due: list[tuple[float, str, int]] = []
        self._tickets = 0
        self._orders: dict[str, Order] = {}
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._place)

    def place(self, id_: str) -> Place | None:
        """Return the place of a workload, or None if it is not in the queue."""
        return self._place.get(id_)

    @property
    def has_active(self) -> bool:
        """Whether a workload may be ready now. True may be wrong once; False never is."""
        return self._fair_queue.any_ready

    def activate(self, order: Order) -> None:
        """Make a workload ready to be tried."""
        if self._place.get(order.id) is Place.ACTIVE and self._orders[order.id] == order:
            return
        self._put(order, Place.ACTIVE)
        self._fair_queue.put(order)

    def wake(self, id_: str) -> None:
        """Make an unschedulable workload, or one in backoff, ready to be tried, with the order that it had then."""
        self.activate(self._orders[id_])

    def back_off(self, order: Order, until: float) -> None:
        """Try a workload again at a time in seconds."""
        self._put(order, Place.BACKOFF, until)

    def mark_unschedulable(self, order: Order, until: float | None = None) -> None:
        """Try a workload again once `activate` is called for it, or a time in seconds comes."""
        self._put(order, Place.UNSCHEDULABLE, until)

    def wait(self, order: Order, until: float | None) -> None:
        """Keep a workload that lacks pods. It becomes due at ``until``, so that this can be reported, or never."""
        self._put(order, Place.WAITING, until)

    def until(self, id_: str) -> float | None:
        """Return when an unschedulable workload, or one in backoff, becomes due; None if only an event makes it so."""
        return self._until.get(id_)

    def remove(self, id_: str) -> None:
        """Forget a workload."""
        if self._place.pop(id_, None) is None:
            return
        self._fair_queue.drop(id_)
        self._ticket.pop(id_, None)
        self._orders.pop(id_, None)
        self._until.pop(id_, None)

    def unschedulable(self) -> list[str]:
        """Return the unschedulable workloads, those of higher priority first."""
        ids = (id_ for id_, place in self._place.items() if place is Place.UNSCHEDULABLE)
        return sorted(ids, key=lambda id_: -self._orders[id_].priority)

    def pop(self, now: float) -> str | None:
        """Remove and return the next workload to try. The caller must call `tried` with the result."""
        self._release_due(now)
        id_ = self._fair_queue.take(now)
        if id_ is not None:
            self.remove(id_)
        return id_

    def tried(self, *, placed: int, operations: int = 0, charged: int = 0) -> None:
        """Record the result of the attempt on the workload that was popped last: how many pods it ``placed``.

        It took ``operations``. Its namespace is ``charged`` those of all but a search for victims that found some.
        """
        self._fair_queue.tried(placed=placed, operations=operations, charged=charged)

    def hold(self, namespaces: Collection[str], until: float) -> None:
        """Skip these namespaces until a time in seconds, and those of the last call no longer."""
        self._fair_queue.hold(namespaces, until)

    def take_slowed(self) -> list[str]:
        """Return the namespaces that are skipped because their attempts are expensive, each once in a while."""
        return self._fair_queue.take_slowed()

    def configure(self, fairness: FairnessLimits) -> None:
        """Apply a new configuration."""
        self._fair_queue.configure(fairness)

    def next_due(self) -> float | None:
        """Return when the next workload becomes due, or None if none will."""
        times = (self._next_pause_end(), self._fair_queue.next_due())
        return min((time for time in times if time is not None), default=None)

    def _next_pause_end(self) -> float | None:
        while self._due and self._ticket.get(self._due[0][1]) != self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _release_due(self, now: float) -> None:
        while (due := self._next_pause_end()) is not None and due <= now:
            _, id_, _ = heapq.heappop(self._due)
            self.activate(self._orders[id_])

    def _put(self, order: Order, place: Place, until: float | None = None) -> None:
        # Entries stay in the heaps when a workload moves: their ticket is no longer valid.
        if place is not Place.ACTIVE:  # otherwise `activate` replaces its former entry
            self._fair_queue.drop(order.id)
        self._tickets += 1
        self._ticket[order.id] = self._tickets
        self._place[order.id] = place
        self._orders[order.id] = order
        if until is None:
            self._until.pop(order.id, None)
        else:
            self._until[order.id] = until
            heapq.heappush(self._due, (until, order.id, self._tickets))
            if len(self._due) > 2 * len(self._until) + 64:
                # A void entry would otherwise stay until it is the first, for days if it is due in days.
                self._due = [entry for entry in self._due if self._ticket.get(entry[1]) == entry[2]]
                heapq.heapify(self._due)
