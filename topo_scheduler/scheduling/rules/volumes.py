"""Filters that look at claims and volumes, as kube-scheduler 1.36 does in the plugins named beside them.

Of in-tree volumes those are translated to CSI that `topo_scheduler.state.migration` names.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.reasons import NodeReason
from topo_scheduler.api.selectors import NodeSelectorTerm, Requirement
from topo_scheduler.api.storage import PersistentVolume, PersistentVolumeClaim, StorageClass, TopologyTerm
from topo_scheduler.scheduling.rules.filters import Bool, term_matches
from topo_scheduler.scheduling.rules.neighbours import Extra, FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError, within_limits
from topo_scheduler.scheduling.rules.volume_reach import reached_rows, reaches_bound
from topo_scheduler.state.classes import PodClass
from topo_scheduler.state.constraints import Constraints
from topo_scheduler.state.migration import (
    BETA_REGION,
    BETA_ZONE,
    REGION,
    ZONE,
)
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.operation_budget import charge, charge_rows
from topo_scheduler.state.residents import PodVolumeClaim
from topo_scheduler.state.selectors import EVERYTHING, SelectorError, compile_selector
from topo_scheduler.state.storage import (
    READ_WRITE_ONCE_POD,
    WAIT_FOR_FIRST_CONSUMER,
    ClaimKey,
    Storage,
    class_of_claim,
    is_bound,
    size_of,
)

ZONE_LABELS: Final = {BETA_ZONE: ZONE, BETA_REGION: REGION, ZONE: ZONE, REGION: REGION}
"""Labels of volumes that bind to a zone, and the label of nodes that stands in for the older ones."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"


def claims_of(storage: Storage, constraints: Constraints) -> list[PersistentVolumeClaim]:
    """Return the claims a pod uses; VolumeBinding and VolumeZone, as far as they look at no node.

    Raises:
        ClaimError: a claim is missing, lost, being deleted, not the pod's, or not bound yet and not to be waited for.
    """
    if storage.unlisted and constraints.claims:
        names = ", ".join(storage.unlisted)
        raise ClaimError(f"{names} can't be listed yet: grant get, list and watch on them to this scheduler")
    found = [_claim(storage, constraints.namespace, claim) for claim in constraints.claims]
    for claim in found:
        if is_bound(claim):
            continue
        if claim.spec.volume_name or not _waits(storage, claim):
            raise ClaimError("pod has unbound immediate PersistentVolumeClaims")
    return found


def _claim(storage: Storage, namespace: str, wanted: PodVolumeClaim) -> PersistentVolumeClaim:
    claim = storage.claims.get((namespace, wanted.name))
    if claim is None:
        if wanted.owner:
            raise ClaimError(
                f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{wanted.name}"'
            )
        raise ClaimError(f'persistentvolumeclaim "{wanted.name}" not found')
    if claim.status.phase == "Lost":
        raise ClaimError(f'persistentvolumeclaim "{wanted.name}" bound to a volume that does not exist')
    if claim.metadata.deletion_timestamp is not None:
        raise ClaimError(f'persistentvolumeclaim "{wanted.name}" is being deleted')
    controller = claim.metadata.controller
    if wanted.owner and (controller is None or controller.uid != wanted.owner):
        raise ClaimError(f'persistentvolumeclaim "{wanted.name}" was not created for this pod')
    return claim


def _waits(storage: Storage, claim: PersistentVolumeClaim) -> bool:
    name = class_of_claim(claim)
    known = storage.classes.get(name) if name else None
    if known is not None and known.volume_binding_mode is None:
        raise ClaimError(f"VolumeBindingMode not set for StorageClass {name}")
    return known is not None and known.volume_binding_mode == WAIT_FOR_FIRST_CONSUMER


# ---------------------------------------------------------------- by node


LASTING: Final = frozenset({NodeReason.VOLUME_NODE, NodeReason.VOLUME_ZONE})
"""Reasons that hold whoever comes or goes: the volume of a claim stays where it is."""


def uses_volumes(cls: PodClass) -> bool:
    """Return whether claims, volumes and CSI nodes decide where a class may go."""
    return cls.constraints is not None and bool(cls.constraints.claims or cls.constraints.disks)


def concerned(cls: PodClass, claims: frozenset[ClaimKey], other: bool) -> bool:
    """Return whether changes of claims, or of anything else of storage, may matter to a class."""
    constraints = cls.constraints
    if constraints is None or not uses_volumes(cls):
        return False
    return other or any((constraints.namespace, claim.name) in claims for claim in constraints.claims)


