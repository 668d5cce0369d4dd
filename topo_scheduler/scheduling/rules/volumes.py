"""Filters for claims and volumes, like the plugins of kube-scheduler 1.36 that the docstrings name.

The in-tree volumes named in `topo_scheduler.state.storage.csi_translation` are translated to CSI.
"""

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import NodeSelectorTerm, Requirement
from topo_scheduler.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass
from topo_scheduler.scheduling.rules.filters import Bool, term_matches
from topo_scheduler.scheduling.rules.interpod_filters import AssumedPods, FilterContext
from topo_scheduler.scheduling.rules.unlisted import unlisted_problem
from topo_scheduler.scheduling.rules.volume_limits import ClaimError, within_limits
from topo_scheduler.scheduling.rules.volume_reach import reached_rows, reaches_bound
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.pods.classes import PodClass
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.profiles import PodVolumeClaim
from topo_scheduler.state.pods.selectors import EVERYTHING, SelectorError, compile_selector
from topo_scheduler.state.storage.claim_annotations import is_bound
from topo_scheduler.state.storage.csi_translation import BETA_REGION, BETA_ZONE, REGION, ZONE
from topo_scheduler.state.storage.sizes import size_of
from topo_scheduler.state.storage.storage_objects import (
    READ_WRITE_ONCE_POD,
    WAIT_FOR_FIRST_CONSUMER,
    ClaimKey,
    Storage,
    class_of_claim,
)

