"""Follows what is told of storage: claims, volumes, classes, and what CSI drivers say of nodes and of room.

Only pods with claims need it. Until a kind has been listed (it may be that it is not allowed, or not served), the
storage says so, and they wait; nobody else does.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, TypeVar

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.resources import (
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
from topo_scheduler.kube.sinks import Deleted
from topo_scheduler.state.storage import Storage

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item", bound=Object)


class StorageSink(Generic[Key, Item]):
    """Takes over the objects of one kind."""

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
        """These exist now, in this state."""
        for item in objects:
            self._storage.put(self._table, self._key(item.metadata), item)
        self._changed()

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These exist no more."""
        for reference in references:
            self._storage.drop(self._table, self._key(reference))
        self._changed()

    def synced(self) -> None:
        """Everything of a complete list has been handed over."""
        self._storage.listed(self.resource.described)
        self._changed()


def storage_sinks(storage: Storage, changed: Callable[[], None] = lambda: None) -> tuple[StorageSink[Any, Any], ...]:
    """Return who takes over the objects of each kind; none of them counts as listed from now on.

    Args:
        storage: what is kept up to date.
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
