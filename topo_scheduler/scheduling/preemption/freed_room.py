"""Room for which pods were evicted, and whose pods are in it when the workload does not get it."""

from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain

from topo_scheduler.api.devices import Allocation
from topo_scheduler.api.objects import Taint
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.devices.inventory import DeviceInventory
from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, Amounts


class TakenBy(Enum):
    """Whose pods are in the room of a workload that did not get it.

    ``NOBODY``: it is free, so anyone may keep the workload away. ``ITS_NAMESPACE``: other pods of the same namespace
    came, or the workload was edited, refused, or lost pods. ``OTHERS``: at least half of it is gone.
    ``OTHERS_IN_PART``: less than half is gone, or pods of other namespaces came, or grew, that use little. They may be
    accomplices, or attackers.
    """

    NOBODY = "nobody"
    ITS_NAMESPACE = "its namespace"
    OTHERS_IN_PART = "others in part"
    OTHERS = "others"


@dataclass(frozen=True, slots=True)
class FreedRoom:
    """Room that evicted pods leave for a workload of a namespace.

    ``amounts`` by node and resource column. ``present`` are the pods that were on these nodes before, by uid, with what
    they held, and ``taints`` those of the nodes. ``spare`` is what was free beside the amounts, if that counts, by node
    and column. ``devices`` are those to get. ``evicted`` counts the evicted pods of other namespaces by node,
    with those for other workloads whose room is taken over.
    """

    namespace: str
    amounts: Mapping[str, Mapping[int, int]]
    present: Mapping[str, Amounts]
    taints: Mapping[str, tuple[Taint, ...]]
    spare: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    devices: tuple[Allocation, ...] = ()
    evicted: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> Counter[int]:
        """The amounts of all nodes by resource column."""
        return total_of(self.amounts)


def room_on(
    world: World,
    namespace: str,
    seats: Iterable[tuple[str, Amounts]],
    *,
    own: Collection[str] = (),
    devices: Iterable[Allocation] = (),
    evicted: Mapping[str, int] | None = None,
) -> FreedRoom:
    """Return the room for pods, given the node and amounts of each. ``own``: those of them that hold it, by uid.

    ``evicted`` counts the evicted pods of other namespaces by node.
    """
    ledger, nodes = world.ledger, world.nodes
    amounts = by_node(seats)
    entries = ((uid, ledger.get(uid)) for uid in _pods_on(ledger, amounts) if uid not in own)
    present = {uid: entry.amounts for uid, entry in entries if entry is not None}
    rows = ((node, nodes.row_of.get(node)) for node in amounts)
    taints = {node: _taints(nodes, row) for node, row in rows if row is not None}
    return FreedRoom(namespace, amounts, present, taints, devices=tuple(devices), evicted=evicted or {})


def room_of(world: World, namespace: str, leaving: Iterable[str]) -> FreedRoom:
    """Return the room that pods leave for a workload of a namespace, by uid. Those that have ended do not count."""
    ledger, nodes = world.ledger, world.nodes
    entries = [entry for uid in leaving if (entry := ledger.get(uid)) is not None]
    room = room_on(world, namespace, ((entry.node, entry.amounts) for entry in entries))
    spare = {
        node: {column: _free(nodes, row, column) for column in amounts}
        for node, amounts in room.amounts.items()
        if (row := nodes.row_of.get(node)) is not None
    }
    return replace(room, spare=spare)


def taken_by(world: World, room: FreedRoom, own: Container[str]) -> TakenBy:
    """Return whose pods are in some room, once the victims have ended.

    ``own``: the pods of the workload itself, by uid. What they hold of the room is not taken.
    """
    ledger, inventory = world.ledger, world.inventory
    devices = {device for allocation in room.devices for device in inventory.devices_of_allocation(allocation)}
    lost = inventory.used_by_others(devices, room.namespace)
    lost |= {device for device in devices if inventory.device(device) is None}  # the driver withdrew it
    if 2 * len(lost) > len(devices):
        return TakenBy.OTHERS
    of_workload: defaultdict[str, Counter[int]] = defaultdict(Counter)
    of_namespace: defaultdict[str, Counter[int]] = defaultdict(Counter)
    others = bool(lost)
    for uid in _pods_on(ledger, room.amounts):
        entry = ledger.get(uid)
        if entry is None or room.present.get(uid) == entry.amounts:
            continue
        if ledger.namespace_of(uid) != room.namespace:
            others = True
            continue
        held = of_workload if uid in own else of_namespace
        held[entry.node].update(dict(entry.amounts))
        held[entry.node].subtract(dict(room.present.get(uid, ())))
    for node, amounts in room.spare.items():
        of_workload[node].subtract(amounts)
    without_namespace: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for part in (of_workload, of_namespace):
        for node, amounts in part.items():
            without_namespace[node].update(amounts)
    taken = _taken(world.nodes, room, without_namespace)
    if taken and 2 * sum(taken) >= 1000 * len(taken):
        return TakenBy.OTHERS
    if others or 1000 in taken:
        return TakenBy.OTHERS_IN_PART
    return TakenBy.ITS_NAMESPACE if taken != _taken(world.nodes, room, of_workload) or devices else TakenBy.NOBODY


