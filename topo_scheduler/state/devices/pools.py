"""Devices that ResourceSlices publish, as pools: which of them a node can use, and the counters that they share.

The rules are those of Kubernetes 1.36 (``k8s.io/dynamic-resource-allocation/structured``): only slices of the highest
generation of a pool count, and nothing of a pool is allocated until all its slices are there.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import chain

from topo_scheduler.api.selectors import NodeSelector

Number = int | Fraction
"""An exact quantity."""
Amounts = tuple[tuple[str, Number], ...]
"""Amounts by counter."""
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


class DeviceAttributes(Mapping[str, AttributeValue]):
    """Attributes of a device by fully qualified name: those of its kind, and those that identify it."""

    __slots__ = ("_of_kind", "_own")

    def __init__(self, of_kind: Mapping[str, AttributeValue], own: Mapping[str, AttributeValue]) -> None:
        self._of_kind = of_kind
        self._own = own

    def __getitem__(self, name: str) -> AttributeValue:
        """Return an attribute."""
        return self._own[name] if name in self._own else self._of_kind[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        yield from self._of_kind
        yield from self._own

    def __len__(self) -> int:
        """Return the number of attributes."""
        return len(self._of_kind) + len(self._own)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKind:
    """What devices of identical hardware have alike, on all nodes: it is kept once.

    Attributes:
        attributes: those that do not identify a device, by fully qualified name, such as ``gpu.nvidia.com/type``.
        capacity: by name as written.
        counters: consumed amounts by counter set and counter.
        counter_sets: the counter sets that it names.
        consumption: the counters as one hashable value.
        taints: key, value and effect of each.
        shared: whether several claims may have it, each with a part of its capacity.
        binds_to_node: whether an allocation is for the chosen node although more nodes can use the device.
        binding_conditions: conditions that must become true before the pod is bound.
        binding_failure_conditions: conditions of which one means that they never will.
        readability: versions and amounts of capacities as written. Selectors depend on them whether or not they read
            them: a malformed one makes the device unreadable.
        unsupported: the field of such devices that the scheduler does not support, and the feature gate that it needs;
            empty if there is none. They are not allocated.
    """

    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    capacity: Mapping[str, Capacity] = field(default_factory=dict)
    counters: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    counter_sets: frozenset[str] = frozenset()
    consumption: tuple[tuple[tuple[str, str], Number], ...] = ()
    taints: tuple[tuple[str, str, str], ...] = ()
    shared: bool = False
    binds_to_node: bool = False
    binding_conditions: tuple[str, ...] | None = None
    binding_failure_conditions: tuple[str, ...] = ()
    unsupported: str = ""
    readability: tuple[tuple[str, object], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class PublishedDevice:
    """A device of a slice; there may be a million, so that the rest is of its kind.

    ``attributes``: all of them. ``scope``: the nodes that can use it.
    """

    id: DeviceId
    kind: DeviceKind
    attributes: Mapping[str, AttributeValue]
    scope: NodeScope

    @property
    def capacity(self) -> Mapping[str, Capacity]:
        """Return its capacities, by name as written."""
        return self.kind.capacity

    @property
    def counters(self) -> Mapping[tuple[str, str], Number]:
        """Return the amounts that it consumes, by counter set and counter."""
        return self.kind.counters

    @property
    def counter_sets(self) -> frozenset[str]:
        """Return the counter sets that it names."""
        return self.kind.counter_sets

    @property
    def consumption(self) -> tuple[tuple[tuple[str, str], Number], ...]:
        """Return the amounts that it consumes as one hashable value."""
        return self.kind.consumption

    @property
    def taints(self) -> tuple[tuple[str, str, str], ...]:
        """Return key, value and effect of its taints."""
        return self.kind.taints

    @property
    def shared(self) -> bool:
        """Return whether several claims may have it."""
        return self.kind.shared


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
class CounterSetForm:
    """What counter sets have in common whose devices consume alike: the counters, and what each device consumes.

    GPUs of a pool that are alike share one object, the key of results that are computed once.
    """

    counters: Amounts
    devices: tuple[Amounts, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CounterSetLayout:
    """The devices that consume one counter set, which mostly are a GPU and its partitions: their positions."""

    form: CounterSetForm
    positions: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PoolLayout:
    """What pools have in common whose slices have the same shapes and the same names of devices.

    Attributes:
        counters: amounts by counter set and counter.
        positions: the position of each device by its name.
        sets: the counter sets; none if a device consumes counters of several, or there are no counters.
        places: of each device by position the number of its counter set, and its number in that.
        binds_later: a device has binding conditions.
    """

    counters: Mapping[tuple[str, str], Number]
    positions: Mapping[str, int]
    sets: tuple[CounterSetLayout, ...]
    places: Mapping[int, tuple[int, int]]
    binds_later: bool


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """What a node can use of a pool.

    Attributes:
        id: driver and name.
        devices: devices that the node can use, in the order of slices and devices.
        others: devices for other nodes, and unsupported ones, which may consume the same counters.
        unsupported: those of ``others`` that the node could use, were it not for a field that is not supported.
        counters: amounts by counter set and counter.
        incomplete: not all slices of its generation exist yet, so nothing of it is allocated.
        invalid: what contradicts itself in the pool; empty if nothing does. Nothing of an invalid pool is allocated.
        shapes: those of its slices, if all are for one node as a whole; otherwise none.
        layout: what it has in common with pools of identical hardware; None where nothing shares it.
    """

    id: PoolId
    devices: tuple[PublishedDevice, ...] = ()
    others: tuple[PublishedDevice, ...] = ()
    unsupported: tuple[PublishedDevice, ...] = ()
    counters: Mapping[tuple[str, str], Number] = field(default_factory=dict)
    incomplete: bool = False
    invalid: str = ""
    shapes: tuple[int, ...] = ()
    layout: PoolLayout | None = None

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


# ---------------------------------------------------------------- pools of a node


def layout_key(shapes: tuple[int, ...], devices: Iterable[PublishedDevice]) -> object:
    """Return a value that is equal for pools of one layout, from the shapes of all slices and the devices in order."""
    return shapes, tuple([device.id[2] for device in devices])


def gather_pools(
    slices: Iterable[Slice],
    of_pool: Callable[[PoolId], Sequence[Slice]],
    matches: Callable[[NodeScope], bool],
    layouts: Mapping[object, PoolLayout] | None = None,
) -> list[Pool]:
    """Return the pools with devices that a node can use, in the order of their ids; those that bind later come last.

    Args:
        slices: all slices that may concern the node.
        of_pool: returns all slices of a pool, of any generation and any node.
        matches: returns whether the node is in a scope.
        layouts: those of pools that were found to be valid, by `layout_key`: equal pools are not checked again.
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
        if len(everything) != complete_at:
            pools.append(_incomplete(id_))
        else:
            pools.append(
                _known_pool(id_, known, everything, matches, layouts) or _pool(id_, known, everything, matches)
            )
    return sorted(pools, key=lambda pool: (binds_later(pool), pool.id))


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


