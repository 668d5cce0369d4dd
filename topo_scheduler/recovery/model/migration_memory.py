"""Limits the memory of unfinished Migrations: tenants create as many as they like, with any content.

A Migration that would take a namespace beyond its cap is refused. So memory stays within the caps.
"""

from typing import Final

from topo_scheduler.api.migrations import Migration

BASE_BYTES: Final = 2_048
"""Memory of a Migration that names no pod, in bytes."""
POD_BYTES: Final = 160
MAX_OF_NAMESPACE_BYTES: Final = 16 * 1024 * 1024
"""About 60,000 pods, or 7,000 Migrations of one pod."""
MAX_BYTES: Final = 32 * 1024 * 1024
"""Of all namespaces together, apart from what each may have in any case."""
GUARANTEED_BYTES: Final = 512 * 1024
"""What a namespace may have in any case. Unfinished Migrations keep what they have, so a share must not depend on how
many namespaces there are: the sum would have no limit."""


def bytes_of(migration: Migration) -> int:
    """Return about how many bytes of memory the user's input of a Migration takes."""
    spec = migration.spec
    pods = sum(POD_BYTES + len(pod.name) + len(pod.uid) for pod in spec.pods)
    avoid = sum(POD_BYTES + len(name) for name in spec.avoid)
    texts = (spec.cause, spec.reason, spec.since, spec.makes_room_for, spec.scheduler_name)
    return BASE_BYTES + pods + avoid + sum(map(len, texts))


class MigrationMemory:
    """Bytes by namespace and name, and of each namespace."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._of_namespace: dict[str, int] = {}
        self._total = 0

    def hold(self, migration: Migration) -> None:
        """Count a Migration in its current size."""
        self.release(migration.key)
        size, namespace = bytes_of(migration), migration.metadata.namespace
        self._bytes[migration.key] = size
        self._of_namespace[namespace] = self._of_namespace.get(namespace, 0) + size
        self._total += size

    def release(self, key: str) -> None:
        """Stop counting a Migration."""
        size = self._bytes.pop(key, 0)
        if not size:
            return
        namespace = key.partition("/")[0]
        self._total -= size
        self._of_namespace[namespace] -= size
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace]

    def lacking(self, migration: Migration) -> str:
        """Return why a Migration can't be kept in its current size; empty if it can."""
        namespace, previous = migration.metadata.namespace, self._bytes.get(migration.key, 0)
        size = bytes_of(migration)
        if size <= previous:
            return ""
        cap, needed = MAX_OF_NAMESPACE_BYTES, self._of_namespace.get(namespace, 0) - previous + size
        if self._total - previous + size > MAX_BYTES:
            cap = min(cap, GUARANTEED_BYTES)
        if needed <= cap:
            return ""
        return (
            f"the Migrations of namespace {namespace} that are not over would take {needed:,} bytes with this one, of"
            f" {cap:,} at most; delete some of them, or create it again once some are over"
        )
