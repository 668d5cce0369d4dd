"""Devices, classes and claims of the cluster as the API server reports them, and the pods that use each device.

The API server does not check that a device is given only once, so the scheduler must. From a decision until the API
server shows it, the devices of its claims are *held* here.
"""

from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from topo_scheduler.api.devices import (
    Allocation,
    DeviceClass,
    DeviceEntry,
    DeviceTaint,
    ResourceClaim,
    ResourceSlice,
    ResourceSliceSpec,
)
from topo_scheduler.api.objects import ObjectMeta, OwnerReference
from topo_scheduler.api.quantity import QuantityError, parse_unbounded
from topo_scheduler.state.devices.claim_consumers import BoundPods, ClaimConsumers, PodsWithoutNode
from topo_scheduler.state.devices.deleted_claims import DeletedClaims
from topo_scheduler.state.devices.extended_resources import (
    class_of_resource,
    classes_by_resource,
    extended_claim_owner,
)
from topo_scheduler.state.devices.kept_claims import KeptClaims
from topo_scheduler.state.devices.pool_problems import unreadable_field
from topo_scheduler.state.devices.pools import (
    DeviceId,
    Number,
    PoolId,
    PublishedDevice,
    Slice,
)
from topo_scheduler.state.devices.slice_reader import SharedParts, read_slice, unreadable_slice

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""
Key = TypeVar("Key", bound=Hashable)
_NO_SPEC: Final = ResourceSliceSpec()
_NO_LABELS: Final[dict[str, str]] = {}
_NO_OWNERS: Final[list[OwnerReference]] = []
_NOTHING: Final[Mapping[DeviceId, Mapping[str, Number] | None]] = {}


@dataclass(slots=True)
class DevicesInUse:
    """Devices of allocated claims, and those that pods wait for.

    Attributes:
        whole: devices that one claim has.
        shares: consumed amounts by capacity, of devices that several claims may have.
        promised: those of all these that no claim has yet.
    """

    whole: set[DeviceId] = field(default_factory=set)
    shares: dict[DeviceId, dict[str, Number]] = field(default_factory=dict)
    promised: set[DeviceId] = field(default_factory=set)

    def add(self, other: "DevicesInUse") -> None:
        """Add what is in use of other devices."""
        self.whole |= other.whole
        self.shares |= {device: dict(parts) for device, parts in other.shares.items()}
        self.promised |= other.promised

    def replace(self, device: DeviceId, parts: Iterable[Mapping[str, Number] | None]) -> bool:
        """Count these parts of a device in place of those before; return whether any device is in use."""
        self.whole.discard(device)
        self.shares.pop(device, None)
        for part in parts:
            _use(self, device, part)
        return bool(self.whole or self.shares)


@dataclass(slots=True)
class DeviceChanges:
    """What changed: claims, and nodes by name, of which devices or only their use changed; or those of all nodes.

    ``allocations``: claims that got devices or lost them. ``resources``: which extended resources devices back.
    ``lists``: a list was completed or refused.
    """

    claims: dict[ClaimKey, None] = field(default_factory=dict)
    allocations: dict[ClaimKey, None] = field(default_factory=dict)
    devices: dict[str, None] = field(default_factory=dict)
    use: dict[str, None] = field(default_factory=dict)
    all_devices: bool = False
    all_use: bool = False
    resources: bool = False
    lists: bool = False


class DeviceListener(Protocol):
    """What hears of changes at once. An object, so that a checkpoint can hold it."""

    def claim_changed(self, key: ClaimKey) -> None:
        """The devices of a claim changed."""

    def pool_changed(self, pool: PoolId) -> None:
        """The slices of a pool changed."""