def volume_rejections(
    around: FilterContext, cls: PodClass, rows: Int64, extra: Extra, left: Bool
) -> Iterator[tuple[NodeReason, Bool]]:
    """Yield reasons, and which rows each rejects; ``left`` are those that nothing has rejected so far:
    the caller takes away from it what is yielded, in place.

    Raises:
        ClaimError: no node will do, and why. As in kube-scheduler, a single node on which something can't be told
            is enough for that.
    """
    constraints = cls.constraints
    if constraints is None or not uses_volumes(cls):
        return
    storage = around.storage
    charge_rows(len(rows), 1 + 4 * len(constraints.claims))
    claims = claims_of(storage, constraints)
    yield NodeReason.CLAIM_IN_USE, np.full(len(rows), _in_use(around, constraints, claims, extra), np.bool_)
    yield NodeReason.VOLUME_LIMIT, ~within_limits(around, constraints, rows, extra, left)
    bound = [claim for claim in claims if is_bound(claim)]
    volumes = [storage.volumes.get(claim.spec.volume_name) for claim in bound]
    known = [volume for volume in volumes if volume is not None]
    if len(known) < len(volumes):
        raise ClaimError("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
    near = np.ones(len(rows), np.bool_)
    for volume in known:
        near &= reaches_bound(around, volume, rows, left & near)
    yield NodeReason.VOLUME_NODE, ~near
    waiting = [claim for claim in claims if not is_bound(claim)]
    if waiting:
        yield from _provided(around, waiting, rows)
    zoned = np.ones(len(rows), np.bool_)
    for claim, used in zip(claims, constraints.claims, strict=True):
        if is_bound(claim) and not used.owner:
            zoned &= _in_zone(around, storage.volumes[claim.spec.volume_name], rows)
    yield NodeReason.VOLUME_ZONE, ~zoned


def _in_use(around: FilterContext, constraints: Constraints, claims: list[PersistentVolumeClaim], extra: Extra) -> bool:
    """VolumeRestrictions: ReadWriteOncePod."""
    single = {
        claim.metadata.name
        for claim, used in zip(claims, constraints.claims, strict=True)
        if not used.owner and READ_WRITE_ONCE_POD in claim.spec.access_modes
    }
    conflicts = sum((constraints.namespace, name) in around.residents.claimed for name in single)
    if conflicts or constraints.disks:
        # Nominated pods count only where the plugin has something to check at all.
        conflicts += sum(claim.name in single and not claim.owner for _, who in extra for claim in who.claims)
    return conflicts > 0


def _in_zone(around: FilterContext, volume: PersistentVolume, rows: Int64) -> Bool:
    """VolumeZone."""
    nodes = around.nodes
    columns = {label: nodes.label_column(label)[rows] for label in ZONE_LABELS}
    unzoned = np.all([column == UNKNOWN for column in columns.values()], axis=0)
    accepted = np.ones(len(rows), np.bool_)
    for label, newer in ZONE_LABELS.items():
        written = volume.metadata.labels.get(label)
        zones = [zone.strip() for zone in written.split("__")] if written is not None else []
        if not zones or not all(zones):
            continue
        column = np.where(columns[label] == UNKNOWN, columns[newer], columns[label])
        known = [nodes.known_value(zone) for zone in zones]
        accepted &= np.isin(column, np.array([zone for zone in known if zone != UNKNOWN], np.int64))
    result: Bool = accepted | unzoned
    return result


# ---------------------------------------------------------------- claims that wait for a node


def _provided(
    around: FilterContext, claims: list[PersistentVolumeClaim], rows: Int64
) -> Iterator[tuple[NodeReason, Bool]]:
    """VolumeBinding: a volume that is there, or room to make one."""
    storage, row_of = around.storage, around.nodes.row_of
    none, full = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
    wanted: list[tuple[PersistentVolumeClaim, Bool]] = []
    free: list[PersistentVolumeClaim] = []
    for claim in claims:
        node = storage.node_of(claim)
        if node is None:
            free.append(claim)
        else:
            none |= rows != row_of.get(node, UNKNOWN)
            wanted.append((claim, np.ones(len(rows), np.bool_)))
    wanted += _unmatched(around, free, rows)
    undecided = np.ones(len(rows), np.bool_)
    for missing, (makes, room) in [(missing, can_make(around, claim, rows)) for claim, missing in wanted]:
        none |= undecided & missing & ~makes
        full |= undecided & missing & makes & ~room
        undecided &= ~missing | (makes & room)
    yield NodeReason.VOLUME_NONE, none
    yield NodeReason.VOLUME_SPACE, full


@dataclass(frozen=True, slots=True)
class VolumeOption:
    """A volume that a claim could be bound to."""

    volume: PersistentVolume
    reserved: bool


def _unmatched(
    around: FilterContext, claims: list[PersistentVolumeClaim], rows: Int64
) -> list[tuple[PersistentVolumeClaim, Bool]]:
    """Return with each claim the rows on which no volume is there that it could be bound to, smallest claim first."""
    places = np.full(around.nodes.rows, UNKNOWN, np.int64)
    places[rows] = np.arange(len(rows), dtype=np.int64)
    taken: dict[str, set[int]] = {}
    result: list[tuple[PersistentVolumeClaim, Bool]] = []
    for claim in by_size(claims):
        settled, found = np.zeros(len(rows), np.bool_), np.zeros(len(rows), np.bool_)
        left = len(rows)
        for option in options_for(around, claim):
            if not left:
                break
            charge()
            name = option.volume.metadata.name
            reached = reached_rows(around, option.volume)
            if reached is not None and len(reached) == 1 and not option.reserved:
                place = int(places[reached[0]])  # a local volume: one of thousands alike
                if place == UNKNOWN or settled[place] or place in taken.get(name, ()):
                    continue
            at = np.arange(len(rows), dtype=np.int64) if reached is None else places[reached]
            at = at[at != UNKNOWN]
            at = at[~settled[at]]
            if name in taken:
                at = at[[place not in taken[name] for place in at.tolist()]]
            if len(at):
                found[at] = settled[at] = True
                left -= len(at)
                if len(claims) > 1:
                    taken.setdefault(name, set()).update(at.tolist())
            if option.reserved:
                # A volume that is reserved for the claim is the only one, wherever it is.
                free = [place for place in np.flatnonzero(~settled).tolist() if place not in taken.get(name, ())]
                settled[free] = True
                left -= len(free)
        result.append((claim, ~found))
    return result


def by_size(claims: Iterable[PersistentVolumeClaim]) -> list[PersistentVolumeClaim]:
    """Return claims in the order in which volumes are found for them, the smallest first."""
    return sorted(claims, key=lambda claim: size_of(claim.spec.resources.requests.get("storage")))


def options_for(around: FilterContext, claim: PersistentVolumeClaim) -> Iterator[VolumeOption]:
    """Yield the volumes a claim could be bound to: those reserved for it, then the smallest first.

    Raises:
        ClaimError: the claim's selector can't be read.
    """
    spec = claim.spec
    modes = set(spec.access_modes)
    try:
        selector = compile_selector(spec.selector) if spec.selector is not None else EVERYTHING
    except SelectorError as error:
        raise ClaimError(f'persistentvolumeclaim "{claim.metadata.name}": selector: {error}') from error
    for volume, reserved in around.storage.volumes_for(claim):
        its = volume.spec
        if (
            its.volume_mode == spec.volume_mode
            and its.volume_attributes_class_name == spec.volume_attributes_class_name
            and volume.metadata.deletion_timestamp is None
            and (reserved or (volume.status.phase == "Available" and modes.issubset(its.access_modes)))
            and (reserved or spec.selector is None or selector.matches(volume.metadata.labels))
        ):
            yield VolumeOption(volume, reserved)


def can_make(around: FilterContext, claim: PersistentVolumeClaim, rows: Int64) -> tuple[Bool, Bool]:
    """Return where a volume could be made for a claim, and where there is room for it."""
    name = class_of_claim(claim)
    storage_class = around.storage.classes.get(name)
    if storage_class is None:
        raise ClaimError(f"failed to find storage class {name}")
    if storage_class.provisioner in ("", NO_PROVISIONER):
        nowhere = np.zeros(len(rows), np.bool_)
        return nowhere, nowhere
    allowed = np.ones(len(rows), np.bool_)
    if storage_class.allowed_topologies:
        allowed = np.zeros(len(rows), np.bool_)
        for term in storage_class.allowed_topologies:
            allowed |= _in_topology(around, term, rows)
    return allowed, _has_room(around, claim, storage_class, rows)


def _in_topology(around: FilterContext, term: TopologyTerm, rows: Int64) -> Bool:
    wanted = tuple(Requirement(one.key, "In", tuple(one.values)) for one in term.match_label_expressions)
    return term_matches(around.nodes, NodeSelectorTerm(wanted), rows)


def _has_room(around: FilterContext, claim: PersistentVolumeClaim, storage_class: StorageClass, rows: Int64) -> Bool:
    driver = around.storage.drivers.get(storage_class.provisioner)
    wanted = claim.spec.resources.requests.get("storage")
    if wanted is None or driver is None or not driver.spec.storage_capacity:
        return np.ones(len(rows), np.bool_)
    room = np.zeros(len(rows), np.bool_)
    for capacity in around.storage.capacities.values():
        limit = capacity.capacity if capacity.maximum_volume_size is None else capacity.maximum_volume_size
        if capacity.storage_class_name != storage_class.metadata.name or capacity.node_topology is None:
            continue
        try:
            selector = compile_selector(capacity.node_topology)
        except SelectorError:
            continue
        if limit is not None and size_of(limit) >= size_of(wanted):
            room |= np.array([selector.matches(around.nodes.labels[int(row)]) for row in rows], np.bool_)
    return room
