"""How much of the room that pods left, or were to leave, is free or used by one namespace."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from topo_scheduler.state.ledger.ledger import Ledger
from topo_scheduler.state.nodes.node_table import NodeTable

NOTHING: Final[Mapping[int, int]] = MappingProxyType({})


def pods_of(ledger: Ledger, namespace: str, nodes: Iterable[str]) -> Iterator[str]:
    """Yield the pods of a namespace on nodes, by uid."""
    for node in set(nodes):
        for uid in ledger.on_node(node):
            if ledger.namespace_of(uid) == namespace:
                yield uid


def amounts_by_node(ledger: Ledger, uids: Iterable[str]) -> defaultdict[str, Counter[int]]:
    """Return what pods hold on each node, by resource column. Those that hold nothing any more do not count."""
    amounts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for uid in uids:
        if (entry := ledger.get(uid)) is not None:
            amounts[entry.node].update(dict(entry.amounts))
    return amounts


def taken_since(
    ledger: Ledger, namespace: str, nodes: Iterable[str], known: Collection[str]
) -> defaultdict[str, Counter[int]]:
    """Return what pods of a namespace hold on nodes, without those that are ``known`` by uid; by node and column."""
    return amounts_by_node(ledger, (uid for uid in pods_of(ledger, namespace, nodes) if uid not in known))


def is_mostly_free(
    nodes: NodeTable, room: Mapping[str, Mapping[int, int]], more: Mapping[str, Mapping[int, int]]
) -> bool:
    """Return whether more than half of some room is free now.

    On each node, the scarcest resource counts. A node that takes no pods has no room.

    Args:
        nodes: all nodes.
        room: amounts by node and column.
        more: amounts by node and column to add to what is free.
    """
    taken_permille = 0
    for node, amounts in room.items():
        row = nodes.row_of.get(node)
        if row is None or not nodes.ready[row] or nodes.unschedulable[row]:
            taken_permille += 1000
            continue
        added = more.get(node, NOTHING)
        missing = 0
        for column, amount in amounts.items():
            free = int(nodes.allocatable[row, column] - nodes.requested[row, column]) + added.get(column, 0)
            missing = max(missing, 1000 * (amount - free) // max(amount, 1))
        taken_permille += min(missing, 1000)
    return 2 * taken_permille < 1000 * len(room)