def _known_pool(
    id_: PoolId,
    known: Sequence[Slice],
    everything: Sequence[Slice],
    matches: Callable[[NodeScope], bool],
    layouts: Mapping[object, PoolLayout] | None,
) -> Pool | None:
    """Return a pool that the node alone can use, if one of the same layout is known; its checks need no repetition."""
    if not layouts or len(known) != len(everything):
        return None
    known = sorted(known, key=lambda item: item.name)
    if not all(item.shape and item.scope.node and not item.by_device for item in known):
        return None
    if not all(item.counters or matches(item.scope) for item in known):
        return None
    devices = tuple(chain.from_iterable([item.devices for item in known if not item.counters]))
    shapes = tuple(item.shape for item in known)
    layout = layouts.get(layout_key(shapes, devices))
    return Pool(id_, devices, counters=layout.counters, shapes=shapes, layout=layout) if layout is not None else None


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
    of_node = [device for device in devices if matches(device.scope)]
    usable = [device for device in of_node if not device.kind.unsupported]
    unsupported = tuple(device for device in of_node if device.kind.unsupported)
    here = {device.id for device in usable}
    others = [device for device in (*devices, *elsewhere) if device.id not in here]
    of_one_node = not others and all(item.scope.node and not item.by_device for item in known)
    shapes = tuple(item.shape for item in known) if of_one_node else ()
    return Pool(id_, tuple(usable), tuple(others), unsupported, counters, shapes=shapes)


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


def binds_later(pool: Pool) -> bool:
    """Return whether a device of a pool has binding conditions."""
    if pool.layout is not None:
        return pool.layout.binds_later
    return any(device.kind.binding_conditions is not None for device in pool.devices)
