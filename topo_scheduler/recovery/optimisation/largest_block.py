"""Voluntary moves that enlarge the largest block of free nodes in one leaf, for gangs that may arrive later.

For each leaf, the search frees just enough nodes to make its block the largest in the cluster, those with
the fewest pods first. It tries the smallest sets on a copy of the state. Each pod must fit on nodes that are in
use already. The search may miss a better choice of nodes in a leaf.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

import numpy as np

from topo_scheduler.api.migrations import Cause, MigrationPod, MigrationSpec, OtherPod
from topo_scheduler.recovery.model.instructions import CreateMigration, RecoveryInstruction
from topo_scheduler.recovery.model.migration_state import Tracked, timestamp
from topo_scheduler.recovery.model.naming import name_for
from topo_scheduler.recovery.model.seating import MovingPod, find_moving_pod
from topo_scheduler.recovery.optimisation.sliced_search import Look, VoluntarySearch
from topo_scheduler.recovery.planning.migration_validation import may_move, restarts
from topo_scheduler.recovery.planning.voluntary_moves import free_nodes, group_by_workload, have_seats, largest_block
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.nodes.resources import GPU

AGAIN_SECONDS: Final = 600.0
"""Seconds until the next search after Migrations were created."""
MAX_TRIED_LEAVES: Final = 4
"""Leaves that are tried in one search, at most."""


@dataclass(frozen=True, slots=True)
class _LeafClearing:
    """Pods whose move gives a leaf a block of ``block`` GPUs. ``leaf`` is its number in the order of the fabric."""

    leaf: int
    moving_pods: tuple[MovingPod, ...]
    block: int


@dataclass
class BlockEnlarging(VoluntarySearch):
    """Enlarges the largest block of free nodes in one leaf."""

    pause = 60.0
    _state: object = None

    def _may_begin(self) -> bool:
        state = self.context.view.nodes.capacity_changes.position
        if state == self._state or not self._quiet:
            return False
        self._state = state
        return True

    def _look(self) -> Look:
        """Check all leaves, and try some; yields after each slice of the work, and then the Migrations to create."""
        view = self.context.view
        free = free_nodes(view)
        largest = largest_block(view, free)
        clearings: list[_LeafClearing] = []
        for leaf in self._leaves(largest):
            cleared = self._clearing(leaf, free, largest)
            if cleared is not None and not self._too_soon(cleared.moving_pods):
                clearings.append(cleared)
            yield None
        fewest_pods = nsmallest(
            MAX_TRIED_LEAVES, clearings, key=lambda clearing: (len(clearing.moving_pods), clearing.leaf)
        )
        for clearing in fewest_pods:
            if made := self._try_leaf(clearing.leaf):
                self._next_search = self._now + AGAIN_SECONDS
                yield made
                return
            yield None

    def _try_leaf(self, leaf: int) -> list[RecoveryInstruction]:
        """Return the Migrations that give a leaf the largest block in the current state; empty if there are none."""
        view = self.context.view
        free, names = free_nodes(view), view.nodes.names
        largest = largest_block(view, free)
        clearing = self._clearing(leaf, free, largest) if leaf < len(view.layout.paths) and self._quiet else None
        if clearing is None or self._too_soon(clearing.moving_pods):
            return []
        avoided = self.context.detection.avoided(self._now) | {names[row] for row in np.flatnonzero(free).tolist()}
        if not have_seats(view, clearing.moving_pods, avoided, self._now):
            return []
        return self._create_migrations(clearing, largest)

    @property
    def _quiet(self) -> bool:
        """Whether no gang waits for room, and no other voluntary move is in progress."""
        view = self.context.view
        settled = view.planning.budgets_known and not view.planning.gangs_wait
        return settled and not any(map(self._in_progress, self.context.tracked.values()))

    def _in_progress(self, tracked: Tracked) -> bool:
        """Return whether a Migration moves pods voluntarily, or will: users' Migrations may never begin."""
        migration = tracked.migration
        begun = migration.running or (tracked.found_at_start and migration.phase is not None)
        return migration.cause.by_choice and (begun or migration.key in self.context.intended)

    @property
    def _on(self) -> bool:
        spec = self.context.spec.defragmentation
        return spec.enabled and spec.largest_block

    def _leaves(self, largest: int) -> list[int]:
        """Return the leaves that are large enough for a larger block."""
        layout, nodes = self.context.view.layout, self.context.view.nodes
        usable = nodes.ready[layout.order] & ~nodes.unschedulable[layout.order]
        gpus = np.where(usable, nodes.allocatable[layout.order, GPU], 0)
        return np.flatnonzero(np.add.reduceat(gpus, layout.offsets[:-1]) > largest).tolist() if len(gpus) else []

    def _clearing(self, leaf: int, free: Int64, largest: int) -> _LeafClearing | None:
        """Return the pods that must leave a leaf for its block to be the largest; None if they can't."""
        view, max_moves = self.context.view, self.context.view.planning.max_moves
        layout, nodes = view.layout, view.nodes
        rows = layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]].tolist()
        block = int(free[rows].sum())
        usable = [row for row in rows if nodes.ready[row] and not nodes.unschedulable[row] and not free[row]]
        moving_pods: list[MovingPod] = []
        for row in sorted(usable, key=lambda row: (len(view.pods_on(nodes.names[row])), row)):
            if block > largest or len(moving_pods) > max_moves:
                break
            if (pods := self._movable(nodes.names[row])) is not None:
                moving_pods += pods
                block += int(nodes.allocatable[row, GPU])
        return (
            _LeafClearing(leaf, tuple(moving_pods), block)
            if block > largest and len(moving_pods) <= max_moves
            else None
        )

    def _too_soon(self, moving_pods: Sequence[MovingPod]) -> bool:
        """Return whether rate limits forbid to move so many pods now, or one of these pods."""
        moved, limits, wall = self.context.moved, self.context.spec.limits, self.context.epoch + self._now
        namespace = moving_pods[0].workload.namespace
        text = moved.lacking(len(moving_pods), namespace, limits, wall) or moved.resting(moving_pods, limits, wall)
        return bool(text)

    def _movable(self, node: str) -> list[MovingPod] | None:
        """Return the pods of a node that use GPUs; None if there are none, or one of them can't move."""
        view = self.context.view
        pods: list[MovingPod] = []
        for uid in view.pods_on(node):
            entry, pod = view.entry(uid), find_moving_pod(view, uid)
            if entry is None or not entry.amount(GPU):
                continue
            if pod is None or not may_move(pod) or restarts(pod):
                return None
            if not view.planning.budgets_allow(entry):
                return None
            pods.append(pod)
        return pods or None

    def _create_migrations(self, clearing: _LeafClearing, largest: int) -> list[RecoveryInstruction]:
        """Return the Migrations of all pods that leave; each lists the pods of the other Migrations."""
        layout, occasion = self.context.view.layout, timestamp(self.context.epoch + self._now)
        where = "/".join(layout.paths[clearing.leaf])
        out: list[RecoveryInstruction] = []
        for group in group_by_workload(clearing.moving_pods):
            own = {pod.member.uid for pod in group}
            other_pods = (pod.member for pod in clearing.moving_pods if pod.member.uid not in own)
            spec = MigrationSpec(
                cause=f"the largest block of free nodes grows from {largest} to {clearing.block} GPUs, in {where}",
                reason=Cause.DEFRAGMENTATION.value,
                pods=[MigrationPod(pod.member.name, pod.member.uid) for pod in group],
            )
            create = CreateMigration(group[0].workload.namespace, name_for(group, occasion), spec)
            self.context.intended[create.key] = tuple(OtherPod(pod.namespace, pod.name, pod.uid) for pod in other_pods)
            out.append(create)
        return out
