"""The annotations of a PersistentVolumeClaim that are read."""

from typing import Final

from topo_scheduler.api.storage import PersistentVolumeClaim

BETA_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"


def is_bound(claim: PersistentVolumeClaim) -> bool:
    """Return whether a claim is permanently bound to its volume."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations
