"""Devices that ResourceSlices publish, as pools: which of them a node can use, and the counters that they share.

The rules are those of Kubernetes 1.36 (``k8s.io/dynamic-resource-allocation/structured``): only slices of the highest
generation of a pool count, and nothing of a pool is allocated until all its slices are there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypeVar

from topo_scheduler.api.devices import CapacityPolicy, CounterSet, DeviceAttribute, DeviceEntry, ResourceSlice
from topo_scheduler.api.quantity import parse_unbounded
from topo_scheduler.api.selectors import NodeSelector
from topo_scheduler.state.devices.slice_shape import shape_key

Part = TypeVar("Part")
MAX_SHARED_PARTS: Final = 20_000
"""Parts of devices that are kept to be shared; those that devices have stay if the table is cleared."""
Number = int | Fraction
"""An exact quantity."""
DeviceId = tuple[str, str, str]
"""Driver, pool and name of a device."""
PoolId = tuple[str, str]
"""Driver and name of a pool."""
AttributeValue = tuple[str, int | bool | str]
"""Kind (``int``, ``bool``, ``string`` or ``version``) and value of an attribute."""


@dataclass(frozen=True, slots=True)
class Amount:
    """A quantity with its text, which is copied into allocations as it was written."""

    value: Number
    text: str


@dataclass(frozen=True, slots=True)
class Capacity:
    """A capacity of a device, and which parts of it may be consumed.

    ``limited``: a request policy exists. ``minimum``, ``maximum`` and ``step`` are those of its range.
    """

    total: Amount
    limited: bool = False
    default: Amount | None = None
    valid_values: tuple[Amount, ...] | None = None
    ranged: bool = False
    minimum: Amount | None = None
    maximum: Amount | None = None
    step: Amount | None = None


@dataclass(frozen=True, slots=True)
class NodeScope:
    """The nodes that can use a slice or a device."""

    node: str = ""
    selector: NodeSelector | None = None
    all_nodes: bool = False


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PublishedDevice:
    """A device of a slice.

    Attributes:
        id: driver, pool and name.
        attributes: by fully qualified name, such as ``gpu.nvidia.com/type``.
        capacity: by name as written.
        counters: consumed amounts by counter set and counter.
        counter_sets: the counter sets that it names.
        taints: key, value and effect of each.
        shared: whether several claims may have it, each with a part of its capacity.
        scope: the nodes that can use it.
        binds_to_node: whether an allocation is for the chosen node although more nodes can use the device.
        binding_conditions: conditions that must become true before the pod is bound.
        binding_failure_conditions: conditions of which one means that they never will.
        consumption: the counters as one hashable value.
    """

    id: DeviceId
    attributes: Mapping[str, AttributeValue]
    capacity: Mapping[str, Capacity]
    counters: Mapping[tuple[str, str], Number]
    counter_sets: frozenset[str]
    taints: tuple[tuple[str, str, str], ...]
    shared: bool
    scope: NodeScope
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] = ()
    consumption: tuple[tuple[tuple[str, str], Number], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Slice:
    """A ResourceSlice that was read.

    ``by_device``: its devices have scopes of their own. ``counters``: sets of counters by name, in their order.
    ``unreadable``: what of it can't be read; then it has neither devices nor counters, and its pool is invalid.
    """

    name: str
    pool: PoolId
    generation: int
    slices_in_pool: int
    scope: NodeScope
    by_device: bool
    devices: tuple[PublishedDevice, ...]
    counters: tuple[tuple[str, Mapping[str, Number]], ...]
    unreadable: str = ""
    shape: int = 0
    """A number that slices have in common which differ only in what identifies their devices; 0 if that is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What a node can use of a pool.

    Attributes:
        id: driver and name.
        devices: devices that the node can use, in the order of slices and devices.
        others: devices for other nodes, which may consume the same counters.
        counters: amounts by counter set and counter.
        incomplete: not all slices of its generation exist yet, so nothing of it is allocated.
        invalid: what contradicts itself in the pool; empty if nothing does. Nothing of an invalid pool is allocated.
        shapes: those of its slices, if all are for one node as a whole; otherwise none.
    """

    id: PoolId
    devices: tuple[PublishedDevice, ...] = ()
    others: tuple[PublishedDevice, ...] = ()
    counters: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    incomplete: bool = False
    invalid: str = ""
    shapes: tuple[int, ...] = ()

    @property
    def usable(self) -> bool:
        """Whether devices of the pool may be allocated."""
        return not (self.incomplete or self.invalid)

    @property
    def problem(self) -> str:
        """Why none of its devices may be allocated; empty if they may. It has no name of the pool, as of a node."""
        if self.usable:
            return ""
        return f"a pool of driver {self.id[0]} is {f'invalid: {self.invalid}' if self.invalid else 'being updated'}"


# ---------------------------------------------------------------- reading


class SharedParts:
    """Parts of devices that many nodes have alike, such as their counters: each is read and kept once."""

    def __init__(self) -> None:
        self._parts: dict[object, Any] = {}
        self._last_number = 0

    def number(self, key: object) -> int:
        """Return a number of a key, mostly the same one each time; no two keys ever have the same."""
        return self.once(key, self._next_number)

    def _next_number(self) -> int:
        self._last_number += 1
        return self._last_number

    def once(self, key: object, read: Callable[[], Part]) -> Part:
        """Return the part that was read for a key, which is all that it depends on."""
        known: Part | None = self._parts.get(key)
        if known is None:
            if len(self._parts) >= MAX_SHARED_PARTS:
                self._parts.clear()
            known = self._parts[key] = read()
        return known


def read_slice(item: ResourceSlice, parts: SharedParts | None = None) -> Slice:
    """Read a ResourceSlice.

    Args:
        item: the slice.
        parts: what other slices have alike.

    Raises:
        QuantityError: a capacity or counter is not a quantity.
    """
    spec, parts, of_slice = item.spec, parts or SharedParts(), SharedParts()
    scope = NodeScope(spec.node_name, spec.node_selector, spec.all_nodes)
    pool, by_device = (spec.driver, spec.pool.name), spec.per_device_node_selection
    devices = tuple(_device(pool, entry, scope, by_device, parts, of_slice) for entry in spec.devices)
    counters = tuple((entry.name, parts.once(_key(entry), partial(_counters, entry))) for entry in spec.shared_counters)
    return Slice(
        item.metadata.name,
        pool,
        spec.pool.generation,
        spec.pool.resource_slice_count,
        scope,
        by_device,
        devices,
        counters,
        shape=parts.number(("shape", shape_key(spec.driver, devices, counters))),
    )


def unreadable_slice(item: ResourceSlice, problem: str) -> Slice:
    """Return a slice that can't be read: without it, its pool would look as if the driver were still updating it."""
    spec = item.spec
    scope = NodeScope(spec.node_name, spec.node_selector, spec.all_nodes)
    pool, by_device = spec.pool, spec.per_device_node_selection
    id_, count = (spec.driver, pool.name), pool.resource_slice_count
    return Slice(item.metadata.name, id_, pool.generation, count, scope, by_device, (), (), problem)


