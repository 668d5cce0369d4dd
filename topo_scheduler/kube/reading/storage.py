"""Follows storage objects: claims, volumes, classes, and the CSI drivers' reports on nodes and capacity.

Only pods with claims need them. Until a kind has been listed (it may be forbidden or not served), the storage
reports it as unlisted. Pods with claims then stay pending; other pods are not affected.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.connection.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    STORAGE_CLASSES,
    VOLUMES,
    Object,
    Resource,
)
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.state.storage.storage_objects import Storage

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item", bound=Object)


class StorageSink(Generic[Key, Item]):
    """Stores the objects of one kind."""

    def __init__(
        self,
        storage: Storage,
        resource: Resource[Item],
        table: dict[Key, Item],
        key: Callable[[ObjectMeta | Deleted], Key],
        changed: Callable[[], None],
    ) -> None:
        self.resource = resource
        self._storage = storage
        self._table = table
        self._key = key
        self._changed = changed
        storage.unlisted[resource.described] = None

    def applied(self, objects: Sequence[Item]) -> None:
        """These objects exist now, in this state."""
        for item in objects:
            self._storage.put(self._table, self._key(item.metadata), item)
        self._changed()

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These objects no longer exist."""
        for reference in references:
            self._storage.drop(self._table, self._key(reference))
        self._changed()

    def synced(self) -> None:
        """A complete list has been handed over."""
        self._storage.listed(self.resource.described)
        self._changed()


def storage_sinks(storage: Storage, changed: Callable[[], None] = lambda: None) -> tuple[StorageSink[Any, Any], ...]:
    """Return the sinks for the objects of each kind; from now on no kind counts as listed.

    Args:
        storage: the storage to keep up to date.
        changed: called after each change.
    """

    def named(kind: Resource[Item], table: dict[str, Item]) -> StorageSink[str, Item]:
        return StorageSink(storage, kind, table, lambda meta: meta.name, changed)

    def placed(kind: Resource[Item], table: dict[tuple[str, str], Item]) -> StorageSink[tuple[str, str], Item]:
        return StorageSink(storage, kind, table, lambda meta: (meta.namespace, meta.name), changed)

    return (
        placed(CLAIMS, storage.claims),
        named(VOLUMES, storage.volumes),
        named(STORAGE_CLASSES, storage.classes),
        named(CSI_NODES, storage.csi_nodes),
        named(CSI_DRIVERS, storage.drivers),
        placed(CSI_CAPACITIES, storage.capacities),
        named(ATTACHMENTS, storage.attachments),
    )
