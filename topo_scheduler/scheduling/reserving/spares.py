"""Warm spares: in each leaf some nodes are kept free of workloads, so that there is room when other nodes fail.

The choice depends only on the current state. Of the healthy nodes of a kind, the scheduler keeps those that come first
in this order:

- fewest GPUs held by pods that must not be evicted from a spare node,
- fewest such pods,
- fewest GPUs held by pods that borrow the node, then fewest of these pods,
- the order of the fabric.

So the scheduler keeps a free node if there is one. Otherwise it keeps the emptiest node, which becomes free as its pods
end, because no others are placed there. The scheduler evicts no pod to make a spare.

Kept nodes are a filter like any other, by a column of the node table. The filter does not apply to workloads below a
configured priority, unless their pods are bare. Nor does it apply to what a running gang has lost, or to pods of
DaemonSets. Replacements use seats without this filter.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.fractions import WHOLE_GPU
from topo_scheduler.api.spares import SparesSpec
from topo_scheduler.scheduling.queueing.queue_keys import needed_now
from topo_scheduler.scheduling.reserving.replacements import Replacements
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.ledger.ledger import LedgerEntry
from topo_scheduler.state.nodes.resources import GPU, GPU_SHARE
from topo_scheduler.state.pods.workloads import Stage, Workload, Workloads
from topo_scheduler.state.topology.fabric import Layout, Path

Kind = tuple[int, int]
"""GPU model and number of GPUs."""


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The use of a node: thousandths of GPUs and pods.

    ``gpus`` and ``pods`` count the pods that stay. ``lent_gpus`` and ``lent_pods`` count those that borrow the node,
    which recovery may evict.
    """

    gpus: int = 0
    pods: int = 0
    lent_gpus: int = 0
    lent_pods: int = 0

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Nodes of lower order are kept first."""
        return self.gpus, self.pods, self.lent_gpus, self.lent_pods


NOBODY: Final = NodeUse()


@dataclass(frozen=True, slots=True)
class LeafSpares:
    """The spares of a leaf. ``wanted`` is the number of nodes kept.

    Of these, ``free`` nodes are free and ``lent`` nodes are lent. On the others, GPUs are still in use.
    """

    path: Path
    wanted: int
    free: int
    lent: int


class Spares:
    """Chooses which nodes are kept, and which workloads may not use them. Costs nothing if none are configured."""

    def __init__(
        self,
        scheduler_name: str,
        world: World,
        workloads: Workloads,
        replacements: Replacements,
        spec: SparesSpec,
    ) -> None:
        self._scheduler_name = scheduler_name
        self._world = world
        self._workloads = workloads
        self._replacements = replacements
        self.spec = spec
        self._avoided: frozenset[str] = frozenset()
        self._kept: dict[Path, tuple[int, ...]] = {}
        self._use: dict[int, NodeUse] = {}
        self._promised: dict[str, int] = {}
        self._capacity_at = self._facts_at = -1
        self._layout: Layout | None = None

    @property
    def configured(self) -> bool:
        """Whether any nodes are to be kept."""
        return self.spec.per_leaf > 0

    def configure(self, spec: SparesSpec) -> None:
        """Apply a new configuration."""
        if spec != self.spec:
            self.spec = spec
            self._layout = None
            if not self.configured:
                self._keep({})

    def avoid(self, names: Iterable[str]) -> None:
        """Treat these nodes as unfit: a placement would not use them."""
        avoided = frozenset(names)
        if avoided != self._avoided:
            self._avoided, self._layout = avoided, None

    # ------------------------------------------------------------ excluded workloads

    def closed_to(self, workload: Workload) -> bool:
        """Return whether a workload may not use nodes that are kept."""
        members = workload.members.values()
        if not self.configured or all(member.recreated and self.may_borrow(member.priority) for member in members):
            return False
        if all(member.daemon for member in members):
            return False
        running = any(member.stage is not Stage.PENDING for member in members)
        return not (running and needed_now(workload))  # recovery of what a running gang has lost is exempt

    def may_borrow(self, priority: int) -> bool:
        """Return whether pods of a priority may use nodes that are kept, if controllers recreate these pods."""
        return priority < self.spec.lend_below_priority

    # ------------------------------------------------------------ choice of nodes

    def settle(self) -> None:
        """Choose again where anything changed since the last call."""
        if not self.configured:
            return
        world, layout = self._world, self._world.layout
        promised = self._replacements.gpus()
        changed = self._changed(promised)
        everything = changed is None or layout is not self._layout
        self._layout, self._promised = layout, promised
        if everything:
            self._use.clear()
            chosen = {path: self._choose(layout, leaf) for leaf, path in enumerate(layout.paths)}
            self._keep(chosen)
            return
        assert changed is not None
        for row in changed:
            self._use.pop(row, None)
        leaves = {int(layout.leaf_of_row[row]) for row in changed if world.nodes.exists[row]}
        fresh = {layout.paths[leaf]: self._choose(layout, leaf) for leaf in sorted(leaves)}
        if any(self._kept.get(path, ()) != rows for path, rows in fresh.items()):
            self._keep({**self._kept, **fresh})

    def lent(self) -> list[int]:
        """Return the rows of kept nodes with borrowing pods, on which no other pods hold GPUs, in order."""
        lent = (row for rows in self._kept.values() for row in rows)
        return sorted(row for row in lent if (use := self._used(row)).lent_pods and not use.gpus)

    def leaves(self) -> list[LeafSpares]:
        """Return the spares of each leaf in which nodes are kept, in the order of their paths."""
        leaves = []
        for path, rows in sorted(self._kept.items()):
            uses = [self._used(row) for row in rows]
            free = sum(not (use.gpus or use.lent_gpus) for use in uses)
            lent = sum(bool(use.lent_gpus) and not use.gpus for use in uses)
            if rows:
                leaves.append(LeafSpares(path, len(rows), free, lent))
        return leaves

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many nodes are ``wanted``, ``free`` and ``lent``, by path of the leaf and that word."""
        counts: dict[tuple[str, str], int] = {}
        for leaf in self.leaves():
            path = "/".join(leaf.path)
            counts |= {(path, "wanted"): leaf.wanted, (path, "free"): leaf.free, (path, "lent"): leaf.lent}
        return counts

    # ------------------------------------------------------------ internals

    def _changed(self, promised: Mapping[str, int]) -> Collection[int] | None:
        """Return the rows that may have changed, None for all."""
        nodes = self._world.nodes
        facts, capacity = nodes.facts_changes.since(self._facts_at), nodes.capacity_changes.since(self._capacity_at)
        self._facts_at, self._capacity_at = nodes.facts_changes.position, nodes.capacity_changes.position
        if facts is None or capacity is None:
            return None
        turned = (name for name in promised.keys() | self._promised if promised.get(name) != self._promised.get(name))
        return {*facts.tolist(), *capacity.tolist(), *(nodes.row_of[name] for name in turned if name in nodes.row_of)}

    def _choose(self, layout: Layout, leaf: int) -> tuple[int, ...]:
        """Return the rows that are kept in a leaf, in order."""
        by_kind: dict[Kind, list[int]] = {}
        nodes = self._world.nodes
        for row in layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist():
            gpus = int(nodes.allocatable[row, GPU])
            well = bool(nodes.ready[row]) and not nodes.unschedulable[row] and nodes.names[row] not in self._avoided
            if gpus and well:
                by_kind.setdefault((int(nodes.model[row]), gpus), []).append(row)
        kept: list[int] = []
        for rows in by_kind.values():
            rows.sort(key=lambda row: (self._used(row).order, int(layout.position[row])))
            kept += rows[: min(self.spec.per_leaf, len(rows) - 1)]
        return tuple(sorted(kept))

    def _used(self, row: int) -> NodeUse:
        known = self._use.get(row)
        if known is None:
            known = self._use[row] = self._look(self._world.nodes.names[row])
        return known

    def _look(self, node: str) -> NodeUse:
        gpus, pods, lent_gpus, lent_pods = self._promised.get(node, 0) * WHOLE_GPU, 0, 0, 0
        for uid in self._world.ledger.on_node(node):
            entry = self._world.ledger.get(uid)
            if entry is None or entry.daemon:
                continue
            held = max(entry.amount(GPU) * WHOLE_GPU, entry.amount(GPU_SHARE))
            if self._may_be_evicted(uid, entry):
                lent_gpus, lent_pods = lent_gpus + held, lent_pods + 1
            else:
                gpus, pods = gpus + held, pods + 1
        return NodeUse(gpus, pods, lent_gpus, lent_pods) if pods or lent_pods or gpus else NOBODY

    def _may_be_evicted(self, uid: str, entry: LedgerEntry) -> bool:
        """Return whether recovery may evict a pod from a kept node; not bare pods, nor those of other schedulers."""
        if (occupant := entry.occupant) is not None:
            evictable = occupant.scheduler == self._scheduler_name and occupant.controlled
            return evictable and self.may_borrow(occupant.priority)
        membership = self._workloads.of_pod(uid)  # its bind is in progress
        return membership is not None and membership[1].recreated and self.may_borrow(membership[1].priority)

    def _keep(self, chosen: Mapping[Path, tuple[int, ...]]) -> None:
        """Keep these nodes and no others."""
        before = set(np.flatnonzero(self._world.nodes.spare).tolist())
        now = {row for rows in chosen.values() for row in rows}
        paths = self._kept.keys() | chosen.keys()
        resized = any(len(self._kept.get(path, ())) != len(chosen.get(path, ())) for path in paths)
        self._kept = dict(chosen)
        self._world.keep_spares(now - before, before - now, rules=resized)
