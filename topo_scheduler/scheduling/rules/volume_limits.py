"""How many volumes of each CSI driver a node can have: the plugin NodeVolumeLimits of kube-scheduler 1.36."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.scheduling.rules.neighbours import Extra, FilterContext
from topo_scheduler.state.constraints import Constraints
from topo_scheduler.state.migration import PROVISIONERS, handle_of, inline_handle
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.residents import Disk, PodVolumeClaim, Profile
from topo_scheduler.state.storage import Storage, class_of_claim


class ClaimError(ValueError):
    """What is wrong with a claim, so that no node will do."""


def within_limits(around: FilterContext, constraints: Constraints, rows: Int64, extra: Extra, left: Bool) -> Bool:
    """Return which rows can have the volumes of a pod as well; looks at those that are ``left``.

    Raises:
        ClaimError: the volumes of a pod on such a node can't be told.
    """
    storage = around.storage
    wanted = _handles(storage, constraints.namespace, constraints.claims, constraints.disks)
    accepted = np.ones(len(rows), np.bool_)
    limited = storage.limits() if wanted else {}
    if not limited:
        return accepted
    attached = _attachments(storage)
    busy = {row for row, _ in extra} | around.residents.special.keys()
    asked = Counter(wanted.values())
    for at in np.flatnonzero(left).tolist():
        row = int(rows[at])
        name = around.nodes.names[row]
        limits = limited.get(name)
        if limits is None:
            continue
        if row not in busy and name not in attached:
            accepted[at] = all(number <= limits.get(driver, number) for driver, number in asked.items())
            continue
        used: dict[str, str] = {}
        for profile in _residents(around, row, extra):
            _check(storage, profile)
            used |= _handles(storage, profile.namespace, profile.claims, profile.disks)
        # What is attached and used by nobody counts, though it may be the very volume that is wanted.
        there = attached.get(name, {}) | used
        for driver, most in limits.items():
            new = sum(handle not in used for handle, of in wanted.items() if of == driver)
            if new and new + sum(of == driver for of in there.values()) > most:
                accepted[at] = False
    return accepted


def _residents(around: FilterContext, row: int, extra: Extra) -> Iterator[Profile]:
    yield from around.residents.special.get(row, {})
    yield from (profile for there, profile in extra if there == row)


def _check(storage: Storage, profile: Profile) -> None:
    for used in profile.claims:
        if not used.name:
            raise ClaimError("PersistentVolumeClaim had no name")
        claim = storage.claims.get((profile.namespace, used.name))
        controller = claim.metadata.controller if claim else None
        if claim is not None and used.owner and (controller is None or controller.uid != used.owner):
            raise ClaimError(f"PVC {profile.namespace}/{used.name} was not created for the pod that uses it")


def _handles(
    storage: Storage, namespace: str, claims: tuple[PodVolumeClaim, ...], disks: tuple[Disk, ...]
) -> Mapping[str, str]:
    """Return the CSI volumes behind claims and disks: driver and handle, by driver."""
    found = {f"{driver}/{handle}": driver for driver, handle in map(inline_handle, disks) if driver and handle}
    for used in claims:
        claim = storage.claims.get((namespace, used.name))
        if claim is None:
            continue
        volume = storage.volumes.get(claim.spec.volume_name) if claim.spec.volume_name else None
        if volume is not None:
            driver, handle = handle_of(volume)
            if driver and handle:
                found[f"{driver}/{handle}"] = driver
            continue
        # Not bound, or bound to what is not known yet: counted under its class.
        storage_class = storage.classes.get(class_of_claim(claim))
        if storage_class is not None:
            driver = PROVISIONERS.get(storage_class.provisioner, storage_class.provisioner)
            if driver:
                found[f"{driver}//{namespace}/{used.name}"] = driver
    return found


def _attachments(storage: Storage) -> dict[str, dict[str, str]]:
    """Return the CSI volumes attached to each node."""
    found: dict[str, dict[str, str]] = {}
    for attachment in storage.attachments.values():
        spec = attachment.spec
        volume = storage.volumes.get(spec.source.persistent_volume_name or "")
        if spec.attacher and volume is not None and volume.spec.csi is not None:
            handle = f"{spec.attacher}/{volume.spec.csi.volume_handle}"
            found.setdefault(spec.node_name, {})[handle] = spec.attacher
    return found
