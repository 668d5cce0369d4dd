"""Follows what pods with claims need: volumes with their claims and classes, devices with theirs; and NUMA nodes.

Until a kind has been listed (it may be forbidden or not served), its store reports it as unlisted. Pods with such
claims then stay pending; other pods are not affected.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.connection.resources import (
    ATTACHMENTS,
    CLAIMS,
    CSI_CAPACITIES,
    CSI_DRIVERS,
    CSI_NODES,
    DEVICE_CLASSES,
    NODE_TOPOLOGIES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    STORAGE_CLASSES,
    VOLUMES,
    Object,
    Resource,
)
from topo_scheduler.kube.reading.sinks import Deleted
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.pods.numa_zones import NumaZones
from topo_scheduler.state.storage.storage_objects import Storage

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item", bound=Object)


class ObjectStore(Protocol):
    """Where objects of some kinds are kept."""

    unlisted: dict[str, bool]

    def put(self, table: dict[Any, Any], key: Any, new: Any, /) -> None:
        """Store an object that appeared or changed."""

    def drop(self, table: dict[Any, Any], key: Any, /) -> None:
        """Remove an object."""

    def listed(self, resource: str, /) -> None:
        """Record that the list of a resource is complete."""

    def refused(self, resource: str, /) -> None:
        """Record that the API server refuses to list a resource."""


class StoreSink(Generic[Key, Item]):
    """Stores the objects of one kind."""

    def __init__(
        self,
        store: ObjectStore,
        resource: Resource[Item],
        table: dict[Key, Item],
        key: Callable[[ObjectMeta | Deleted], Key],
        changed: Callable[[], None],
    ) -> None:
        self.resource = resource
        self._store = store
        self._table = table
        self._key = key
        self._changed = changed
        store.unlisted[resource.described] = False

    def applied(self, objects: Sequence[Item]) -> None:
        """These objects exist now, in this state."""
        for item in objects:
            self._store.put(self._table, self._key(item.metadata), item)
        self._changed()

    def deleted(self, references: Sequence[Deleted]) -> None:
        """These objects no longer exist."""
        for reference in references:
            key = self._key(reference)
            known = self._table.get(key)
            if known is None or not reference.uid or known.metadata.uid in ("", reference.uid):
                self._store.drop(self._table, key)
        self._changed()

    def synced(self) -> None:
        """A complete list has been handed over."""
        self._store.listed(self.resource.described)
        self._changed()

    def refused(self) -> None:
        """The API server refuses to list the kind."""
        self._store.refused(self.resource.described)
        self._changed()


def store_sinks(
    storage: Storage,
    inventory: DeviceInventory,
    changed: Callable[[], None] = lambda: None,
    numa_zones: NumaZones | None = None,
) -> tuple[StoreSink[Any, Any], ...]:
    """Return the sinks for the objects of each kind; from now on no kind counts as listed.

    Args:
        storage: the volumes to keep up to date.
        inventory: the devices to keep up to date.
        changed: called after each change.
        numa_zones: the NUMA nodes of machines to keep up to date; without them their kind is left out.
    """

    def named(store: ObjectStore, kind: Resource[Item], table: dict[str, Item]) -> StoreSink[str, Item]:
        return StoreSink(store, kind, table, lambda meta: meta.name, changed)

    def placed(
        store: ObjectStore, kind: Resource[Item], table: dict[tuple[str, str], Item]
    ) -> StoreSink[tuple[str, str], Item]:
        return StoreSink(store, kind, table, lambda meta: (meta.namespace, meta.name), changed)

    return (
        placed(storage, CLAIMS, storage.claims),
        named(storage, VOLUMES, storage.volumes),
        named(storage, STORAGE_CLASSES, storage.classes),
        named(storage, CSI_NODES, storage.csi_nodes),
        named(storage, CSI_DRIVERS, storage.drivers),
        placed(storage, CSI_CAPACITIES, storage.capacities),
        named(storage, ATTACHMENTS, storage.attachments),
        named(inventory, DEVICE_CLASSES, inventory.classes),
        named(inventory, RESOURCE_SLICES, inventory.slices),
        placed(inventory, RESOURCE_CLAIMS, inventory.claims),
        *((named(numa_zones, NODE_TOPOLOGIES, numa_zones.objects),) if numa_zones is not None else ()),
    )