def is_lost(world: World, room: FreedRoom) -> bool:
    """Return whether at least half of the nodes of some room take no pods any more, or have other taints."""
    lost = (_taken_permille(world.nodes, node, {}, {}, room.taints.get(node)) for node in room.amounts)
    return 2 * sum(lost) >= 1000 * len(room.amounts)


def _taken(nodes: NodeTable, room: FreedRoom, more: Mapping[str, Mapping[int, int]]) -> list[int]:
    """Return for each node of some room which part of it is gone, in thousandths, if there is ``more``."""
    return [
        _taken_permille(nodes, node, amounts, more.get(node, {}), room.taints.get(node))
        for node, amounts in room.amounts.items()
    ]


def uses_half_of_scarce(
    nodes: NodeTable,
    wanted: Mapping[int, int],
    room: Mapping[str, Mapping[int, int]],
    held: Mapping[str, Mapping[int, int]],
) -> bool:
    """Return whether amounts that are held use at least half of what was wanted of some room.

    Only the scarce resource counts. Room and amounts are by node and resource column.
    """
    return is_half(total_of(used_of(room, held)), scarce_of(nodes, room, wanted))


def used_of(room: Mapping[str, Mapping[int, int]], held: Mapping[str, Mapping[int, int]]) -> dict[str, Counter[int]]:
    """Return what amounts that are held use of some room, by node and resource column."""
    return {
        node: Counter({column: min(amount, held.get(node, {}).get(column, 0)) for column, amount in amounts.items()})
        for node, amounts in room.items()
    }


def total_of(amounts: Mapping[str, Mapping[int, int]]) -> Counter[int]:
    """Return amounts by node and resource column, of all nodes together."""
    total: Counter[int] = Counter()
    for part in amounts.values():
        total.update(part)
    return total


def is_half(used: Mapping[int, int], wanted: Mapping[int, int]) -> bool:
    """Return whether amounts are at least half of those wanted, by resource column."""
    return all(2 * used.get(column, 0) >= amount for column, amount in wanted.items())


def count_of_devices(allocations: Iterable[Allocation]) -> int:
    """Return how many devices allocations have together; one that pods share counts once."""
    devices = (DeviceInventory.devices_of_allocation(allocation) for allocation in allocations)
    return len(set(chain.from_iterable(devices)))


def by_node(seats: Iterable[tuple[str, Amounts]]) -> defaultdict[str, Counter[int]]:
    """Return the amounts on each node together, by resource column."""
    together: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for node, amounts in seats:
        together[node].update(dict(amounts))
    return together


def scarce_of(table: NodeTable, nodes: Iterable[str], wanted: Mapping[int, int]) -> Counter[int]:
    """Return the scarce resource of amounts by column: that of which they are the largest part of what nodes have.

    Of several it is GPUs, otherwise CPU, or what else there is. It depends on the nodes, as users choose the amounts:
    pods with little CPU may have others evicted for their memory.
    """
    allocatable = table.allocatable[[table.row_of[node] for node in nodes if node in table.row_of]].sum(axis=0)

    def scarcity(column: int) -> tuple[int, ...]:
        has = int(allocatable[column])
        return 1000 * wanted[column] // has if has else 0, column == GPU, column == GPU_SHARE, column == CPU, -column

    column = max((column for column, amount in wanted.items() if amount), key=scarcity, default=None)
    return Counter() if column is None else Counter({column: wanted[column]})


def _taken_permille(
    nodes: NodeTable,
    node: str,
    amounts: Mapping[int, int],
    more: Mapping[int, int],
    taints: tuple[Taint, ...] | None,
) -> int:
    """Return the part that is gone of the scarcest of some amounts. A node that takes no pods has no room.

    ``more`` is added to what is free. A node with other ``taints`` than before may take none either.
    """
    row = nodes.row_of.get(node)
    if row is None or not nodes.ready[row] or nodes.unschedulable[row] or _taints(nodes, row) != taints:
        return 1000
    missing = (
        1000 * (amount - _free(nodes, row, column) - more.get(column, 0)) // max(amount, 1)
        for column, amount in amounts.items()
    )
    return min(1000, max(0, *missing, 0))


def _taints(nodes: NodeTable, row: int) -> tuple[Taint, ...]:
    return nodes.taint_sets[int(nodes.taint_set[row])]


def _free(nodes: NodeTable, row: int, column: int) -> int:
    return int(nodes.allocatable[row, column] - nodes.requested[row, column])


def _pods_on(ledger: Ledger, nodes: Iterable[str]) -> Iterator[str]:
    return chain.from_iterable(ledger.on_node(node) for node in nodes)
