"""Budgets of memory for what tenants can make many of: bytes of each namespace, and of all together."""

from collections import Counter
from typing import Final

MAX_WARNED_NAMESPACES: Final = 1_024
"""Namespaces that are remembered as warned; beyond this number all of them may be warned again."""


class NamespaceBytes:
    """Bytes by namespace. A namespace has room up to its own limit, and up to an equal share if all reach the total.

    So a namespace that is within its share never loses anything because of what others create.
    """

    def __init__(self, limit: int, total_limit: int) -> None:
        self._limit = limit
        self._total_limit = total_limit
        self._bytes_of: Counter[str] = Counter()
        self._bytes = 0
        self._warned: dict[str, None] = {}

    def bytes_of(self, namespace: str) -> int:
        """Return the bytes of a namespace."""
        return self._bytes_of.get(namespace, 0)

    def has_room(self, namespace: str, size: int) -> bool:
        """Return whether a namespace may take this many bytes more; what it has already it keeps."""
        if size <= 0:
            return True
        taken = self.bytes_of(namespace) + size
        if self._bytes + size <= self._total_limit:
            return taken <= self._limit
        namespaces = len(self._bytes_of) + (namespace not in self._bytes_of)
        return taken <= min(self._limit, self._total_limit // namespaces)

    def change(self, namespace: str, size: int) -> None:
        """Take bytes for a namespace, or give them back if ``size`` is negative."""
        if not size:
            return
        self._bytes += size
        self._bytes_of[namespace] += size
        if not self._bytes_of[namespace]:
            del self._bytes_of[namespace]
        if size < 0 and self.bytes_of(namespace) < self._limit // 2:
            self._warned.pop(namespace, None)

    def deserves_warning(self, namespace: str) -> bool:
        """Return whether a namespace without room was not warned yet, since it last had half its limit; record it."""
        if namespace in self._warned:
            return False
        if len(self._warned) >= MAX_WARNED_NAMESPACES:
            self._warned.clear()
        self._warned[namespace] = None
        return True
