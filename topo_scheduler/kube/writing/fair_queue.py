"""Pending writes of many namespaces, oldest first, with a bound on concurrent writes per namespace."""

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

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


class FairQueue(Generic[K, T]):
    """A queue that skips a namespace at its concurrency bound, however old its items are.

    Only one item of a key is in progress at a time. Another item with that key stays queued until the first is done.
    """

    def __init__(self, each: int) -> None:
        """``each`` is the most items in progress per namespace."""
        self._each = each
        self._entries: dict[K, _Entry[T]] = {}
        self._behind: dict[K, _Entry[T]] = {}
        """Items queued behind an item in progress with the same key."""
        self._by_namespace: dict[str, list[tuple[float, int, K]]] = {}
        """A heap for each namespace. Items removed by other means are skipped when they reach the top."""
        self._heads: list[tuple[float, int, str]] = []
        """Heap of the first item of each namespace below its bound; outdated entries are skipped as well."""
        self._offered: dict[str, int] = {}
        """Number of the last entry of each namespace that was pushed to that heap and not found outdated since."""
        self._counts: Counter[str] = Counter()
        """Queued items by namespace."""
        self._under_way: dict[K, tuple[str, T]] = {}
        self._held: Counter[str] = Counter()
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

    def oldest(self) -> float | None:
        """Return since when the next available item is queued, in seconds; None if no item is available."""
        while self._heads:
            since, number, namespace = self._heads[0]
            first = self._first(namespace)
            if first is not None and first[:2] == (since, number) and self._held[namespace] < self._each:
                return since
            heapq.heappop(self._heads)
            if self._offered.get(namespace) == number:
                del self._offered[namespace]
        return None

    def take(self) -> tuple[K, T]:
        """Take the next item, if `oldest` returns one; the caller must call `done` with its key."""
        if self.oldest() is None:
            raise LookupError("nothing may be taken")
        namespace = self._heads[0][2]
        first = self._first(namespace)
        assert first is not None
        key, item = first[2], self._entries[first[2]].item
        self._under_way[key] = namespace, item
        self._held[namespace] += 1
        self.pop(key)
        return key, item

    def done(self, key: K) -> None:
        """Note that a taken item has ended."""
        namespace, _ = self._under_way.pop(key)
        self._held[namespace] -= 1
        if not self._held[namespace]:
            del self._held[namespace]
        if (entry := self._behind.pop(key, None)) is not None:
            self._line_up(key, entry)
        self._offer(namespace)

    def _line_up(self, key: K, entry: _Entry[T]) -> None:
        self._entries[key] = entry
        heap = self._by_namespace.setdefault(entry.namespace, [])
        heapq.heappush(heap, (entry.since, entry.number, key))
        if len(heap) > 2 * self._counts[entry.namespace] + STALE_ENTRIES:
            heap[:] = [item for item in heap if (known := self._entries.get(item[2])) and known.number == item[1]]
            heapq.heapify(heap)
        self._offer(entry.namespace)

    def _offer(self, namespace: str) -> None:
        """Make the first item of a namespace available, if the namespace is below its bound."""
        first = self._first(namespace)
        if first is None or self._held[namespace] >= self._each or self._offered.get(namespace) == first[1]:
            return
        self._offered[namespace] = first[1]
        heapq.heappush(self._heads, (first[0], first[1], namespace))
        if len(self._heads) > 2 * len(self._offered) + STALE_ENTRIES:
            self._heads = [item for item in self._heads if self._offered.get(item[2]) == item[1]]
            heapq.heapify(self._heads)

    def _first(self, namespace: str) -> tuple[float, int, K] | None:
        heap = self._by_namespace.get(namespace, [])
        while heap:
            entry = self._entries.get(heap[0][2])
            if entry is not None and entry.number == heap[0][1]:
                return heap[0]
            heapq.heappop(heap)
        self._by_namespace.pop(namespace, None)
        return None
