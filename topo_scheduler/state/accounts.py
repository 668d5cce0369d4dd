"""What the pods of each namespace hold together, whoever scheduled them, and what share of the cluster that is.

The share is the dominant share of Ghodsi et al., "Dominant Resource Fairness" (NSDI 2011): the largest of its shares
of all GPUs, all CPU and all memory, here in millionths and rounded down. The ledger is the only writer, so the
accounts of a process that was restarted are those of one that followed every event.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from topo_scheduler.state.devices import WHOLE as GPU_WHOLE
from topo_scheduler.state.nodes import NodeTable
from topo_scheduler.state.resources import CPU, GPU, GPU_SHARE, MEMORY, Amounts

SHARED: Final = (GPU, CPU, MEMORY)
"""Columns of which a namespace's share is told."""
WHOLE: Final = 1_000_000
"""The share of who holds all of something."""

Listener = Callable[[int, str, Amounts, int], None]
"""Told of each change: row, namespace, amounts, and 1 or -1."""

_NOTHING: Final[Mapping[int, int]] = {}


class Accounts:
    """Sums by namespace over the pods that are bound or assumed on nodes that are known."""

    def __init__(self, nodes: NodeTable) -> None:
        self.listeners: list[Listener] = []
        self._nodes = nodes
        self._held: dict[str, dict[int, int]] = {}
        self._capacity: tuple[tuple[int, int], ...] = ()
        self._capacity_at = -1
        self._shares: dict[str, int] = {}
        self._changed: dict[str, None] | None = {}

    def change(self, row: int, namespace: str, amounts: Amounts, sign: int) -> None:
        """Add (or with sign -1 take away) what a pod holds."""
        held = self._held.setdefault(namespace, {})
        for column, amount in amounts:
            left = held[column] = held.get(column, 0) + sign * amount
            if not left:
                del held[column]
        if not held:
            del self._held[namespace]
        self._shares.pop(namespace, None)
        if self._changed is not None:
            self._changed[namespace] = None
        for listener in self.listeners:
            listener(row, namespace, amounts, sign)

    def held(self, namespace: str) -> Mapping[int, int]:
        """Return what the pods of a namespace hold, by resource column."""
        return self._held.get(namespace, _NOTHING)

    def namespaces(self) -> Iterable[str]:
        """Return the namespaces that hold anything."""
        return self._held.keys()

    def share(self, namespace: str) -> int:
        """Return a namespace's dominant share in millionths of what all known nodes have."""
        self._refresh()
        found = self._shares.get(namespace)
        if found is None:
            held = self.held(namespace)
            found = max((WHOLE * _held(held, column) // whole for column, whole in self._capacity), default=0)
            self._shares[namespace] = found
        return found

    def take_changed(self) -> Iterable[str] | None:
        """Return the namespaces whose share may differ since the last call, None when all may."""
        self._refresh()
        changed, self._changed = self._changed, {}
        return changed

    def _refresh(self) -> None:
        at = self._nodes.facts_changes.position
        if at == self._capacity_at:
            return
        self._capacity_at = at
        sums = self._nodes.allocatable[:, list(SHARED)].sum(axis=0).tolist()
        # GPUs in thousandths, as pods may hold shares of them.
        sums[0] *= GPU_WHOLE
        capacity = tuple((column, whole) for column, whole in zip(SHARED, sums, strict=True) if whole)
        if capacity != self._capacity:
            self._capacity = capacity
            self._shares.clear()
            self._changed = None


def _held(held: Mapping[int, int], column: int) -> int:
    """Return what is held of a resource: of GPUs in thousandths, shares of them included."""
    if column == GPU:
        return GPU_WHOLE * held.get(GPU, 0) + held.get(GPU_SHARE, 0)
    return held.get(column, 0)
