"""Pending writes of many namespaces, oldest first, of which a namespace gets its share.

See `NamespaceShares` and `WritePace`.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from topo_scheduler.kube.connection.fair_slots import HANGING_SLOTS, MARKED_SECONDS
from topo_scheduler.kube.connection.namespace_shares import NamespaceShares
from topo_scheduler.kube.writing.write_pace import WritePace

K = TypeVar("K")
T = TypeVar("T")

STALE_ENTRIES: Final = 64
"""Outdated entries that a heap may hold in addition to twice the number of valid ones."""


@dataclass(slots=True)
class _Entry(Generic[T]):
    namespace: str
    since: float
    number: int
    item: T


class _Heads:
    """Heap of the first items of those namespaces that may have one more in progress.

    Outdated entries are skipped when they reach the top.
    """

    def __init__(self, may_go: Callable[[str], bool]) -> None:
        self._may_go = may_go
        self._heap: list[tuple[float, int, str]] = []
        self._offered: dict[str, int] = {}
        """Number of the last entry of each namespace that was pushed and not found outdated since."""

    def offer(self, namespace: str, since: float, number: int) -> None:
        """Make the first item of a namespace available, if the namespace may have one more in progress."""
        if self._offered.get(namespace) == number or not self._may_go(namespace):
            return
        self._offered[namespace] = number
        heapq.heappush(self._heap, (since, number, namespace))
        if len(self._heap) > 2 * len(self._offered) + STALE_ENTRIES:
            self._heap = [item for item in self._heap if self._offered.get(item[2]) == item[1]]
            heapq.heapify(self._heap)

    def forget(self, namespace: str) -> None:
        """Note that a namespace has no item any more."""
        self._offered.pop(namespace, None)

    def first(self, first_of: Callable[[str], tuple[float, int] | None]) -> tuple[float, str] | None:
        """Return since when the next item is queued, and its namespace; ``first_of`` gives the first of a namespace."""
        while self._heap:
            since, number, namespace = self._heap[0]
            if first_of(namespace) == (since, number) and self._may_go(namespace):
                return since, namespace
            heapq.heappop(self._heap)
            if self._offered.get(namespace) == number:
                del self._offered[namespace]
        return None


class FairQueue(Generic[K, T]):
    """A queue that skips a namespace that has its share in progress, however old its items are.

    Only one item of a key is in progress at a time. Another item with that key stays queued until the first is done.
    """

    def __init__(self, per_namespace: int, reserved: int = 0) -> None:
        """Create an empty queue.

        Args:
            per_namespace: the most items in progress per namespace.
            reserved: idle slots that only namespaces without an item in progress may take.
        """
        self._reserved = reserved
        self._shares = NamespaceShares(
            reserved=reserved, per_namespace=per_namespace, hanging=HANGING_SLOTS, marked_seconds=MARKED_SECONDS
        )
        self._pace = WritePace()
        self._entries: dict[K, _Entry[T]] = {}
        self._behind: dict[K, _Entry[T]] = {}
        """Items queued behind an item in progress with the same key."""
        self._by_namespace: dict[str, list[tuple[float, int, K]]] = {}
        """A heap for each namespace. Items removed by other means are skipped when they reach the top."""
        self._heads = _Heads(lambda namespace: self._may_go(namespace, reserved + 1))
        """Of the namespaces that may have one more in progress while more than the reserve is idle."""
        self._first_heads = _Heads(lambda namespace: self._may_go(namespace, reserved))
        """Of those that may take one of the reserve."""
        self._counts: Counter[str] = Counter()
        """Queued items by namespace."""
        self._under_way: dict[K, tuple[str, T]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._entries) + len(self._behind)

    def count(self, namespace: str) -> int:
        """Return the number of queued items of a namespace."""
        return self._counts[namespace]

    def keys(self) -> set[K]:
        """Return the keys of items that are queued or in progress."""
        return self._entries.keys() | self._behind.keys() | self._under_way.keys()

    def get(self, key: K) -> T | None:
        """Return the item queued under a key."""
        entry = self._entries.get(key) or self._behind.get(key)
        return entry.item if entry is not None else None

    def under_way(self, key: K) -> T | None:
        """Return the item of a key that is in progress."""
        taken = self._under_way.get(key)
        return taken[1] if taken is not None else None

    def namespace_of(self, key: K) -> str:
        """Return the namespace of an item in progress."""
        return self._under_way[key][0]

    def put(self, key: K, namespace: str, since: float, item: T) -> None:
        """Queue an item and replace the one queued under its key; ``since``, in seconds, decides the order."""
        self.pop(key)
        self._counts[namespace] += 1
        entry = _Entry(namespace, since, next(self._numbers), item)
        if key in self._under_way:
            self._behind[key] = entry
        else:
            self._line_up(key, entry)

    def pop(self, key: K) -> T | None:
        """Remove the item queued under a key, and return it."""
        entry = self._entries.pop(key, None) or self._behind.pop(key, None)
        if entry is None:
            return None
        self._counts[entry.namespace] -= 1
        if not self._counts[entry.namespace]:
            del self._counts[entry.namespace]
        self._offer(entry.namespace)
        return entry.item

    def pop_of_most(self) -> T | None:
        """Remove and return the oldest item of the namespace with the most queued items, regardless of its bound."""
        for namespace in sorted(self._by_namespace, key=lambda name: (-self._counts[name], name)):
            if (first := self._first(namespace)) is not None:
                return self.pop(first[2])
        return None

    def oldest(self, idle: int | None = None) -> float | None:
        """Return since when the next available item is queued, in seconds; None if no item is available.

        ``idle``: how many slots are idle; None if more than the reserve.
        """
        following = self._next(idle)
        return None if following is None else following[0]

    def hangs(self, namespace: str) -> None:
        """Mark a namespace of which a write hangs while the API server answers others."""
        self._shares.hangs(namespace)

    def take(self, idle: int | None = None) -> tuple[K, T]:
        """Take the next item, if `oldest` returns one; the caller must call `done` with its key."""
        following = self._next(idle)
        if following is None:
            raise LookupError("nothing may be taken")
        namespace = following[1]
        first = self._first(namespace)
        assert first is not None
        key, item = first[2], self._entries[first[2]].item
        self._under_way[key] = namespace, item
        self._shares.take(namespace)
        self.pop(key)
        return key, item

    def done(self, key: K, received: int = 0, seconds: float = 0.0) -> float:
        """Note that a taken item has ended; ``received``: bytes of the answers, ``seconds``: how long it took.

        If these begin or prolong a rest of the namespace, return its seconds. Then the caller must call `rested`.
        """
        namespace, _ = self._under_way.pop(key)
        self._shares.give_back(namespace)
        rest = self._pace.wrote(namespace, received, seconds)
        if (entry := self._behind.pop(key, None)) is not None:
            self._line_up(key, entry)
        self._offer(namespace)
        return rest

    def rested(self, namespace: str) -> None:
        """Make the first item of a namespace available, if its rest is over."""
        self._offer(namespace)

    def _may_go(self, namespace: str, idle: int) -> bool:
        holds = namespace in self._shares.holders
        return self._pace.may_write(namespace, holds=holds) and self._shares.may_take(namespace, idle)

    def _line_up(self, key: K, entry: _Entry[T]) -> None:
        self._entries[key] = entry
        heap = self._by_namespace.setdefault(entry.namespace, [])
        heapq.heappush(heap, (entry.since, entry.number, key))
        if len(heap) > 2 * self._counts[entry.namespace] + STALE_ENTRIES:
            heap[:] = [item for item in heap if (known := self._entries.get(item[2])) and known.number == item[1]]
            heapq.heapify(heap)
        self._offer(entry.namespace)

    def _offer(self, namespace: str) -> None:
        """Make the first item of a namespace available, if the namespace has not its share in progress."""
        first = self._first(namespace)
        for heads in (self._heads, self._first_heads) if self._reserved else (self._heads,):
            if first is not None:
                heads.offer(namespace, *first[:2])
            else:
                heads.forget(namespace)

    def _next(self, idle: int | None) -> tuple[float, str] | None:
        for namespace in (*self._shares.end_marks(), *self._pace.forgotten()):
            self._offer(namespace)
        heads = self._heads if idle is None or idle > self._reserved else self._first_heads
        return heads.first(self._place_of) if idle != 0 else None

    def _place_of(self, namespace: str) -> tuple[float, int] | None:
        first = self._first(namespace)
        return first[:2] if first is not None else None

    def _first(self, namespace: str) -> tuple[float, int, K] | None:
        heap = self._by_namespace.get(namespace, [])
        while heap:
            entry = self._entries.get(heap[0][2])
            if entry is not None and entry.number == heap[0][1]:
                return heap[0]
            heapq.heappop(heap)
        self._by_namespace.pop(namespace, None)
        return None