ZONE_LABELS: Final = {BETA_ZONE: ZONE, BETA_REGION: REGION, ZONE: ZONE, REGION: REGION}
"""Zone labels of volumes, each with the label of nodes that replaces the older label."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"


def claims_of(storage: Storage, constraints: Constraints) -> list[PersistentVolumeClaim]:
    """Return the claims that a pod uses; the part of VolumeBinding and VolumeZone that depends on no node.

    Raises:
        ClaimError: a claim is missing, lost, being deleted, of another pod, or unbound without delayed binding.
    """
    if storage.unlisted and constraints.claims:
        remedy = "grant get, list and watch on them to this scheduler"
        raise ClaimError(unlisted_problem(storage.unlisted, remedy))
    claims = [_claim(storage, constraints.namespace, claim) for claim in constraints.claims]
    for claim in claims:
        if is_bound(claim):
            continue
        if claim.spec.excess:
            raise ClaimError(f'persistentvolumeclaim "{claim.metadata.name}" is not read: {claim.spec.excess}')
        if claim.spec.volume_name or not _binds_later(storage, claim):
            raise ClaimError("pod has unbound immediate PersistentVolumeClaims")
    return claims


def _claim(storage: Storage, namespace: str, pod_claim: PodVolumeClaim) -> PersistentVolumeClaim:
    claim = storage.claims.get((namespace, pod_claim.name))
    if claim is None:
        if pod_claim.owner:
            raise ClaimError(
                f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{pod_claim.name}"'
            )
        raise ClaimError(f'persistentvolumeclaim "{pod_claim.name}" not found')
    if claim.status.phase == "Lost":
        raise ClaimError(f'persistentvolumeclaim "{pod_claim.name}" bound to a volume that does not exist')
    if claim.metadata.deletion_timestamp is not None:
        raise ClaimError(f'persistentvolumeclaim "{pod_claim.name}" is being deleted')
    controller = claim.metadata.controller
    if pod_claim.owner and (controller is None or controller.uid != pod_claim.owner):
        raise ClaimError(f'persistentvolumeclaim "{pod_claim.name}" was not created for this pod')
    return claim


def _binds_later(storage: Storage, claim: PersistentVolumeClaim) -> bool:
    name = class_of_claim(claim)
    storage_class = storage.classes.get(name) if name else None
    if storage_class is not None and storage_class.volume_binding_mode is None:
        raise ClaimError(f"VolumeBindingMode not set for StorageClass {name}")
    return storage_class is not None and storage_class.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


# ---------------------------------------------------------------- by node


LASTING: Final = frozenset({NodeReason.VOLUME_NODE, NodeReason.VOLUME_ZONE})
"""Reasons that hold whatever pods come or go: the volume of a claim does not move."""


def uses_volumes(cls: PodClass) -> bool:
    """Return whether claims, volumes and CSI nodes may decide where a class may go."""
    return cls.constraints is not None and bool(cls.constraints.claims or cls.constraints.disks)


def concerned(cls: PodClass, claims: frozenset[ClaimKey], other: bool) -> bool:
    """Return whether changes of these claims, or of ``other`` storage objects, may matter to a class."""
    constraints = cls.constraints
    if constraints is None or not uses_volumes(cls):
        return False
    return other or any((constraints.namespace, claim.name) in claims for claim in constraints.claims)


def volume_rejections(
    context: FilterContext, cls: PodClass, rows: Int64, assumed_pods: AssumedPods, remaining: Bool
) -> Iterator[tuple[NodeReason, Bool]]:
    """Yield reasons, and the rows that each rejects.

    ``remaining``: rows not rejected so far. The caller removes the yielded rows from it in place.

    Raises:
        ClaimError: a problem excludes all nodes. As in kube-scheduler, a single node with an unknown volume suffices.
    """
    constraints = cls.constraints
    if constraints is None or not uses_volumes(cls):
        return
    storage = context.storage
    charge_rows(len(rows), 1 + 4 * len(constraints.claims))
    claims = claims_of(storage, constraints)
    yield NodeReason.CLAIM_IN_USE, np.full(len(rows), _in_use(context, constraints, claims, assumed_pods), np.bool_)
    yield NodeReason.VOLUME_LIMIT, ~within_limits(context, constraints, rows, assumed_pods, remaining)
    bound = [claim for claim in claims if is_bound(claim)]
    volumes = [storage.volumes.get(claim.spec.volume_name) for claim in bound]
    existing = [volume for volume in volumes if volume is not None]
    if len(existing) < len(volumes):
        raise ClaimError("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
    reachable = np.ones(len(rows), np.bool_)
    for volume in existing:
        reachable &= reaches_bound(context, volume, rows, remaining & reachable)
    yield NodeReason.VOLUME_NODE, ~reachable
    unbound = [claim for claim in claims if not is_bound(claim)]
    if unbound:
        yield from _provided(context, unbound, rows)
    in_zone = np.ones(len(rows), np.bool_)
    for claim, pod_claim in zip(claims, constraints.claims, strict=True):
        if is_bound(claim) and not pod_claim.owner:
            in_zone &= _in_zone(context, storage.volumes[claim.spec.volume_name], rows)
    yield NodeReason.VOLUME_ZONE, ~in_zone


def _in_use(
    context: FilterContext, constraints: Constraints, claims: list[PersistentVolumeClaim], assumed_pods: AssumedPods
) -> bool:
    """VolumeRestrictions: ReadWriteOncePod."""
    exclusive = {
        claim.metadata.name
        for claim, pod_claim in zip(claims, constraints.claims, strict=True)
        if not pod_claim.owner and READ_WRITE_ONCE_POD in claim.spec.access_modes
    }
    conflicts = sum((constraints.namespace, name) in context.pod_index.claimed for name in exclusive)
    if conflicts or constraints.disks:
        # As in the plugin, nominated pods count only if there is something else to check.
        conflicts += sum(
            claim.name in exclusive and not claim.owner for _, profile in assumed_pods for claim in profile.claims
        )
    return conflicts > 0


def _in_zone(context: FilterContext, volume: PersistentVolume, rows: Int64) -> Bool:
    """VolumeZone."""
    nodes = context.nodes
    columns = {label: nodes.label_column(label)[rows] for label in ZONE_LABELS}
    unzoned = np.all([column == UNKNOWN for column in columns.values()], axis=0)
    accepted = np.ones(len(rows), np.bool_)
    for label, current_label in ZONE_LABELS.items():
        label_value = volume.metadata.labels.get(label)
        zones = [zone.strip() for zone in label_value.split("__")] if label_value is not None else []
        if not zones or not all(zones):
            continue
        column = np.where(columns[label] == UNKNOWN, columns[current_label], columns[label])
        zone_ids = [nodes.known_value(zone) for zone in zones]
        accepted &= np.isin(column, np.array([zone for zone in zone_ids if zone != UNKNOWN], np.int64))
    result: Bool = accepted | unzoned
    return result


# ---------------------------------------------------------------- claims with delayed binding


def _provided(
    context: FilterContext, claims: list[PersistentVolumeClaim], rows: Int64
) -> Iterator[tuple[NodeReason, Bool]]:
    """VolumeBinding: an existing volume, or room to provision one."""
    storage, row_of = context.storage, context.nodes.row_of
    without_volume, without_space = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    to_provision: list[tuple[PersistentVolumeClaim, Bool]] = []
    unselected: list[PersistentVolumeClaim] = []
    for claim in claims:
        node = storage.node_of(claim)
        if node is None:
            unselected.append(claim)
        else:
            without_volume |= rows != row_of.get(node, UNKNOWN)
            to_provision.append((claim, np.ones(len(rows), np.bool_)))
    to_provision += _unmatched(context, unselected, rows)
    undecided = np.ones(len(rows), np.bool_)
    for rows_missing, (makes, room) in [
        (rows_missing, can_provision(context, claim, rows)) for claim, rows_missing in to_provision
    ]:
        without_volume |= undecided & rows_missing & ~makes
        without_space |= undecided & rows_missing & makes & ~room
        undecided &= ~rows_missing | (makes & room)
    yield NodeReason.VOLUME_NONE, without_volume
    yield NodeReason.VOLUME_SPACE, without_space


def _unmatched(
    context: FilterContext, claims: list[PersistentVolumeClaim], rows: Int64
) -> list[tuple[PersistentVolumeClaim, Bool]]:
    """Return each claim with the rows where no existing volume fits it, the smallest claim first."""
    index_of_row = np.full(context.nodes.rows, UNKNOWN, np.int64)
    index_of_row[rows] = np.arange(len(rows), dtype=np.int64)
    taken_rows: dict[str, set[int]] = {}
    result: list[tuple[PersistentVolumeClaim, Bool]] = []
    for claim in by_size(claims):
        settled, matched = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        undecided = len(rows)
        for volume, reserved in options_for(context, claim):
            if not undecided:
                break
            charge()
            name = volume.metadata.name
            reached = reached_rows(context, volume)
            if reached is not None and len(reached) == 1 and not reserved:
                index = int(index_of_row[reached[0]])  # a local volume, of which there may be thousands
                if index == UNKNOWN or settled[index] or index in taken_rows.get(name, ()):
                    continue
            indexes = np.arange(len(rows), dtype=np.int64) if reached is None else index_of_row[reached]
            indexes = indexes[indexes != UNKNOWN]
            indexes = indexes[~settled[indexes]]
            if name in taken_rows:
                indexes = indexes[[index not in taken_rows[name] for index in indexes.tolist()]]
            if len(indexes):
                matched[indexes] = settled[indexes] = True
                undecided -= len(indexes)
                if len(claims) > 1:
                    taken_rows.setdefault(name, set()).update(indexes.tolist())
            if reserved:
                # A volume reserved for the claim is its only option, wherever the volume is.
                open_rows = [
                    index for index in np.flatnonzero(~settled).tolist() if index not in taken_rows.get(name, ())
                ]
                settled[open_rows] = True
                undecided -= len(open_rows)
        result.append((claim, ~matched))
    return result


def by_size(claims: Iterable[PersistentVolumeClaim]) -> list[PersistentVolumeClaim]:
    """Return claims in the order in which they get volumes, the smallest first."""
    return sorted(claims, key=lambda claim: size_of(claim.spec.resources.requests.get("storage")))


def options_for(context: FilterContext, claim: PersistentVolumeClaim) -> Iterator[tuple[PersistentVolume, bool]]:
    """Yield the volumes to which a claim could be bound: those reserved for it, then the smallest first.

    Each comes with whether it is reserved.

    Raises:
        ClaimError: the selector of the claim is invalid.
    """
    spec = claim.spec
    modes = set(spec.access_modes)
    try:
        selector = compile_selector(spec.selector) if spec.selector is not None else EVERYTHING
    except SelectorError as error:
        raise ClaimError(f'persistentvolumeclaim "{claim.metadata.name}": selector: {error}') from error
    for volume, reserved in context.storage.volumes_for(claim):
        volume_spec = volume.spec
        if (
            volume_spec.volume_mode == spec.volume_mode
            and volume_spec.volume_attributes_class_name == spec.volume_attributes_class_name
            and volume.metadata.deletion_timestamp is None
            and (reserved or (volume.status.phase == "Available" and modes.issubset(volume_spec.access_modes)))
            and (reserved or spec.selector is None or selector.matches(volume.metadata.labels))
        ):
            yield volume, reserved


def can_provision(context: FilterContext, claim: PersistentVolumeClaim, rows: Int64) -> tuple[Bool, Bool]:
    """Return the rows where a volume could be provisioned for a claim, and the rows with room for it."""
    name = class_of_claim(claim)
    storage_class = context.storage.classes.get(name)
    if storage_class is None:
        raise ClaimError(f"failed to find storage class {name}")
    if storage_class.provisioner in ("", NO_PROVISIONER):
        nowhere = np.zeros(len(rows), np.bool_)
        return nowhere, nowhere
    allowed = np.ones(len(rows), np.bool_)
    if storage_class.allowed_topologies:
        allowed = np.zeros(len(rows), np.bool_)
        for term in storage_class.allowed_topologies:
            expressions = term.match_label_expressions
            requirements = tuple(Requirement(entry.key, "In", tuple(entry.values)) for entry in expressions)
            allowed |= term_matches(context.nodes, NodeSelectorTerm(requirements), rows)
    return allowed, _has_room(context, claim, storage_class, rows)


def _has_room(context: FilterContext, claim: PersistentVolumeClaim, storage_class: StorageClass, rows: Int64) -> Bool:
    driver = context.storage.drivers.get(storage_class.provisioner)
    requested_size = claim.spec.resources.requests.get("storage")
    if requested_size is None or driver is None or not driver.spec.storage_capacity:
        return np.ones(len(rows), np.bool_)
    charge_rows(len(rows))
    room: Bool = context.storage.room_of_class(storage_class.metadata.name, context.nodes, size_of(requested_size))[
        rows
    ]
    return room