def _device(
    pool: PoolId, entry: DeviceEntry, scope: NodeScope, by_device: bool, parts: SharedParts, of_slice: SharedParts
) -> PublishedDevice:
    conditions = entry.binding_conditions
    attributes = _attributes(pool[0], entry.attributes, parts)
    counters, counter_sets, consumption = parts.once(
        ("consumed", *map(_key, entry.consumes_counters)), partial(_consumed, entry.consumes_counters)
    )
    return PublishedDevice(
        id=(*pool, parts.once(entry.name, lambda: entry.name)),
        attributes=of_slice.once(tuple(attributes.items()), lambda: attributes),
        capacity=_capacities(entry, parts),
        counters=counters,
        counter_sets=counter_sets,
        taints=tuple((taint.key, taint.value, taint.effect) for taint in entry.taints),
        shared=bool(entry.allow_multiple_allocations),
        scope=NodeScope(entry.node_name or "", entry.node_selector, entry.all_nodes) if by_device else scope,
        binds_to_node=entry.binds_to_node,
        binding_conditions=tuple(conditions) if conditions is not None else None,
        binding_failure_conditions=tuple(entry.binding_failure_conditions),
        consumption=consumption,
    )


def _attributes(driver: str, written: Mapping[str, DeviceAttribute], parts: SharedParts) -> dict[str, AttributeValue]:
    """Return attributes by fully qualified name; one that is written qualified wins."""
    attributes: dict[str, AttributeValue] = {}
    for name in sorted(written, key=_is_qualified):
        attribute = written[name]
        key = driver, name, attribute.int_, attribute.bool_, attribute.string, attribute.version
        full, value = parts.once(key, partial(_attribute, driver, name, attribute))
        if value is not None:
            attributes[full] = value
    return attributes


