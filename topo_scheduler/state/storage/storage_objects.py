"""Claims, volumes, storage classes and CSI objects by name, and the Kubernetes rules for reading one of them.

A claim of binding mode WaitForFirstConsumer gets its volume when its first pod has a node. From the decision until the
API server shows it, that choice is *held* here, so that no other decision takes the same volume.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, cast

import msgspec

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.api.storage import (
    ClaimReference,
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.storage.claim_annotations import BETA_CLASS, SELECTED_NODE
from topo_scheduler.state.storage.kept_volume_claims import KeptVolumeClaims, without_selector
from topo_scheduler.state.storage.sizes import size_of
from topo_scheduler.state.storage.storage_capacities import Bool, KeptCapacities

BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
WAIT_FOR_FIRST_CONSUMER: Final = "WaitForFirstConsumer"
READ_WRITE_ONCE_POD: Final = "ReadWriteOncePod"


ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


class _Stored(Protocol):
    metadata: ObjectMeta


Key = TypeVar("Key", bound=Hashable)
Stored = TypeVar("Stored", bound=_Stored)


@dataclass(frozen=True, slots=True)
class VolumeChoice:
    """How a claim gets its volume: the existing ``volume``, else a new one that ``node`` can use."""

    claim: ClaimKey
    volume: str = ""
    node: str = ""


@dataclass(frozen=True, slots=True)
class ReserveVolume:
    """A write that reserves a volume for a claim. ``version`` is the volume's resourceVersion at the decision.

    ``marked``: the annotation records that a controller chose the volume, not the user who created it.
    """

    volume: str
    uid: str
    version: str
    claim: ClaimKey
    claim_uid: str
    claim_version: str
    marked: bool


@dataclass(frozen=True, slots=True)
class SelectNode:
    """A write that requests a new volume for a claim on a node. ``version`` is the claim's resourceVersion."""

    claim: ClaimKey
    uid: str
    version: str
    node: str


VolumeWrite = ReserveVolume | SelectNode


