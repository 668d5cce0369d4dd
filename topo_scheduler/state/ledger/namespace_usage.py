"""Resources that the pods of each namespace hold, from any scheduler, and the namespace's share of the cluster.

The share is the dominant share of Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011): the largest of its shares
of all GPUs, all CPU and all memory, here in millionths and rounded down. The ledger is the only writer, so a
restarted process has the same accounts as one that followed every event.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.state.nodes.node_table import NodeTable
from topo_scheduler.state.nodes.resources import CPU, GPU, GPU_SHARE, MEMORY, Amounts

SHARED: Final = (GPU, CPU, MEMORY)
"""Resource columns that count for a namespace's share."""
WHOLE_SHARE: Final = 1_000_000
"""The share of a namespace that holds all of a resource."""

Listener = Callable[[int, str, Amounts, int], None]
"""Called for each change with row, namespace, amounts, and 1 or -1."""

_NOTHING: Final[Mapping[int, int]] = {}


class Accounts:
    """Sums by namespace over the pods that are bound or assumed on known nodes."""

    def __init__(self, nodes: NodeTable) -> None:
        self.listeners: list[Listener] = []
        self._nodes = nodes
        self._held: dict[str, dict[int, int]] = {}
        self._capacity: tuple[tuple[int, int], ...] = ()
        self._capacity_at = -1
        self.offered = 0
        """GPUs that nodes offer as devices of claims, in thousandths."""
        self._shares: dict[str, int] = {}
        self._changed: dict[str, None] | None = {}

    def change(self, row: int, namespace: str, amounts: Amounts, sign: int) -> None:
        """Add what a pod holds; with sign -1, subtract it."""
        held = self._held.setdefault(namespace, {})
        for column, amount in amounts:
            total = held[column] = held.get(column, 0) + sign * amount
            if not total:
                del held[column]
        if not held:
            del self._held[namespace]
        self._shares.pop(namespace, None)
        if self._changed is not None:
            self._changed[namespace] = None
        for listener in self.listeners:
            listener(row, namespace, amounts, sign)

    def offer(self, gpus: int) -> None:
        """Add GPUs that nodes offer as devices of claims, in thousandths."""
        self.offered += gpus
        self._capacity_at = -1

    def gpus(self) -> int:
        """Return how many GPUs all nodes have, in thousandths, as pods may hold shares of them.

        Those in slices count once, also where they back an extended resource and so are among the allocatable ones.
        """
        nodes = self._nodes
        backed = sum(columns.get(GPU, 0) for columns in nodes.backed_columns.values())
        named = int(nodes.allocatable[:, GPU].sum()) - backed
        return WHOLE_GPU * named + max(self.offered, WHOLE_GPU * backed)

    def held(self, namespace: str) -> Mapping[int, int]:
        """Return what the pods of a namespace hold, by resource column."""
        return self._held.get(namespace, _NOTHING)

    def namespaces(self) -> Iterable[str]:
        """Return the namespaces that hold resources."""
        return self._held.keys()

    def share(self, namespace: str) -> int:
        """Return a namespace's dominant share of all known nodes, in millionths."""
        self._refresh()
        share = self._shares.get(namespace)
        if share is None:
            held = self.held(namespace)
            share = max((WHOLE_SHARE * _held(held, column) // total for column, total in self._capacity), default=0)
            self._shares[namespace] = share
        return share

    def take_changed(self) -> Iterable[str] | None:
        """Return the namespaces whose share may have changed since the last call, None when all may."""
        self._refresh()
        changed, self._changed = self._changed, {}
        return changed

    def _refresh(self) -> None:
        position = self._nodes.facts_changes.position
        if position == self._capacity_at:
            return
        self._capacity_at = position
        sums = self._nodes.allocatable[:, list(SHARED)].sum(axis=0).tolist()
        sums[0] = self.gpus()
        capacity = tuple((column, total) for column, total in zip(SHARED, sums, strict=True) if total)
        if capacity != self._capacity:
            self._capacity = capacity
            self._shares.clear()
            self._changed = None


def _held(amounts: Mapping[int, int], column: int) -> int:
    """Return the amount held of a resource; for GPUs in thousandths, including shares."""
    if column == GPU:
        return WHOLE_GPU * amounts.get(GPU, 0) + amounts.get(GPU_SHARE, 0)
    return amounts.get(column, 0)