def _is_qualified(name: str) -> bool:
    return "/" in name


def _attribute(driver: str, name: str, attribute: DeviceAttribute) -> tuple[str, AttributeValue | None]:
    kinds = ("int", attribute.int_), ("bool", attribute.bool_), ("string", attribute.string)
    values = ((kind, value) for kind, value in (*kinds, ("version", attribute.version)) if value is not None)
    return name if _is_qualified(name) else f"{driver}/{name}", next(values, None)


def _key(entry: CounterSet) -> object:
    return entry.name, entry.counter_set, tuple((name, counter.value) for name, counter in entry.counters.items())


def _consumed(
    entries: Sequence[CounterSet],
) -> tuple[Mapping[tuple[str, str], Number], frozenset[str], tuple[tuple[tuple[str, str], Number], ...]]:
    counters = {
        (consumed.counter_set, name): amount for consumed in entries for name, amount in _counters(consumed).items()
    }
    return counters, frozenset(consumed.counter_set for consumed in entries), tuple(sorted(counters.items()))


def _capacities(entry: DeviceEntry, parts: SharedParts) -> Mapping[str, Capacity]:
    def read() -> Mapping[str, Capacity]:
        return {name: _capacity(item.value, item.request_policy) for name, item in entry.capacity.items()}

    if any(item.request_policy is not None for item in entry.capacity.values()):
        return read()
    return parts.once(("capacity", *((name, item.value) for name, item in entry.capacity.items())), read)


def amount(text: str | int | float) -> Amount:
    """Return a quantity with its text.

    Raises:
        QuantityError: it is malformed or negative.
    """
    return Amount(parse_unbounded(text), str(text))


def _capacity(total: str | int | float, policy: CapacityPolicy | None) -> Capacity:
    if policy is None:
        return Capacity(amount(total))
    limits = policy.valid_range
    minimum, maximum, step = (limits.min, limits.max, limits.step) if limits is not None else (None, None, None)
    return Capacity(
        amount(total),
        limited=True,
        default=amount(policy.default) if policy.default is not None else None,
        valid_values=tuple(map(amount, policy.valid_values)) if policy.valid_values is not None else None,
        ranged=limits is not None,
        minimum=amount(minimum) if minimum is not None else None,
        maximum=amount(maximum) if maximum is not None else None,
        step=amount(step) if step is not None else None,
    )


def _counters(entry: CounterSet) -> dict[str, Number]:
    return {name: parse_unbounded(counter.value) for name, counter in entry.counters.items()}


# ---------------------------------------------------------------- pools of a node


