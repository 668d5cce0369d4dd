"""Who waits for what: a machine without I/O. Whose turn it is among those that are ready is said by `turns`.

A workload is in one of four places: *active* (to be tried), *backing off* (a bind failed; tried again at a time),
*parked* (found unschedulable; tried again when something happens that could help) and *waiting* (not all of its pods
exist; tried again when more come). Nothing is polled.
"""

import heapq
from enum import StrEnum

from topo_scheduler.scheduling.queueing.turns import FairnessLimits, HeldShares, Order, Turns


class Place(StrEnum):
    """Where in the queue a workload is; the names are kube-scheduler's where it has one."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    PARKED = "unschedulable"
    WAITING = "gated"


class Queue:
    """All workloads with pending members, each in one place."""

    def __init__(self, shares: HeldShares | None = None, fairness: FairnessLimits | None = None) -> None:
        self._turns = Turns(shares, fairness)
        self._place: dict[str, Place] = {}
        self._ticket: dict[str, int] = {}
        self._due: list[tuple[float, str, int]] = []
        self._tickets = 0
        self._orders: dict[str, Order] = {}
        self._until: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._place)

    def place(self, id_: str) -> Place | None:
        """Return where a workload is, None when it is not in the queue."""
        return self._place.get(id_)

    @property
    def has_active(self) -> bool:
        """Whether any workload may be tried now; it may say yes once too often."""
        return self._turns.any_ready

    def depths(self) -> dict[Place, int]:
        """Return how many workloads are in each place."""
        counts = dict.fromkeys(Place, 0)
        for place in self._place.values():
            counts[place] += 1
        return counts

    def activate(self, order: Order) -> None:
        """Make a workload ready to be tried."""
        if self._place.get(order.id) is Place.ACTIVE and self._orders[order.id] == order:
            return
        self._put(order, Place.ACTIVE)
        self._turns.put(order)

    def wake(self, id_: str) -> None:
        """Make a workload ready to be tried that was set aside, in the turn it had then."""
        self.activate(self._orders[id_])

    def back_off(self, order: Order, until: float) -> None:
        """Try a workload again at a time in seconds."""
        self._put(order, Place.BACKOFF, until)

    def park(self, order: Order, until: float | None = None) -> None:
        """Set a workload aside until `activate` is called for it, or a time in seconds comes."""
        self._put(order, Place.PARKED, until)

    def wait(self, order: Order, until: float | None) -> None:
        """Set a workload aside that lacks pods; it is due at a time, so that its waiting can be told, or never."""
        self._put(order, Place.WAITING, until)

    def until(self, id_: str) -> float | None:
        """Return when a workload that is set aside becomes due, None when it does not by itself."""
        return self._until.get(id_)

    def remove(self, id_: str) -> None:
        """Forget a workload."""
        self._turns.drop(id_)
        self._place.pop(id_, None)
        self._ticket.pop(id_, None)
        self._orders.pop(id_, None)
        self._until.pop(id_, None)

    def parked(self) -> list[str]:
        """Return the parked workloads. In no order: their turns come when they are active."""
        return [id_ for id_, place in self._place.items() if place is Place.PARKED]

    def pop(self, now: float) -> str | None:
        """Take the next workload to be tried out of the queue; `tried` is to be called with how that ended."""
        self._release_due(now)
        id_ = self._turns.take(now)
        if id_ is not None:
            self.remove(id_)
        return id_

    def tried(self, *, placed: bool, operations: int = 0) -> None:
        """Note how the attempt ended on the workload that was popped last, and how many operations it took."""
        self._turns.tried(placed=placed, operations=operations)

    def configure(self, fairness: FairnessLimits) -> None:
        """Take over a new configuration."""
        self._turns.configure(fairness)

    def next_due(self) -> float | None:
        """Return when the next workload becomes due, None when none will."""
        times = (self._next_set_aside(), self._turns.next_due())
        return min((at for at in times if at is not None), default=None)

    def _next_set_aside(self) -> float | None:
        while self._due and self._ticket.get(self._due[0][1]) != self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _release_due(self, now: float) -> None:
        while (due := self._next_set_aside()) is not None and due <= now:
            _, id_, _ = heapq.heappop(self._due)
            self.activate(self._orders[id_])

    def _put(self, order: Order, place: Place, until: float | None = None) -> None:
        # Entries of the heaps are not removed when a workload moves: their ticket has expired.
        self._turns.drop(order.id)
        self._tickets += 1
        self._ticket[order.id] = self._tickets
        self._place[order.id] = place
        self._orders[order.id] = order
        if until is None:
            self._until.pop(order.id, None)
        else:
            self._until[order.id] = until
            heapq.heappush(self._due, (until, order.id, self._tickets))
