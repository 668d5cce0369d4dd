"""Limits on volumes per CSI driver and node, like the plugin NodeVolumeLimits of kube-scheduler 1.36."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import AssumedPods, FilterContext
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.pod_index import Disk, PodVolumeClaim, Profile
from topo_scheduler.state.storage.csi_translation import PROVISIONERS, handle_of, inline_handle
from topo_scheduler.state.storage.storage_objects import Storage, class_of_claim


class ClaimError(ValueError):
    """A claim has a problem that excludes all nodes."""


def within_limits(
    context: FilterContext, constraints: Constraints, rows: Int64, assumed_pods: AssumedPods, candidates: Bool
) -> Bool:
    """Return the rows that can have the volumes of a pod in addition; only rows in ``candidates`` are checked.

    Raises:
        ClaimError: the volumes of a pod on such a node are unknown.
    """
    storage = context.storage
    wanted_volumes = _handles(storage, constraints.namespace, constraints.claims, constraints.disks)
    accepted = np.ones(len(rows), np.bool_)
    limits_by_node = storage.limits() if wanted_volumes else {}
    if not limits_by_node:
        return accepted
    attached = _attachments(storage)
    rows_with_pods = {row for row, _ in assumed_pods} | context.pod_index.special.keys()
    requested = Counter(wanted_volumes.values())
    for index in np.flatnonzero(candidates).tolist():
        row = int(rows[index])
        name = context.nodes.names[row]
        limits = limits_by_node.get(name)
        if limits is None:
            continue
        if row not in rows_with_pods and name not in attached:
            accepted[index] = all(number <= limits.get(driver, number) for driver, number in requested.items())
            continue
        used_volumes: dict[str, str] = {}
        for profile in _profiles_on(context, row, assumed_pods):
            _check(storage, profile)
            used_volumes |= _handles(storage, profile.namespace, profile.claims, profile.disks)
        # Attached volumes that no pod uses count, although one of them may be the wanted volume.
        all_volumes = attached.get(name, {}) | used_volumes
        for driver, limit in limits.items():
            additional = sum(
                handle not in used_volumes
                for handle, volume_driver in wanted_volumes.items()
                if volume_driver == driver
            )
            if (
                additional
                and additional + sum(volume_driver == driver for volume_driver in all_volumes.values()) > limit
            ):
                accepted[index] = False
    return accepted


def _profiles_on(context: FilterContext, row: int, assumed_pods: AssumedPods) -> Iterator[Profile]:
    yield from context.pod_index.special.get(row, {})
    yield from (profile for pod_row, profile in assumed_pods if pod_row == row)


def _check(storage: Storage, profile: Profile) -> None:
    for pod_claim in profile.claims:
        if not pod_claim.name:
            raise ClaimError("PersistentVolumeClaim had no name")
        claim = storage.claims.get((profile.namespace, pod_claim.name))
        controller = claim.metadata.controller if claim else None
        if claim is not None and pod_claim.owner and (controller is None or controller.uid != pod_claim.owner):
            raise ClaimError(f"PVC {profile.namespace}/{pod_claim.name} was not created for the pod that uses it")


def _handles(
    storage: Storage, namespace: str, claims: tuple[PodVolumeClaim, ...], disks: tuple[Disk, ...]
) -> Mapping[str, str]:
    """Return the CSI volumes of claims and disks: the driver by ``driver/handle``."""
    drivers = {f"{driver}/{handle}": driver for driver, handle in map(inline_handle, disks) if driver and handle}
    for pod_claim in claims:
        claim = storage.claims.get((namespace, pod_claim.name))
        if claim is None:
            continue
        volume = storage.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            driver, handle = handle_of(volume)
            if driver and handle:
                drivers[f"{driver}/{handle}"] = driver
            continue
        # Not bound, or bound to an unknown volume: count it for the driver of its class.
        storage_class = storage.classes.get(class_of_claim(claim))
        if storage_class is not None:
            driver = PROVISIONERS.get(storage_class.provisioner, storage_class.provisioner)
            if driver:
                drivers[f"{driver}//{namespace}/{pod_claim.name}"] = driver
    return drivers


def _attachments(storage: Storage) -> dict[str, dict[str, str]]:
    """Return the CSI volumes attached to each node."""
    volumes_by_node: dict[str, dict[str, str]] = {}
    for attachment in storage.attachments.values():
        spec = attachment.spec
        volume = storage.volumes.get(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            handle = f"{spec.attacher}/{volume.spec.csi.volume_handle}"
            volumes_by_node.setdefault(spec.node_name, {})[handle] = spec.attacher
    return volumes_by_node