def gather_pools(
    slices: Iterable[Slice], of_pool: Callable[[PoolId], Sequence[Slice]], matches: Callable[[NodeScope], bool]
) -> list[Pool]:
    """Return the pools with devices that a node can use, in the order of their ids; those that bind later come last.

    Args:
        slices: all slices that may concern the node.
        of_pool: returns all slices of a pool, of any generation and any node.
        matches: returns whether the node is in a scope.
    """
    newest: dict[PoolId, list[Slice]] = {}
    for item in slices:
        if item.counters or _concerns(item, matches):
            known = newest.setdefault(item.pool, [])
            if known and item.generation > known[0].generation:
                known.clear()
            if not known or item.generation == known[0].generation:
                known.append(item)
    pools = []
    for id_, known in newest.items():
        everything, generation, complete_at = known, known[0].generation, known[0].slices_in_pool
        if len(known) != complete_at:
            of_all_nodes = of_pool(id_)
            if any(item.generation > generation for item in of_all_nodes):
                continue  # the driver replaces this generation by one without devices for the node
            everything = [item for item in of_all_nodes if item.generation == generation]
        pools.append(_pool(id_, known, everything, matches) if len(everything) == complete_at else _incomplete(id_))
    return sorted(pools, key=lambda pool: (_binds_later(pool), pool.id))


def whole_pool(slices: Sequence[Slice]) -> Pool | None:
    """Return what all nodes together can use of a pool, None without slices.

    Args:
        slices: all slices of one pool, of any generation.
    """
    if not slices:
        return None
    generation = max(item.generation for item in slices)
    newest = [item for item in slices if item.generation == generation]
    id_ = newest[0].pool
    if len(newest) != newest[0].slices_in_pool:
        return _incomplete(id_)
    return _pool(id_, newest, newest, lambda scope: True)


def _concerns(item: Slice, matches: Callable[[NodeScope], bool]) -> bool:
    if item.scope != NodeScope():
        return matches(item.scope)
    return item.by_device and any(matches(device.scope) for device in item.devices)


def _incomplete(id_: PoolId) -> Pool:
    return Pool(id_, incomplete=True)


def _pool(id_: PoolId, known: list[Slice], everything: Sequence[Slice], matches: Callable[[NodeScope], bool]) -> Pool:
    known = sorted(known, key=lambda item: item.name)
    if unreadable := next((item.unreadable for item in everything if item.unreadable), ""):
        return Pool(id_, invalid=unreadable)
    names = {item.name for item in known}
    elsewhere = [device for item in everything if item.name not in names for device in item.devices]
    devices = [device for item in known if not item.counters for device in item.devices]
    counters: dict[tuple[str, str], Number] = {}
    sets: set[str] = set()
    for item in known:
        for name, amounts in item.counters:
            if name in sets:
                return Pool(id_, invalid=f"counter set {name} exists twice")
            sets.add(name)
            counters |= {(name, counter): value for counter, value in amounts.items()}
    if problem := _contradiction(devices, elsewhere, counters, sets):
        return Pool(id_, invalid=problem)
    usable = [device for device in devices if matches(device.scope)]
    here = {device.id for device in usable}
    others = [device for device in (*devices, *elsewhere) if device.id not in here]
    of_one_node = not others and all(item.scope.node and not item.by_device for item in known)
    shapes = tuple(item.shape for item in known) if of_one_node else ()
    return Pool(id_, tuple(usable), tuple(others), counters, shapes=shapes)


def _contradiction(
    devices: Sequence[PublishedDevice],
    elsewhere: Sequence[PublishedDevice],
    counters: Mapping[tuple[str, str], Number],
    sets: set[str],
) -> str:
    names: set[str] = set()
    for device in devices:
        if device.id[2] in names:
            return f"device {device.id[2]} exists twice"
        names.add(device.id[2])
    for device in (*devices, *elsewhere):
        if missing := sorted(device.counter_sets - sets):
            return f"device {device.id[2]} consumes counters of set {missing[0]}, which does not exist"
        for set_, counter in device.counters:
            if (set_, counter) not in counters:
                return f"device {device.id[2]} consumes counter {counter} of set {set_}, which does not exist"
    return ""


def _binds_later(pool: Pool) -> bool:
    return any(device.binding_conditions is not None for device in pool.devices)
