"""How much memory the Migrations take that are not over: tenants create as many as they like, and write what they like.

One that would take a namespace beyond its cap is refused. So no more is kept than the caps, however many there are.
"""

from typing import Final

from topo_scheduler.api.migrations import Migration

BASE_BYTES: Final = 2_048
"""What a Migration takes that names no pod."""
POD_BYTES: Final = 160
MOST_OF_NAMESPACE_BYTES: Final = 16 * 1024 * 1024
"""About 60,000 pods, or 7,000 Migrations of one pod."""
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of all together: beyond it, namespaces with less than an equal share still get theirs."""


def bytes_of(migration: Migration) -> int:
    """Return about how many bytes what users wrote into a Migration takes in memory."""
    spec = migration.spec
    pods = sum(POD_BYTES + len(pod.name) + len(pod.uid) for pod in spec.pods)
    avoid = sum(POD_BYTES + len(name) for name in spec.avoid)
    return BASE_BYTES + pods + avoid + len(spec.cause) + len(spec.reason) + len(spec.since) + len(spec.makes_room_for)


class MigrationMemory:
    """Bytes by namespace and name, and of each namespace."""

    def __init__(self) -> None:
        self._bytes: dict[str, int] = {}
        self._of_namespace: dict[str, int] = {}
        self._total = 0

    def hold(self, migration: Migration) -> None:
        """Count a Migration as it is now."""
        self.release(migration.key)
        size, namespace = bytes_of(migration), migration.metadata.namespace
        self._bytes[migration.key] = size
        self._of_namespace[namespace] = self._of_namespace.get(namespace, 0) + size
        self._total += size

    def release(self, key: str) -> None:
        """Count a Migration no more."""
        size = self._bytes.pop(key, 0)
        if not size:
            return
        namespace = key.partition("/")[0]
        self._total -= size
        self._of_namespace[namespace] -= size
        if not self._of_namespace[namespace]:
            del self._of_namespace[namespace]

    def lacking(self, migration: Migration) -> str:
        """Return why a Migration can't be kept as it is now; empty where it can."""
        namespace, known = migration.metadata.namespace, self._bytes.get(migration.key, 0)
        size = bytes_of(migration)
        if size <= known:
            return ""
        most, theirs = MOST_OF_NAMESPACE_BYTES, self._of_namespace.get(namespace, 0) - known + size
        if self._total - known + size > MOST_BYTES:
            most = min(most, MOST_BYTES // len(self._of_namespace.keys() | {namespace}))
        if theirs <= most:
            return ""
        return (
            f"the Migrations of namespace {namespace} that are not over would take {theirs:,} bytes with this one, of"
            f" {most:,} at most; delete some of them, or create it again once some are over"
        )
