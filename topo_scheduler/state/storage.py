"""Claims, volumes, storage classes and CSI facts by name, and what Kubernetes reads from one of them."""

from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.api.quantity import QuantityError, parse_quantity
from topo_scheduler.api.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"


@dataclass(slots=True)
class Storage:
    """Everything that is known of storage. Claims by (namespace, name), all else by name."""

    claims: dict[tuple[str, str], PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    csi_nodes: dict[str, CSINode] = field(default_factory=dict)
    drivers: dict[str, CSIDriver] = field(default_factory=dict)
    capacities: dict[tuple[str, str], CSIStorageCapacity] = field(default_factory=dict)
    attachments: dict[str, VolumeAttachment] = field(default_factory=dict)

    def volumes_of_class(self, name: str) -> list[PersistentVolume]:
        """Return the volumes of a storage class, smallest first."""
        found = [volume for volume in self.volumes.values() if class_of_volume(volume) == name]
        return sorted(found, key=lambda volume: (size_of(volume.spec.capacity.get("storage")), volume.metadata.name))


def class_of_claim(claim: PersistentVolumeClaim) -> str:
    """Return the storage class of a claim, empty where there is none."""
    return claim.metadata.annotations.get(BETA_CLASS, claim.spec.storage_class_name or "")


def class_of_volume(volume: PersistentVolume) -> str:
    """Return the storage class of a volume, empty where there is none."""
    return volume.metadata.annotations.get(BETA_CLASS, volume.spec.storage_class_name)


def size_of(quantity: str | int | float | None) -> int:
    """Return bytes; 0 where there is no quantity or it can't be read."""
    if quantity is None:
        return 0
    try:
        return parse_quantity(quantity, 1)
    except QuantityError:
        return 0


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Return whether a claim has its volume for good."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def belongs(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether a volume is reserved for a claim."""
    reference, metadata = volume.spec.claim_ref, claim.metadata
    return (
        reference is not None
        and (reference.namespace, reference.name) == (metadata.namespace, metadata.name)
        and reference.uid in ("", metadata.uid)
    )
