"""Which volumes the pods of a decision get: those that are there, or where new ones are to be made.

Filters say where a pod has a volume; this says which, once the pod has a node. All pods of a decision are looked at
together, so that no two of them get one volume, and those that share a claim get one that all their nodes can use.
"""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.api.storage import PersistentVolume, PersistentVolumeClaim
from topo_scheduler.scheduling.rules.neighbours import FilterContext
from topo_scheduler.scheduling.rules.volume_limits import ClaimError, within_limits
from topo_scheduler.scheduling.rules.volume_reach import reaches, reaches_bound
from topo_scheduler.scheduling.rules.volumes import (
    by_size,
    can_make,
    claims_of,
    options_for,
)
from topo_scheduler.state.constraints import Constraints
from topo_scheduler.state.nodes import Int64
from topo_scheduler.state.residents import Profile
from topo_scheduler.state.storage import (
    READ_WRITE_ONCE_POD,
    SELECTED_NODE,
    ClaimKey,
    ReserveVolume,
    SelectNode,
    Storage,
    VolumeChoice,
    VolumeWrite,
    is_bound,
)

Seated = tuple[Constraints, int, Profile | None]
"""What a pod demands, the row it is to sit on, and what others see of it."""


def choose_volumes(around: FilterContext, seats: Sequence[Seated]) -> list[tuple[VolumeChoice, ...]]:
    """Return for each pod how its claims that wait for a node get their volumes.

    Args:
        around: everything there is.
        seats: all pods of a decision that have constraints.

    Raises:
        ClaimError: the pods can't have their volumes on these nodes, though each of them could alone.
    """
    used: dict[ClaimKey, tuple[PersistentVolumeClaim, list[int]]] = {}
    waiting: list[list[ClaimKey]] = []
    for constraints, row, _ in seats:
        claims = {_key(claim): claim for claim in claims_of(around.storage, constraints)}
        for key, claim in claims.items():
            used.setdefault(key, (claim, []))[1].append(row)
        waiting.append([key for key, claim in claims.items() if not is_bound(claim)])
    for claim, rows in used.values():
        if len(rows) > 1 and READ_WRITE_ONCE_POD in claim.spec.access_modes:
            raise ClaimError(
                f'{len(rows)} of its pods use the persistentvolumeclaim "{claim.metadata.name}", whose access mode'
                " ReadWriteOncePod allows one"
            )
    _check_limits(around, seats)
    taken: set[str] = set()
    found: dict[ClaimKey, VolumeChoice] = {}
    for claim in by_size(claim for claim, _ in used.values() if not is_bound(claim)):
        users = used[_key(claim)][1]
        choice = _choose(around, claim, np.unique(np.array(users, np.int64)), users[0], taken)
        found[_key(claim)] = choice
        taken.add(choice.volume)
        held = around.storage.choice_of(_key(claim))
        if held is not None and held != choice:
            raise ClaimError(f'persistentvolumeclaim "{claim.metadata.name}" is being bound for another pod')
    return [tuple(found[key] for key in keys) for keys in waiting]


def _key(claim: PersistentVolumeClaim) -> ClaimKey:
    return claim.metadata.namespace, claim.metadata.name


def _choose(
    around: FilterContext, claim: PersistentVolumeClaim, rows: Int64, first: int, taken: set[str]
) -> VolumeChoice:
    names = around.nodes.names
    node = around.storage.node_of(claim)
    if node is not None:
        if any(names[int(row)] != node for row in rows):
            raise ClaimError(f'a volume for persistentvolumeclaim "{claim.metadata.name}" is being made for {node}')
        return VolumeChoice(_key(claim), node=node)
    for option in options_for(around, claim):
        name = option.volume.metadata.name
        if name not in taken and reaches(around, option.volume, rows).all():
            return VolumeChoice(_key(claim), volume=name)
        if option.reserved and name not in taken:
            break
    makes, room = can_make(around, claim, rows)
    if not (makes & room).all():
        pods = "this pod" if len(rows) == 1 else "all pods that share it"
        raise ClaimError(f'no volume for persistentvolumeclaim "{claim.metadata.name}" is there that {pods} could use')
    return VolumeChoice(_key(claim), node=names[first])


def _check_limits(around: FilterContext, seats: Sequence[Seated]) -> None:
    """Raise where the pods of one node together have more volumes than it can have."""
    there: dict[int, list[Profile]] = {}
    for constraints, row, profile in seats:
        before = there.setdefault(row, [])
        if before:
            extra = [(row, one) for one in before]
            if not within_limits(around, constraints, np.array([row], np.int64), extra, np.ones(1, np.bool_)).all():
                raise ClaimError(f"node {around.nodes.names[row]} can't have the volumes of {len(before) + 1} pods")
        if profile is not None and profile not in before:
            before.append(profile)


# ---------------------------------------------------------------- what is written, and what comes of it


def writes_for(storage: Storage, choice: VolumeChoice) -> VolumeWrite | None:
    """Return what the API server is to be told, None where it knows already."""
    claim = storage.claims[choice.claim]
    meta = claim.metadata
    if not choice.volume:
        if meta.annotations.get(SELECTED_NODE) == choice.node:
            return None
        return SelectNode(choice.claim, meta.uid, meta.resource_version, choice.node)
    volume = storage.volumes[choice.volume]
    reference = volume.spec.claim_ref
    if reference is not None and reference.uid == meta.uid:
        return None
    return ReserveVolume(
        choice.volume,
        volume.metadata.uid,
        volume.metadata.resource_version,
        choice.claim,
        meta.uid,
        meta.resource_version,
        marked=reference is None,
    )


def unfit(around: FilterContext, volume: PersistentVolume, row: int) -> bool:
    """Return whether a node can't use a volume that a claim was bound to."""
    rows = np.array([row], np.int64)
    return not reaches_bound(around, volume, rows, np.ones(1, np.bool_)).all()