class DeviceInventory:
    """All ResourceSlices, DeviceClasses and ResourceClaims."""

    def __init__(self, bound_pods: BoundPods | None = None, pending_pods: PodsWithoutNode | None = None) -> None:
        """``bound_pods``, ``pending_pods``: see `ClaimConsumers`."""
        self.slices: dict[str, ResourceSlice] = {}
        """Without their specifications, which are kept as they were read only: they are large."""
        self.classes: dict[str, DeviceClass] = {}
        self.claims: dict[ClaimKey, ResourceClaim] = {}
        self.unlisted: dict[str, bool] = {}
        """Resources without a complete list yet, and whether it was refused: pods with claims can't be judged."""
        self.unsettled: dict[ClaimKey, None] = {}
        """Claims that a write may still allocate although its decision was undone."""
        self.class_of_resource: dict[str, str] = {}
        """The DeviceClass of each extended resource that a class names."""
        self._class_names: frozenset[str] = frozenset()
        self._extended: dict[tuple[str, str], dict[ClaimKey, None]] = {}
        self.evicting: dict[str, dict[DeviceId, tuple[DeviceTaint, ...]]] = {}
        """Devices with taints of effect NoExecute, by slice."""
        self._evicting_devices: dict[DeviceId, int] = {}
        self.evicting_changes = 0
        """Number of changes so far of these devices, or of the claims that have them."""
        self.classes_version = 0
        """Number of changes of classes so far, for cache keys."""
        self.shared_slices_version = 0
        """Number of changes so far of slices that are for more than one node."""
        self.shared_use_version = 0
        """Number of changes so far of the use of their devices."""
        self._version = 0
        """The last version that was given to a node: none is given twice."""
        self._slices_versions: dict[str, int] = {}
        self._use_versions: dict[str, int] = {}
        self._read: dict[str, Slice] = {}
        self._parts = SharedParts()
        self._unread: dict[str, str] = {}
        self._of_node: dict[str, dict[str, None]] = {}
        self._for_many: dict[str, None] = {}
        self._of_pool: dict[PoolId, dict[str, None]] = {}
        self._pool_versions: dict[PoolId, int] = {}
        self._held: dict[ClaimKey, tuple[Allocation, set[str]]] = {}
        self._held_by: dict[str, dict[ClaimKey, Allocation]] = {}
        self._uses: dict[ClaimKey, Mapping[DeviceId, Mapping[str, Number] | None]] = {}
        self._of_namespace: dict[str, dict[ClaimKey, None]] = {}
        """Claims with devices."""
        self._users: dict[DeviceId, dict[ClaimKey, Mapping[str, Number] | None]] = {}
        self._used_of_pool: dict[PoolId, DevicesInUse] = {}
        """What claims have of each pool, also of devices that no slice publishes."""
        self._kept_claims = KeptClaims()
        self._nominated: dict[DeviceId, dict[str, Mapping[str, Number] | None]] = {}
        self.listeners: list[DeviceListener] = []
        self.consumers = ClaimConsumers(bound_pods, pending_pods)
        """Pods that use claims."""
        self.deleted_claims = DeletedClaims()
        self._changes = DeviceChanges()
        self.changed = False
        """Whether `take_changes` has something to return. An attribute, as each decision asks."""

    # ------------------------------------------------------------ observed objects

    def put(self, table: dict[Key, Any], key: Key, item: Any) -> None:
        """Store an object that appeared or changed in one of the tables above."""
        old = table.get(key)
        if isinstance(item, ResourceClaim) and old is not None and old.metadata.uid != item.metadata.uid:
            self.drop(table, key)  # another one has its name
            old = None
        if old is not None and item.metadata.is_older_than(old.metadata):
            return  # from before our own write
        if isinstance(item, ResourceSlice):
            self.slices[item.metadata.name] = ResourceSlice(_kept_metadata(item.metadata), _NO_SPEC)
            if old is None or not _has_same_spec(item.metadata, old.metadata):
                self._index(item)
            return
        if isinstance(item, ResourceClaim):
            item = self._kept_claims.keep(item, old)
            if item == old:
                return  # our own write comes back
        table[key] = item
        if isinstance(item, ResourceClaim):
            self._index_owner(old if isinstance(old, ResourceClaim) else None, item)
            if (old is not None and old.status.allocation is not None) != (item.status.allocation is not None):
                self._changes.allocations[item.metadata.namespace, item.metadata.name] = None
            self._claim_changed((item.metadata.namespace, item.metadata.name))
        elif old is None or old.spec != item.spec:
            self._classes_changed()

    def drop(self, table: dict[Key, Any], key: Key) -> None:
        """Remove an object."""
        item = table.pop(key, None)
        if isinstance(item, ResourceClaim):
            self._kept_claims.drop(item)
            self._index_owner(item, None)
            self._claim_changed((item.metadata.namespace, item.metadata.name))
            self._keep_deleted(item)
        elif isinstance(item, ResourceSlice):
            self._unindex(item.metadata.name)
        elif item is not None:
            self._classes_changed()

    @property
    def bound_pods(self) -> BoundPods | None:
        """Pods that may run with devices; without it no deleted claim is kept."""
        return self.consumers.bound_pods

    def _keep_deleted(self, claim: ResourceClaim) -> None:
        """Keep a deleted claim as long as pods run with its devices."""
        bound = self.bound_pods
        if bound is not None and (kept := self.deleted_claims.keep(claim, bound)) is not None:
            self.put(self.claims, (kept.metadata.namespace, kept.metadata.name), kept)

    def pod_gone(self, uid: str) -> None:
        """Record that a pod is not bound any more: drop the deleted claims that were kept for it alone."""
        for key in self.deleted_claims.release(uid):
            self.drop(self.claims, key)

    def listed(self, resource: str) -> None:
        """Record that the list of a resource is complete."""
        if resource in self.unlisted:
            del self.unlisted[resource]
            self._classes_changed()
            self._changes.claims |= dict.fromkeys(self.claims)
            self._changes.lists = True

    def refused(self, resource: str) -> None:
        """Record that the API server refuses to list a resource."""
        if self.unlisted.get(resource) is False:
            self.unlisted[resource] = self._changes.lists = self.changed = True

    def take_changes(self) -> DeviceChanges:
        """Return what changed since the last call."""
        changes, self._changes, self.changed = self._changes, DeviceChanges(), False
        return changes

    def problems(self) -> Mapping[str, str]:
        """Return which field of a slice can't be read and why, by name of the slice."""
        return self._unread

    def pools(self) -> list[PoolId]:
        """Return the pools that have slices."""
        return list(self._of_pool)

    def pool_version(self, pool: PoolId) -> int:
        """Return a value that changes with the slices of a pool and with the use of its devices; 0 without slices."""
        return self._pool_versions.get(pool, 0)

    def devices_in_use(self) -> list[DeviceId]:
        """Return the devices that claims have, whether or not a slice publishes them."""
        return list(self._users)

    def _classes_changed(self) -> None:
        self.classes_version += 1
        self._changes.all_devices = self.changed = True
        before = self.class_of_resource, self._class_names
        self.class_of_resource = classes_by_resource(self.classes.values())
        self._class_names = frozenset(self.classes)  # each backs a resource of its own name
        self._changes.resources |= before != (self.class_of_resource, self._class_names)

    # ------------------------------------------------------------ extended resources

    def backing_class(self, resource: str) -> str:
        """Return the DeviceClass that backs an extended resource, or an empty string."""
        return class_of_resource(resource, self.class_of_resource, self.classes)

    def extended_claims_of(self, namespace: str, uid: str) -> Iterable[ClaimKey]:
        """Return the claims that a scheduler made for the extended resources of a pod.

        Users can name any owner in the claims of their namespaces, so those of other namespaces do not count.
        """
        return self._extended.get((namespace, uid), {}).keys()

    def _index_owner(self, before: ResourceClaim | None, after: ResourceClaim | None) -> None:
        for claim, is_there in ((before, False), (after, True)):
            owner = extended_claim_owner(claim) if claim is not None else ""
            if claim is None or not owner:
                continue
            namespace, name = claim.metadata.namespace, claim.metadata.name
            if is_there:
                self._extended.setdefault((namespace, owner), {})[namespace, name] = None
            else:
                _discard(self._extended, (namespace, owner), (namespace, name))

    # ------------------------------------------------------------ slices of nodes and pools

    def slices_of(self, node: str) -> list[Slice]:
        """Return the slices that may concern a node: its own, those of several nodes, and counters of their pools."""
        slices = [self._read[name] for name in (*self._of_node.get(node, ()), *self._for_many)]
        if not slices:
            return slices
        known = {item.name for item in slices}
        pools = dict.fromkeys(item.pool for item in slices)
        return slices + [
            item for pool in pools for item in self.slices_of_pool(pool) if item.counters and item.name not in known
        ]

    def slices_of_pool(self, pool: PoolId) -> Sequence[Slice]:
        """Return all slices of a pool."""
        return [self._read[name] for name in self._of_pool.get(pool, ())]

    def slices_version(self, node: str) -> tuple[int, int]:
        """Return a value that changes with the slices that may concern a node."""
        return self._slices_versions.get(node, 0), self.shared_slices_version

    def device(self, id_: DeviceId) -> PublishedDevice | None:
        """Return a device as the slices of its pool publish it."""
        slices = sorted(self.slices_of_pool(id_[:2]), key=lambda item: -item.generation)
        name = id_[2]
        return next((device for item in slices for device in item.devices if device.id[2] == name), None)

    def counters_of(self, device: PublishedDevice) -> dict[tuple[str, str], Number]:
        """Return all counters of the sets that a device consumes."""
        if not device.counters:
            return {}
        slices = sorted(self.slices_of_pool(device.id[:2]), key=lambda item: item.generation)
        sets = {name for name, _ in device.counters}
        return {
            (set_, name): value
            for item in slices
            for set_, named in item.counters
            if set_ in sets
            for name, value in named.items()
        }

    def use_version(self, node: str) -> tuple[int, int]:
        """Return a value that changes with the use of devices that the node may have."""
        return self._use_versions.get(node, 0), self.shared_use_version

    def _index(self, item: ResourceSlice) -> None:
        name = item.metadata.name
        self._unindex(name)
        try:
            read = read_slice(item, self._parts)
        except QuantityError as error:
            self._unread[name] = unreadable_field(item.spec) or str(error)
            read = unreadable_slice(item, self._unread[name])
        self._read[name] = read
        self._of_pool.setdefault(read.pool, {})[name] = None
        self._index_taints(name, read.pool, item.spec.devices)
        if read.scope.node:
            self._of_node.setdefault(read.scope.node, {})[name] = None
        else:
            self._for_many[name] = None
        self._pool_changed(read.pool)
        for listener in self.listeners:
            listener.pool_changed(read.pool)

    def _unindex(self, name: str) -> None:
        self._unread.pop(name, None)
        read = self._read.get(name)
        if read is None:
            return
        self._pool_changed(read.pool)
        self._index_taints(name, read.pool, ())
        del self._read[name]
        _discard(self._of_pool, read.pool, name)
        if read.pool not in self._of_pool:
            self._pool_versions.pop(read.pool, None)
        self._for_many.pop(name, None)
        _discard(self._of_node, read.scope.node, name)
        if read.scope.node not in self._of_node:
            self._slices_versions.pop(read.scope.node, None)
            self._use_versions.pop(read.scope.node, None)
        for listener in self.listeners:
            listener.pool_changed(read.pool)

    def _index_taints(self, name: str, pool: PoolId, devices: Iterable[DeviceEntry]) -> None:
        """Record which devices of a slice have taints that evict pods."""
        before = self.evicting.pop(name, {})
        after = {
            (*pool, entry.name): taints
            for entry in devices
            if entry.taints and (taints := tuple(taint for taint in entry.taints if taint.effect == "NoExecute"))
        }
        if after:
            self.evicting[name] = after
        for devices_of_slice, change in ((after, 1), (before, -1)):
            for device in devices_of_slice:
                self._evicting_devices[device] = self._evicting_devices.get(device, 0) + change
                if not self._evicting_devices[device]:
                    del self._evicting_devices[device]
        self.evicting_changes += before != after

    def is_current(self, name: str) -> bool:
        """Return whether a slice is of the highest generation of its pool."""
        item = self._read.get(name)
        return item is not None and all(item.generation >= other.generation for other in self.slices_of_pool(item.pool))

    def pools_of_driver(self, driver: str) -> int:
        """Return the number of pools of a driver."""
        return sum(pool[0] == driver for pool in self._of_pool)

    def _pool_changed(self, pool: PoolId, *, used: bool = False) -> None:
        """Count a change of the slices of a pool, or of the use of its devices, for the nodes that can use it."""
        versions = self._use_versions if used else self._slices_versions
        changed = self._changes.use if used else self._changes.devices
        self.changed = True
        nodes: dict[str, None] = {}
        if pool in self._of_pool:
            self._version += 1
            self._pool_versions[pool] = self._version
        for name in self._of_pool.get(pool, ()):
            item = self._read[name]
            if item.scope.node:
                nodes[item.scope.node] = None
            else:
                self._changes.all_use |= used
                self._changes.all_devices |= not used
                self.shared_use_version += used
                self.shared_slices_version += not used
        for node in nodes:
            self._version += 1
            versions[node] = self._version
            changed[node] = None

    # ------------------------------------------------------------ use of devices

    @property
    def is_any_in_use(self) -> bool:
        """Whether any device is in use, or nominated."""
        return bool(self._users or self._nominated)

    @property
    def nominated(self) -> Container[DeviceId]:
        """Devices that pods wait for, as far as they count in the present attempt; false if there are none."""
        return self._nominated.keys()

    def use_of(self, devices: Iterable[DeviceId]) -> DevicesInUse:
        """Return which of some devices are in use, by allocated or held claims."""
        return self._use_without(devices, ())

    def used_by_others(self, devices: Iterable[DeviceId], namespace: str) -> set[DeviceId]:
        """Return those of some devices that claims of other namespaces have, or nominated pods get."""
        return {
            device
            for device in devices
            if device in self._nominated or any(key[0] != namespace for key in self._users.get(device, ()))
        }

    def use_of_pools(self, pools: Iterable[PoolId]) -> DevicesInUse:
        """Return which devices of some pools are in use, also those that no slice publishes."""
        wanted = list(pools)
        if self._nominated:
            return self.use_of(self._used_devices(wanted))
        used = DevicesInUse()
        for pool in wanted:
            if pool in self._used_of_pool:
                used.add(self._used_of_pool[pool])
        return used

    def _used_devices(self, pools: Sequence[PoolId]) -> list[DeviceId]:
        """Return the devices of some pools that a claim has or a pod waits for."""
        used = [self._used_of_pool[pool] for pool in pools if pool in self._used_of_pool]
        nominated = [device for device in self._nominated if device[:2] in pools]
        return sorted({device for of_pool in used for device in (*of_pool.whole, *of_pool.shares)}.union(nominated))

    def _use_without(self, devices: Iterable[DeviceId], freed: Container[ClaimKey]) -> DevicesInUse:
        """Return which of some devices are in use if some claims are not allocated."""
        used = DevicesInUse()
        for device in devices:
            for key, part in self._users.get(device, {}).items():
                if key not in freed:
                    _use(used, device, part)
            nominated = self._nominated.get(device, {})
            if nominated and device not in used.whole and device not in used.shares:
                used.promised.add(device)
            for part in nominated.values():
                _use(used, device, part)
        return used

    def allocation_of(self, key: ClaimKey) -> Allocation | None:
        """Return the allocation of a claim, that the API server has or that a decided pod holds."""
        claim = self.claims.get(key)
        if claim is not None and claim.status.allocation is not None:
            return claim.status.allocation
        held = self._held.get(key)
        return held[0] if held else None

    def held_by(self, uid: str) -> Mapping[ClaimKey, Allocation]:
        """Return the allocations that are held for a pod."""
        return self._held_by.get(uid, {})

    def is_held(self, key: ClaimKey) -> bool:
        """Return whether a decided pod that is not bound yet has a claim."""
        return key in self._held

    def holders_of(self, key: ClaimKey) -> Iterable[str]:
        """Return the pods for which a claim is held."""
        return self._held[key][1] if key in self._held else ()

    def claims_of_pool(self, pool: PoolId) -> Iterable[ClaimKey]:
        """Return the claims that have devices of a pool, as its slices name them."""
        ids = [device.id for item in self.slices_of_pool(pool) for device in item.devices]
        return dict.fromkeys(key for id_ in ids if id_ in self._users for key in self._users[id_])

    def pods_of(self, key: ClaimKey) -> set[str]:
        """Return the pods that use a claim or will, without those that are gone."""
        claim = self.claims.get(key)
        reserved = {entry.uid for entry in claim.status.reserved_for} if claim is not None else set()
        return reserved.difference(self.consumers.departed).union(self.holders_of(key))

    @staticmethod
    def devices_of_allocation(allocation: Allocation) -> Mapping[DeviceId, Mapping[str, Number] | None]:
        """Return the devices of an allocation without admin access, each with what a share consumes."""
        return _devices_of(allocation)

    def parts_of_allocation(
        self, allocation: Allocation
    ) -> Iterator[tuple[DeviceId, PublishedDevice | None, Mapping[str, Number] | None]]:
        """Yield each device of an allocation, None if no slice publishes it, and what a share consumes."""
        for id_, consumed in _devices_of(allocation).items():
            yield id_, self.device(id_), consumed

    def shapes_of_pool(self, pool: PoolId) -> tuple[int, ...]:
        """Return the shapes of all slices of a pool; none if one is unknown, or of another generation."""
        slices = self.slices_of_pool(pool)
        shapes = tuple([item.shape for item in slices])
        return shapes if all(shapes) and len({item.generation for item in slices}) == 1 else ()

    def users_of(self, device: DeviceId) -> Iterable[ClaimKey]:
        """Return the claims that have a device."""
        return self._users.get(device, {}).keys()

    def claims_in_use(self, namespace: str) -> Iterable[ClaimKey]:
        """Return the claims of a namespace that have devices."""
        return iter(self._of_namespace.get(namespace, ()))

    def hold(self, uid: str, allocations: Mapping[ClaimKey, Allocation]) -> None:
        """Hold the allocations of a pod's claims; pods that share a claim hold its allocation together."""
        self.release(uid)
        self._held_by[uid] = dict(allocations)
        for key, allocation in allocations.items():
            if key not in self._held:
                self._changes.allocations[key] = None
                self.changed = True
            self._held.setdefault(key, (allocation, set()))[1].add(uid)
            self._count(key)

    def release(self, uid: str) -> None:
        """Release what a pod held."""
        for key in self._held_by.pop(uid, ()):
            users = self._held[key][1]
            users.discard(uid)
            if not users:
                del self._held[key]
                self._changes.allocations[key] = None
                self.changed = True
                self._count(key)

    def nominate(self, uid: str, allocations: Iterable[Allocation], *, counts: bool) -> DeviceChanges:
        """Count devices as used, for a pod that waits for pods that have them; or count them no longer.

        This wakes no pod, because it holds only during an attempt and is undone after it.

        Returns:
            The nodes whose devices changed in use.
        """
        pools: dict[PoolId, None] = {}
        for allocation in allocations:
            for device, part in _devices_of(allocation).items():
                pools[device[:2]] = None
                if counts:
                    self._nominated.setdefault(device, {})[uid] = part
                else:
                    _discard(self._nominated, device, uid)
        before, self._changes = (self._changes, self.changed), DeviceChanges()
        for pool in pools:
            self._pool_changed(pool, used=True)
        changes, (self._changes, self.changed) = self._changes, before
        return changes

    def _claim_changed(self, key: ClaimKey) -> None:
        self._changes.claims[key] = None
        self.changed = True
        self.consumers.changed(key, self.claims.get(key))
        self._count(key)

    def _count(self, key: ClaimKey) -> None:
        """Bring the use of devices in line with a claim."""
        before, after = self._uses.get(key, _NOTHING), _devices_of(self.allocation_of(key))
        if before == after:
            return
        if self._evicting_devices and any(device in self._evicting_devices for device in (*before, *after)):
            self.evicting_changes += 1
        for device in before:
            _discard(self._users, device, key)
        for device, part in after.items():
            self._users.setdefault(device, {})[key] = part
        for device in {**before, **after}:
            self._count_device(device)
        if after:
            self._uses[key] = after
            self._of_namespace.setdefault(key[0], {})[key] = None
        else:
            self._uses.pop(key, None)
            _discard(self._of_namespace, key[0], key)
        for listener in self.listeners:
            listener.claim_changed(key)
        for pool in {device[:2] for device in (*before, *after)}:
            self._pool_changed(pool, used=True)

    def _count_device(self, device: DeviceId) -> None:
        """Bring the use of a device's pool in line with the device's users."""
        of_pool = self._used_of_pool.setdefault(device[:2], DevicesInUse())
        if not of_pool.replace(device, self._users.get(device, {}).values()):
            del self._used_of_pool[device[:2]]