@dataclass(slots=True)
class Storage:
    """All storage objects. Claims by (namespace, name), all others by name."""

    claims: dict[ClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    classes: dict[str, StorageClass] = field(default_factory=dict)
    csi_nodes: dict[str, CSINode] = field(default_factory=dict)
    drivers: dict[str, CSIDriver] = field(default_factory=dict)
    capacities: dict[tuple[str, str], CSIStorageCapacity] = field(default_factory=dict)
    """Without those that are left out, and without what has no reader."""
    attachments: dict[str, VolumeAttachment] = field(default_factory=dict)
    kept_claims: KeptVolumeClaims = field(default_factory=KeptVolumeClaims)
    """How claims are kept, within the memory that they may take."""
    unlisted: dict[str, bool] = field(default_factory=dict)
    """Resources without a complete list yet, and whether it was refused: pods with claims can't be judged."""
    changes: int = 0
    """Number of changes so far."""
    _fresh_claims: set[ClaimKey] = field(default_factory=set)
    _fresh: bool = False
    _holds: dict[ClaimKey, tuple[VolumeChoice, dict[str, None]]] = field(default_factory=dict)
    _held_changes: dict[ClaimKey, None] = field(default_factory=dict)
    """Claims with a held choice that changed, or whose volume changed."""
    _held_by: dict[str, tuple[VolumeChoice, ...]] = field(default_factory=dict)
    _reserved: dict[str, ClaimKey] = field(default_factory=dict)
    _free: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    _given: dict[ClaimKey, list[tuple[int, str]]] = field(default_factory=dict)
    _limits: dict[str, dict[str, int]] | None = None
    _kept_capacities: KeptCapacities = field(default_factory=KeptCapacities)

    # ------------------------------------------------------------ observed objects

    def put(self, table: dict[Key, Stored], key: Key, new: Stored) -> None:
        """Store an object that appeared or changed in one of the tables above."""
        old = table.get(key)
        if old is not None and new.metadata.is_older_than(old.metadata):
            return  # from before our own write
        if isinstance(new, CSIStorageCapacity):
            self._put_capacity(new)
            return
        if isinstance(new, PersistentVolumeClaim):
            new = cast("Stored", self.kept_claims.keep(new))
        table[key] = new
        self._touch(key, old, new)
        if isinstance(old, PersistentVolume):
            self._index(old, removed=True)
        if isinstance(new, PersistentVolume):
            self._index(new)
        if isinstance(new, CSINode):
            self._limits = None
        if old is None or not _alike(old, new):
            self._count_change(key)
        self._reduce_claims()

    def _reduce_claims(self) -> None:
        """Remove the selectors of claims that lost their room in memory."""
        for key in self.kept_claims.take_lost():
            if (claim := self.claims.get(key)) is not None:
                self.claims[key] = without_selector(claim)
                self._count_change(key)

    def drop(self, table: dict[Key, Stored], key: Key) -> None:
        """Remove an object."""
        old = table.pop(key, None)
        if isinstance(old, CSIStorageCapacity):
            self._kept_capacities.drop(old)
            self._count_other_change()
            return
        self._touch(key, old)
        if isinstance(old, PersistentVolumeClaim):
            self.kept_claims.drop(old)
        if isinstance(old, PersistentVolume):
            self._index(old, removed=True)
        if isinstance(old, CSINode):
            self._limits = None
        if old is not None:
            self._count_change(key)

    def _put_capacity(self, new: CSIStorageCapacity) -> None:
        key = (new.metadata.namespace, new.metadata.name)
        old = self.capacities.get(key)
        kept = self._kept_capacities.keep(new, old)
        if kept is None:
            if self.capacities.pop(key, None) is not None:
                self._count_other_change()
            return
        self.capacities[key] = kept
        while (beyond := self._kept_capacities.beyond_all()) is not None:
            self.drop(self.capacities, beyond)
        if old is None or not _alike(old, kept):
            self._count_other_change()

    def room_of_class(self, storage_class: str, nodes: NodeTable, size_bytes: int) -> Bool:
        """Return bool[rows], read-only: where a capacity of a storage class is known that is large enough."""
        return self._kept_capacities.room_of_class(storage_class, nodes, size_bytes)

    @property
    def has_problems(self) -> bool:
        """Whether there are warnings that `take_problems` has not returned yet."""
        return bool(self._kept_capacities.problems)

    def take_problems(self) -> list[str]:
        """Return the warnings about objects that were left out since the last call."""
        problems, self._kept_capacities.problems = self._kept_capacities.problems, []
        return problems

    def limits(self) -> dict[str, dict[str, int]]:
        """Return the maximum number of volumes by driver, for each node that has such a limit, by node name."""
        if self._limits is None:
            self._limits = {}
            for name, node in self.csi_nodes.items():
                limits = {
                    driver.name: driver.allocatable.count
                    for driver in node.spec.drivers
                    if driver.allocatable is not None and driver.allocatable.count is not None
                }
                if limits:
                    self._limits[name] = limits
        return self._limits

    def wrote(self, write: VolumeWrite, version: str) -> None:
        """Apply a write of this scheduler at once, so that no other decision uses the volume before the watch event."""
        if isinstance(write, ReserveVolume):
            volume = self.volumes.get(write.volume)
            if volume is None or volume.metadata.uid != write.uid:
                return
            meta = msgspec.structs.replace(volume.metadata, resource_version=version)
            spec = msgspec.structs.replace(volume.spec, claim_ref=ClaimReference(*write.claim, write.claim_uid))
            self.put(self.volumes, write.volume, msgspec.structs.replace(volume, metadata=meta, spec=spec))
            return
        claim = self.claims.get(write.claim)
        if claim is None or claim.metadata.uid != write.uid:
            return
        annotations = {**claim.metadata.annotations, SELECTED_NODE: write.node}
        meta = msgspec.structs.replace(claim.metadata, resource_version=version, annotations=annotations)
        self.put(self.claims, write.claim, msgspec.structs.replace(claim, metadata=meta))

    def listed(self, resource: str) -> None:
        """Record that the list of a resource is complete."""
        if resource in self.unlisted:
            del self.unlisted[resource]
            self.changes += 1
            self._fresh = True

    def refused(self, resource: str) -> None:
        """Record that the API server refuses to list a resource."""
        if self.unlisted.get(resource) is False:
            self.unlisted[resource] = self._fresh = True
            self.changes += 1

    def take_changes(self) -> tuple[frozenset[ClaimKey], bool]:
        """Return the claims that changed since the last call, and whether other objects changed."""
        self._reduce_claims()
        changes = frozenset(self._fresh_claims), self._fresh
        self._fresh_claims.clear()
        self._fresh = False
        return changes

    def take_held_changes(self) -> Iterable[str]:
        """Return the pods that hold choices of claims which changed, or whose volumes did, since the last call."""
        changed, self._held_changes = self._held_changes, {}
        return [uid for claim in changed for uid in self.users_of(claim)]

    def _touch(self, key: Hashable, *states: _Stored | None) -> None:
        """Note that an object changed on which a held choice may depend."""
        if not self._holds:
            return
        keys: list[Hashable] = [key]
        for state in states:
            if isinstance(state, PersistentVolume):
                keys.append(self._reserved.get(state.metadata.name))
                if (reference := state.spec.claim_ref) is not None:
                    keys.append((reference.namespace, reference.name))
        self._held_changes |= {claim: None for claim in keys if claim in self._holds}

    def _count_change(self, key: Hashable) -> None:
        self.changes += 1
        if key in self.claims:
            self._fresh_claims.add(key)
        else:
            self._fresh = True

    def _count_other_change(self) -> None:
        """Count a change of an object that may have the name of a claim."""
        self.changes += 1
        self._fresh = True

    # ------------------------------------------------------------ decisions

    def hold(self, uid: str, choices: tuple[VolumeChoice, ...]) -> None:
        """Hold the volume choices of a pod's claims; pods that share a claim hold its choice together."""
        self._held_by[uid] = choices
        for choice in choices:
            self._holds.setdefault(choice.claim, (choice, {}))[1][uid] = None
            if choice.volume:
                self._reserved[choice.volume] = choice.claim
        self.changes += 1

    def release(self, uid: str) -> None:
        """Release the choices that a pod held."""
        for choice in self._held_by.pop(uid, ()):
            users = self._holds[choice.claim][1]
            users.pop(uid, None)
            if not users:
                del self._holds[choice.claim]
                if choice.volume:
                    del self._reserved[choice.volume]
                self.changes += 1
                self._fresh = True

    def held_by(self, uid: str) -> tuple[VolumeChoice, ...]:
        """Return the choices held for a pod."""
        return self._held_by.get(uid, ())

    def choice_of(self, claim: ClaimKey) -> VolumeChoice | None:
        """Return the choice held for a claim."""
        hold = self._holds.get(claim)
        return hold[0] if hold else None

    def users_of(self, claim: ClaimKey) -> Iterable[str]:
        """Return the pods for which the choice of a claim is held."""
        hold = self._holds.get(claim)
        return hold[1] if hold else ()

    def node_of(self, claim: PersistentVolumeClaim) -> str | None:
        """Return the node for which a claim's volume is being created, None without one."""
        written = claim.metadata.annotations.get(SELECTED_NODE)
        if written is not None:
            return written
        hold = self._holds.get((claim.metadata.namespace, claim.metadata.name))
        return (hold[0].node or None) if hold else None

    def volumes_for(self, claim: PersistentVolumeClaim) -> Iterator[tuple[PersistentVolume, bool]]:
        """Yield the volumes of a claim's class that are large enough, and whether each is reserved for it.

        Reserved volumes come first, then free ones, each the smallest first.
        """
        key, kind = (claim.metadata.namespace, claim.metadata.name), class_of_claim(claim)
        minimum_bytes = size_of(claim.spec.resources.requests.get("storage"))
        own = {name for _, name in self._given.get(key, ())}
        if (choice := self.choice_of(key)) is not None and choice.volume:
            own.add(choice.volume)
        for size, name in sorted(_size_and_name(self.volumes[name]) for name in own if name in self.volumes):
            volume = self.volumes[name]
            reserved = self._reserved.get(name) == key or belongs(volume, claim)
            if size >= minimum_bytes and class_of_volume(volume) == kind and reserved:
                yield volume, True
        free = self._free.get(kind, [])
        for index in range(bisect_left(free, (minimum_bytes, "")), len(free)):
            name = free[index][1]
            if name not in self._reserved:
                yield self.volumes[name], False

    def _index(self, volume: PersistentVolume, *, removed: bool = False) -> None:
        """Add a volume to the index of free volumes by class or of given volumes by claim, sorted by size."""
        reference = volume.spec.claim_ref
        if reference is None:
            entries: list[tuple[int, str]] = self._free.setdefault(class_of_volume(volume), [])
        else:
            entries = self._given.setdefault((reference.namespace, reference.name), [])
        entry = _size_and_name(volume)
        index = bisect_left(entries, entry)
        if not removed:
            entries.insert(index, entry)
            return
        del entries[index]
        if not entries and reference is not None:
            del self._given[reference.namespace, reference.name]


def _size_and_name(volume: PersistentVolume) -> tuple[int, str]:
    return size_of(volume.spec.capacity.get("storage")), volume.metadata.name


def _alike(old: Stored, new: Stored) -> bool:
    """Return whether two states of an object are equal except for their versions."""
    old_metadata, new_metadata = old.metadata, new.metadata
    comparable = msgspec.structs.replace(
        new_metadata, resource_version=old_metadata.resource_version, generation=old_metadata.generation
    )
    if comparable != old_metadata:
        return False
    return all(
        getattr(old, name) == getattr(new, name)
        for name in type(new).__struct_fields__  # type: ignore[attr-defined]
        if name != "metadata"
    )


def class_of_claim(claim: PersistentVolumeClaim) -> str:
    """Return the storage class of a claim, empty where there is none."""
    return claim.metadata.annotations.get(BETA_CLASS, claim.spec.storage_class_name or "")


def class_of_volume(volume: PersistentVolume) -> str:
    """Return the storage class of a volume, empty where there is none."""
    return volume.metadata.annotations.get(BETA_CLASS, volume.spec.storage_class_name)


def belongs(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether a volume is reserved for a claim."""
    reference, metadata = volume.spec.claim_ref, claim.metadata
    return (
        reference is not None
        and (reference.namespace, reference.name) == (metadata.namespace, metadata.name)
        and reference.uid in ("", metadata.uid)
    )
