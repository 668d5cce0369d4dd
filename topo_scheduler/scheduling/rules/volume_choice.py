"""Choice of volumes for the pods of a decision: existing volumes, or nodes for which new volumes are provisioned.

Filters decide on which nodes a pod has a volume. This module chooses the volume once the pod has a node. It handles all
pods of a decision together. So no two claims get the same volume, and pods that share a claim get a volume that all
their nodes can use.
"""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.storage import PersistentVolume, PersistentVolumeClaim
from topo_scheduler.scheduling.rules.interpod_filters import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError, within_limits
from topo_scheduler.scheduling.rules.volume_reach import reaches, reaches_bound
from topo_scheduler.scheduling.rules.volumes import (
    by_size,
    can_provision,
    claims_of,
    options_for,
)
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.pods.constraints import Constraints
from topo_scheduler.state.pods.profiles import Profile
from topo_scheduler.state.pods.workloads import MembersByClass
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE, is_bound
from topo_scheduler.state.storage.storage_objects import (
    READ_WRITE_ONCE_POD,
    ClaimKey,
    ReserveVolume,
    SelectNode,
    Storage,
    VolumeChoice,
    VolumeWrite,
    belongs,
)

Seated = tuple[Constraints, int, Profile | None]
"""Constraints of a pod, its row, and what other pods see of it."""


def volumes_of_members(
    context: FilterContext, groups: MembersByClass, rows: Sequence[Sequence[int]]
) -> dict[str, tuple[VolumeChoice, ...]]:
    """Return the volume choices of each member with volumes, by uid. ``rows`` has the row of each member by group.

    Raises:
        ClaimError: the claims can't get their volumes on these nodes.
    """
    seats: dict[str, Seated] = {}
    for (cls, members), rows_of_group in zip(groups, rows, strict=True):
        constraints = cls.constraints
        if constraints is not None and (constraints.claims or constraints.disks):
            seats |= {m.uid: (constraints, row, m.profile) for m, row in zip(members, rows_of_group, strict=True)}
    if not seats:
        return {}
    return dict(zip(seats, choose_volumes(context, list(seats.values())), strict=True))


def have_volumes(context: FilterContext, groups: MembersByClass, rows: Sequence[Sequence[int]]) -> bool:
    """Return whether members can have their volumes together; each alone may have them. See `volumes_of_members`."""
    try:
        volumes_of_members(context, groups, rows)
    except ClaimError:
        return False
    return True


def choose_volumes(context: FilterContext, placed_pods: Sequence[Seated]) -> list[tuple[VolumeChoice, ...]]:
    """Return for each pod the volumes of its claims with delayed binding.

    Args:
        context: nodes, pods and storage of the cluster.
        placed_pods: all pods of a decision that have constraints.

    Raises:
        ClaimError: the pods can't have their volumes on these nodes together, although each pod alone could.
    """
    rows_by_claim: dict[ClaimKey, tuple[PersistentVolumeClaim, list[int]]] = {}
    unbound_claims: list[list[ClaimKey]] = []
    for constraints, row, _ in placed_pods:
        claims = {_key(claim): claim for claim in claims_of(context.storage, constraints)}
        for key, claim in claims.items():
            rows_by_claim.setdefault(key, (claim, []))[1].append(row)
        unbound_claims.append([key for key, claim in claims.items() if not is_bound(claim)])
    for claim, rows in rows_by_claim.values():
        if len(rows) > 1 and READ_WRITE_ONCE_POD in claim.spec.access_modes:
            raise ClaimError(
                f'{len(rows)} of its pods use the persistentvolumeclaim "{claim.metadata.name}", whose access mode'
                " ReadWriteOncePod allows one"
            )
    _check_limits(context, placed_pods)
    taken_volumes: set[str] = set()
    choices: dict[ClaimKey, VolumeChoice] = {}
    for claim in by_size(claim for claim, _ in rows_by_claim.values() if not is_bound(claim)):
        users = rows_by_claim[_key(claim)][1]
        choice = _choose(context, claim, np.unique(np.array(users, np.int64)), users[0], taken_volumes)
        choices[_key(claim)] = choice
        taken_volumes.add(choice.volume)
        earlier_choice = context.storage.choice_of(_key(claim))
        if earlier_choice is not None and earlier_choice != choice:
            raise ClaimError(f'persistentvolumeclaim "{claim.metadata.name}" is being bound for another pod')
    return [tuple(choices[key] for key in keys) for keys in unbound_claims]