def _use(used: DevicesInUse, device: DeviceId, part: Mapping[str, Number] | None) -> None:
    if part is None:
        used.whole.add(device)
        return
    shares = used.shares.setdefault(device, {})
    for name, amount in part.items():
        shares[name] = shares.get(name, 0) + amount


def _devices_of(allocation: Allocation | None) -> Mapping[DeviceId, Mapping[str, Number] | None]:
    """Return the devices of an allocation, with the consumed amounts of a share. Admin access uses no device."""
    if allocation is None:
        return _NOTHING
    devices: dict[DeviceId, Mapping[str, Number] | None] = {}
    for result in allocation.devices.results:
        if result.admin_access:
            continue
        id_ = (result.driver, result.pool, result.device)
        if result.share_id is None:
            devices[id_] = None
            continue
        parts = dict(devices.get(id_) or {})
        for name, text in (result.consumed_capacity or {}).items():
            parts[name] = parts.get(name, 0) + _amount(text)
        devices[id_] = parts
    return devices


def _amount(text: str | int | float) -> Number:
    try:
        return parse_unbounded(text)
    except QuantityError:
        return 0  # nothing can be consumed of what can't be read


def _discard(table: dict[Any, dict[Any, Any]], key: object, item: object) -> None:
    items = table.get(key)
    if items is not None:
        items.pop(item, None)
        if not items:
            del table[key]


def _kept_metadata(metadata: ObjectMeta) -> ObjectMeta:
    """Return what is read of a slice's metadata: there are tens of thousands."""
    return ObjectMeta(
        name=metadata.name,
        uid=metadata.uid,
        resource_version=metadata.resource_version,
        generation=metadata.generation,
        labels=_NO_LABELS,
        annotations=_NO_LABELS,
        owner_references=_NO_OWNERS,
    )


def _has_same_spec(metadata: ObjectMeta, other: ObjectMeta) -> bool:
    return metadata.uid == other.uid and metadata.generation == other.generation > 0
