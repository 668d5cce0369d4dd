"""Read ResourceSlices: what thousands of nodes publish alike is read and kept once."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from topo_scheduler.api.devices import (
    CapacityPolicy,
    CounterSet,
    DeviceAttribute,
    DeviceEntry,
    ResourceSlice,
    ResourceSliceSpec,
)
from topo_scheduler.api.quantity import parse_unbounded
from topo_scheduler.state.devices.pools import (
    Amount,
    AttributeValue,
    Capacity,
    DeviceAttributes,
    DeviceKind,
    NodeScope,
    Number,
    PoolId,
    PublishedDevice,
    Slice,
)
from topo_scheduler.state.devices.slice_shape import is_identity, shape_key

Part = TypeVar("Part")
MAX_SHARED_PARTS: Final = 20_000
"""Parts of devices that are kept to be shared; those that devices have stay if the table is cleared."""


class SharedParts:
    """Parts of devices that many nodes have alike, such as their counters: each is read and kept once."""

    def __init__(self) -> None:
        self._parts: dict[object, Any] = {}
        self._last_number = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return no parts: some keys are addresses, which a checkpoint does not keep."""
        return {"_parts": {}, "_last_number": self._last_number}

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


_LIST: Final = DeviceAttribute()


def read_slice(item: ResourceSlice, parts: SharedParts | None = None) -> Slice:
    """Read a ResourceSlice.

    Args:
        item: the slice.
        parts: what other slices have alike.

    Raises:
        QuantityError: a capacity or counter is not a quantity.
    """
    spec, parts, of_slice = item.spec, parts or SharedParts(), SharedParts()
    scope, pool = _scope_and_pool(spec, parts)
    by_device = spec.per_device_node_selection
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


def _scope_and_pool(spec: ResourceSliceSpec, parts: SharedParts) -> tuple[NodeScope, PoolId]:
    """Return the nodes of a slice and its pool, which other slices mostly have too."""
    if spec.node_selector is not None:
        return NodeScope(spec.node_name, spec.node_selector, spec.all_nodes), (spec.driver, spec.pool.name)
    scope = NodeScope(spec.node_name, None, spec.all_nodes)
    pool = parts.once(spec.driver, lambda: spec.driver), spec.pool.name
    return parts.once(("of", scope, pool), lambda: (scope, pool))


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
    of_kind, attributes = of_slice.once(
        tuple(entry.attributes.items()), partial(_attributes, pool[0], entry.attributes, parts, of_slice)
    )
    return PublishedDevice(
        (*pool, parts.once(entry.name, lambda: entry.name)),
        _kind(entry, of_kind, parts),
        attributes,
        NodeScope(entry.node_name or "", entry.node_selector, entry.all_nodes) if by_device else scope,
    )


def _kind(entry: DeviceEntry, attributes: Mapping[str, AttributeValue], parts: SharedParts) -> DeviceKind:
    capacity = _capacities(entry, parts)
    consumed = parts.once(
        ("consumed", *map(_key, entry.consumes_counters)), partial(_consumed, entry.consumes_counters)
    )
    conditions = entry.binding_conditions
    of_entry = (
        tuple((taint.key, taint.value, taint.effect) for taint in entry.taints),
        bool(entry.allow_multiple_allocations),
        entry.binds_to_node,
        tuple(conditions) if conditions is not None else None,
        tuple(entry.binding_failure_conditions),
        _unsupported(entry),
    )
    # The kind keeps its parts, so no other part gets their addresses as long as the table has the kind.
    key = "kind", id(attributes), id(capacity), id(consumed[0]), of_entry
    taints, shared, binds, binding, failing, unsupported = of_entry

    def read() -> DeviceKind:
        readability = _readability(attributes, capacity)
        return DeviceKind(
            attributes, capacity, *consumed, taints, shared, binds, binding, failing, unsupported, readability
        )

    return parts.once(key, read)


def _readability(
    attributes: Mapping[str, AttributeValue], capacity: Mapping[str, Capacity]
) -> tuple[tuple[str, object], ...]:
    versions = ((name, value) for name, (kind, value) in attributes.items() if kind == "version")
    return (*versions, *((name, item.total.text) for name, item in capacity.items()))


def _unsupported(entry: DeviceEntry) -> str:
    """Return the field of a device that would decide about it but is not read, with its feature gate."""
    if entry.node_allocatable_resource_mappings:
        return "nodeAllocatableResourceMappings (feature gate DRANodeAllocatableResources)"
    lists = (name for name, attribute in entry.attributes.items() if attribute == _LIST)
    name = next(lists, None)
    return f"attributes[{name}], a list (feature gate DRAListTypeAttributes)" if name is not None else ""


def _attributes(
    driver: str, written: Mapping[str, DeviceAttribute], parts: SharedParts, of_slice: SharedParts
) -> tuple[Mapping[str, AttributeValue], Mapping[str, AttributeValue]]:
    """Return the attributes of a device's kind and all of its own; one that is written qualified wins."""
    attributes: dict[str, AttributeValue] = {}
    for name in sorted(written, key=_is_qualified):
        full, value = parts.once(
            ("attribute", driver, name, written[name]), partial(_attribute, driver, name, written[name])
        )
        if value is not None:
            attributes[full] = value
    own = {name: value for name, value in attributes.items() if value[0] == "string" and is_identity(name)}
    rest = {name: value for name, value in attributes.items() if name not in own}
    of_kind = parts.once(("attributes", *rest.items()), lambda: rest)
    own = of_slice.once(("own", *own.items()), lambda: own)
    return of_kind, DeviceAttributes(of_kind, own)


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

    written = ((name, item.value, _policy_key(item.request_policy)) for name, item in entry.capacity.items())
    return parts.once(("capacity", *written), read)


def _policy_key(policy: CapacityPolicy | None) -> bytes:
    return msgspec.json.encode(policy) if policy is not None else b""


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
