"""Memory of what users can make many of: a limit for each kind in a namespace, and one for all kinds together.

Beyond the latter, the namespace that takes most loses its newest objects, whatever others do. So a namespace within an
equal share loses nothing, and the sum never exceeds the limit.
"""

import heapq
from collections import Counter
from collections.abc import Hashable
from typing import Final

MAX_TENANT_BYTES: Final = 64 * 2**20
"""Memory of what all namespaces may have in the scheduler's state, in bytes."""
MAX_WARNED_NAMESPACES: Final = 1_024
"""Namespaces that are remembered as warned; beyond this number all of them may be warned again."""

ObjectKey = tuple[str, Hashable]
"""Namespace of an object, and what identifies it there among those of its kind."""


class TenantMemory:
    """Bytes of all kinds together, by namespace."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()
        self._kinds: list[MemoryOfKind] = []
        self.overflowed = False
        """Whether objects lost their room that their owners still have to reduce."""

    def kind(self, limit: int) -> "MemoryOfKind":
        """Return the account of a new kind of objects that takes at most ``limit`` bytes in a namespace."""
        kind = MemoryOfKind(self, limit)
        self._kinds.append(kind)
        return kind

    @property
    def taken_bytes(self) -> int:
        """Bytes of all objects."""
        return self._bytes

    def change(self, namespace: str, size: int) -> None:
        """Take bytes for a namespace, or give them back if ``size`` is negative; others lose what is too much."""
        self._add(namespace, size)
        if size < 0 or self._bytes <= self._limit:
            return
        self.overflowed = True
        self._lose_newest(min(self._bytes_of, key=lambda name: (-self._bytes_of[name], name)))
        if self._bytes <= self._limit:
            return  # mostly, one object is enough
        largest_first = [(-taken, name) for name, taken in self._bytes_of.items()]
        heapq.heapify(largest_first)
        while self._bytes > self._limit:
            largest = largest_first[0][1]
            self._lose_newest(largest)
            heapq.heapreplace(largest_first, (-self._bytes_of.get(largest, 0), largest))

    def _lose_newest(self, namespace: str) -> None:
        """Take its room from the newest object of a namespace, of the kind that takes most there."""
        kind = max(self._kinds, key=lambda kind: kind.bytes_of(namespace))
        self._add(namespace, -kind.lose_newest(namespace))

    def _add(self, namespace: str, size: int) -> None:
        self._bytes += size
        self._bytes_of[namespace] += size
        if not self._bytes_of[namespace]:
            del self._bytes_of[namespace]


class MemoryOfKind:
    """Objects of one kind that count, by namespace."""

    def __init__(self, memory: TenantMemory, limit: int) -> None:
        self._memory = memory
        self._limit = limit
        self._sizes: dict[str, dict[Hashable, int]] = {}
        """Bytes by namespace and key, the newest objects last."""
        self._bytes_of: Counter[str] = Counter()
        self._lost: dict[ObjectKey, None] = {}
        self._warned: dict[str, None] = {}

    def __contains__(self, key: ObjectKey) -> bool:
        namespace, name = key
        return name in self._sizes.get(namespace, ())

    def bytes_of(self, namespace: str) -> int:
        """Return the bytes of a namespace."""
        return self._bytes_of.get(namespace, 0)

    def put(self, namespace: str, key: Hashable, size: int) -> bool:
        """Count an object in its present size; return whether it has room. Without room it does not count.

        An object that counts already may always become smaller. Others may lose their room: see `take_lost`.
        """
        self._lost.pop((namespace, key), None)
        sizes = self._sizes.get(namespace, {})
        growth = size - sizes.get(key, 0)
        if size <= 0 or (growth > 0 and self.bytes_of(namespace) + growth > self._limit):
            self.drop(namespace, key)
            return size <= 0
        sizes[key] = size  # it keeps its place among the others
        self._sizes[namespace] = sizes
        self._bytes_of[namespace] += growth
        self._memory.change(namespace, growth)
        return self._lost.pop((namespace, key), self) is self

    def drop(self, namespace: str, key: Hashable) -> None:
        """Forget an object."""
        self._lost.pop((namespace, key), None)
        if size := self._remove(namespace, key):
            self._memory.change(namespace, -size)
        if self.bytes_of(namespace) < self._limit // 2:
            self._warned.pop(namespace, None)

    def lose_newest(self, namespace: str) -> int:
        """Take its room from the newest object of a namespace; return its bytes."""
        key = next(reversed(self._sizes[namespace]))
        self._lost[namespace, key] = None
        return self._remove(namespace, key)

    def take_lost(self) -> list[ObjectKey]:
        """Return the objects that lost their room since the last call, and do not count any more."""
        lost, self._lost = list(self._lost), {}
        return lost

    def deserves_warning(self, namespace: str) -> bool:
        """Return whether a namespace without room was not warned yet, since it last had half its limit; record it."""
        if namespace in self._warned:
            return False
        if len(self._warned) >= MAX_WARNED_NAMESPACES:
            self._warned.clear()
        self._warned[namespace] = None
        return True

    def _remove(self, namespace: str, key: Hashable) -> int:
        sizes = self._sizes.get(namespace, {})
        size = sizes.pop(key, 0)
        if not sizes:
            self._sizes.pop(namespace, None)
        if size:
            self._bytes_of[namespace] -= size
            if not self._bytes_of[namespace]:
                del self._bytes_of[namespace]
        return size
