"""Who is next: a machine without I/O that orders workloads by priority, then age.

A workload is in one of four places: *active* (to be tried), *backing off* (a bind failed; tried again at a time),
*parked* (found unschedulable; tried again when something happens that could help) and *waiting* (not all of its pods
exist; tried again when more come). Nothing is polled.
"""

import heapq
from dataclasses import dataclass
from enum import StrEnum


class Place(StrEnum):
    """Where in the queue a workload is; the names are kube-scheduler's where it has one."""

    ACTIVE = "active"
    BACKOFF = "backoff"
    PARKED = "unschedulable"
    WAITING = "gated"


@dataclass(frozen=True, slots=True)
class Order:
    """Sort key of a workload: the higher priority first, then the older, then the id."""

    priority: int
    created: float
    id: str

    @property
    def key(self) -> tuple[int, float, str]:
        """Lowest first."""
        return (-self.priority, self.created, self.id)


class Queue:
    """All workloads with pending members, each in one place."""

    def __init__(self) -> None:
        self._place: dict[str, Place] = {}
        self._ticket: dict[str, int] = {}
        self._active: list[tuple[tuple[int, float, str], int]] = []
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
        """Whether any workload may be ready to be tried; it may say yes once too often."""
        return bool(self._active)

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
        heapq.heappush(self._active, (order.key, self._ticket[order.id]))

    def back_off(self, order: Order, until: float) -> None:
        """Try a workload again at a time in seconds."""
        self._put(order, Place.BACKOFF, until)

    def park(self, order: Order) -> None:
        """Set a workload aside until `activate` is called for it."""
        self._put(order, Place.PARKED)

    def wait(self, order: Order, until: float | None) -> None:
        """Set a workload aside that lacks pods; it is due at a time, so that its waiting can be told, or never."""
        self._put(order, Place.WAITING, until)

    def until(self, id_: str) -> float | None:
        """Return when a workload that is set aside becomes due, None when it does not by itself."""
        return self._until.get(id_)

    def remove(self, id_: str) -> None:
        """Forget a workload."""
        self._place.pop(id_, None)
        self._ticket.pop(id_, None)
        self._orders.pop(id_, None)
        self._until.pop(id_, None)

    def parked(self) -> list[str]:
        """Return the parked workloads in the order in which they would be tried."""
        ids = [id_ for id_, place in self._place.items() if place is Place.PARKED]
        return sorted(ids, key=lambda id_: self._orders[id_].key)

    def pop(self, now: float) -> str | None:
        """Take the next workload to be tried out of the queue."""
        self._release_due(now)
        while self._active:
            (_, _, id_), ticket = heapq.heappop(self._active)
            if self._ticket.get(id_) == ticket:
                self.remove(id_)
                return id_
        return None

    def next_due(self) -> float | None:
        """Return when the next workload becomes due, None when none will."""
        while self._due and self._ticket.get(self._due[0][1]) != self._due[0][2]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _release_due(self, now: float) -> None:
        while (due := self.next_due()) is not None and due <= now:
            _, id_, _ = heapq.heappop(self._due)
            self.activate(self._orders[id_])

    def _put(self, order: Order, place: Place, until: float | None = None) -> None:
        # Entries of the heaps are not removed when a workload moves: their ticket has expired.
        self._tickets += 1
        self._ticket[order.id] = self._tickets
        self._place[order.id] = place
        self._orders[order.id] = order
        if until is None:
            self._until.pop(order.id, None)
        else:
            self._until[order.id] = until
            heapq.heappush(self._due, (until, order.id, self._tickets))