def _key(claim: PersistentVolumeClaim) -> ClaimKey:
    return claim.metadata.namespace, claim.metadata.name


def _choose(
    context: FilterContext, claim: PersistentVolumeClaim, rows: Int64, first: int, taken: set[str]
) -> VolumeChoice:
    names = context.nodes.names
    node = context.storage.node_of(claim)
    if node is not None:
        if any(names[int(row)] != node for row in rows):
            raise ClaimError(f'a volume for persistentvolumeclaim "{claim.metadata.name}" is being made for {node}')
        return VolumeChoice(_key(claim), node=node)
    for volume, reserved in options_for(context, claim):
        name = volume.metadata.name
        if name not in taken and reaches(context, volume, rows).all():
            return VolumeChoice(_key(claim), volume=name)
        if reserved and name not in taken:
            break
    makes, room = can_provision(context, claim, rows)
    if not (makes & room).all():
        pods = "this pod" if len(rows) == 1 else "all pods that share it"
        raise ClaimError(f'no volume for persistentvolumeclaim "{claim.metadata.name}" is there that {pods} could use')
    return VolumeChoice(_key(claim), node=names[first])


def _check_limits(context: FilterContext, placed_pods: Sequence[Seated]) -> None:
    """Raise an error if the pods of one node together have more volumes than the node allows."""
    earlier_pods: dict[int, list[Profile]] = {}
    for constraints, row, profile in placed_pods:
        earlier_on_node = earlier_pods.setdefault(row, [])
        if earlier_on_node:
            assumed_pods = [(row, earlier) for earlier in earlier_on_node]
            if not within_limits(
                context, constraints, np.array([row], np.int64), assumed_pods, np.ones(1, np.bool_)
            ).all():
                raise ClaimError(
                    f"node {context.nodes.names[row]} has no room for the volumes of {len(earlier_on_node) + 1} pods"
                )
        if profile is not None and profile not in earlier_on_node:
            earlier_on_node.append(profile)


# ---------------------------------------------------------------- writes and their results


def obstacle_to(storage: Storage, choice: VolumeChoice) -> str:
    """Return why a claim can't get its volume as chosen, or an empty string.

    Between a decision and its writes, users may delete claims and volumes, and Kubernetes may bind a volume.
    """
    claim = storage.claims.get(choice.claim)
    if claim is None:
        return f'persistentvolumeclaim "{choice.claim[1]}" was deleted'
    if not choice.volume:
        return ""
    volume = storage.volumes.get(choice.volume)
    if volume is None:
        return f'persistentvolume "{choice.volume}" was deleted'
    if volume.spec.claim_ref is not None and not belongs(volume, claim):
        return f'persistentvolume "{choice.volume}" was reserved for another claim'
    return ""


def writes_for(storage: Storage, choice: VolumeChoice) -> VolumeWrite | None:
    """Return the write for the API server, None if it has the choice already. There must be no `obstacle_to` it."""
    claim = storage.claims[choice.claim]
    metadata = claim.metadata
    if not choice.volume:
        if metadata.annotations.get(SELECTED_NODE) == choice.node:
            return None
        return SelectNode(choice.claim, metadata.uid, metadata.resource_version, choice.node)
    volume = storage.volumes[choice.volume]
    reference = volume.spec.claim_ref
    if reference is not None and reference.uid == metadata.uid:
        return None
    return ReserveVolume(
        choice.volume,
        volume.metadata.uid,
        volume.metadata.resource_version,
        choice.claim,
        metadata.uid,
        metadata.resource_version,
        marked=reference is None,
    )


def unfit(context: FilterContext, volume: PersistentVolume, row: int) -> bool:
    """Return whether a node can't use a volume to which a claim was bound."""
    rows = np.array([row], np.int64)
    return not reaches_bound(context, volume, rows, np.ones(1, np.bool_)).all()
