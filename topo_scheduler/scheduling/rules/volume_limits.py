"""Limits on volumes per CSI driver and node, like the plugin NodeVolumeLimits of kube-scheduler 1.36."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.interpod_filters import AssumedPods, FilterContext, VolumesInUse
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.operation_budget import charge
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.profiles import Disk, PodVolumeClaim, Profile
from topo_scheduler.state.storage.csi_translation import PROVISIONERS, handle_of, inline_handle
from topo_scheduler.state.storage.storage_objects import Storage, class_of_claim

MAX_VOLUMES_IN_USE: Final = 100_000
"""Volumes of bound pods that are cached at most, some 20 MiB."""


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
    cache = _current(context)
    if cache.attached is None:
        cache.attached = _attachments(storage)
    attached = cache.attached
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
        used_volumes = dict(_used_on(context, cache, row))
        for pod_row, profile in assumed_pods:
            if pod_row == row:
                used_volumes |= _of_profile(storage, profile)
        # Attached volumes that no pod uses count, although one of them may be the wanted volume.
        all_volumes = {**attached.get(name, {}), **used_volumes}
        charge(1 + len(all_volumes) // 8)
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


def _current(context: FilterContext) -> VolumesInUse:
    """Return the cache, cleared if pods or storage objects have changed."""
    cache, state = context.volumes_in_use, (context.pod_index, context.pod_index.position, context.storage.changes)
    if cache.state[0] is not state[0] or cache.state[1:] != state[1:]:
        cache.state, cache.attached, cache.entries = state, None, 0
        cache.rows.clear()
    return cache


def _used_on(context: FilterContext, cache: VolumesInUse, row: int) -> Mapping[str, str]:
    """Return the CSI volumes that the bound pods of a row use.

    All classes of a gang with claims look at the same pods: there are thousands.
    """
    known = cache.rows.get(row)
    if known is not None:
        return known
    used: dict[str, str] = {}
    for profile in context.pod_index.special.get(row, {}):
        used |= _of_profile(context.storage, profile)
    if cache.entries + len(used) <= MAX_VOLUMES_IN_USE:
        cache.rows[row] = used
        cache.entries += len(used)
    return used


def _of_profile(storage: Storage, profile: Profile) -> Mapping[str, str]:
    charge(2 + 4 * len(profile.claims))
    _check(storage, profile)
    return _handles(storage, profile.namespace, profile.claims, profile.disks)


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
