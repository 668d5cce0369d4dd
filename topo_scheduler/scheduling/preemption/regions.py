"""Regions where preemption may make room for a workload, such as domains for a gang that must stay in one."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.constrained.constrained_gang import is_constrained
from topo_scheduler.scheduling.placing.heterogeneous.heterogeneous_gang import bound
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.segments import seen_by
from topo_scheduler.scheduling.placing.uniform.replacement import reachable
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NodesPerLeaf:
    """How a limit on the nodes per leaf applies to a region, given the nodes that the gang uses already.

    ``is_open`` is bool[rows]: nodes that may take members. ``counts`` is bool[rows]: nodes of which each leaf allows
    only ``left`` (int64[leaves]).
    """

    is_open: Bool
    counts: Bool
    left: Int64


@dataclass(frozen=True, slots=True)
class Region:
    """Leaf switches of which a workload may use some.

    ``rows`` are the nodes of all of them. ``offsets`` is int64[leaves + 1]: the range of each leaf in ``rows``.
    ``max_leaves`` is the maximum number of leaves that may be used, with those where members run already.

    ``running`` is int64[rows]: members of the gang that run on each row. They and their nodes count against the limits
    per leaf. None for a workload of which no member runs.
    """

    rows: Int64
    offsets: Int64
    max_leaves: int
    running: Int64 | None = None

    @property
    def leaves(self) -> int:
        """Number of leaves."""
        return len(self.offsets) - 1

    @property
    def home(self) -> Bool:
        """Whether members run already on each leaf (bool[leaves])."""
        return self._sums(self.running) > 0 if self.running is not None else np.zeros(self.leaves, np.bool_)

    @property
    def further_leaves(self) -> int:
        """Maximum number of leaves that may be used beside those where members run already."""
        return max(0, self.max_leaves - int(np.count_nonzero(self.home)))

    def members_left(self, limits: SizeRuleLimits, gpus: int, members: int) -> Int64:
        """Return how many of so many members each leaf may take under the limits (int64[leaves])."""
        capped = limits.members_per_leaf(gpus)
        if not capped:
            return np.full(self.leaves, members, np.int64)
        taken: Int64 | int = self._sums(self.running) if self.running is not None else 0
        left: Int64 = np.minimum(members, np.maximum(0, np.full(self.leaves, capped, np.int64) - taken))
        return left

    def nodes_per_leaf(self, limits: SizeRuleLimits) -> NodesPerLeaf | None:
        """Return which nodes the limit allows; None without a limit.

        Beside the nodes that the gang uses already, others may be used up to the limit. A gang that uses as many nodes
        of a leaf already gets no other nodes there. If it uses more, further members are on no more than the limit.
        """
        max_nodes = limits.max_nodes_per_leaf
        if not max_nodes:
            return None
        used = self.running > 0 if self.running is not None else np.zeros(len(self.rows), np.bool_)
        nodes_used = self._sums(used.astype(np.int64))
        is_full = nodes_used >= max_nodes
        in_full_leaf: Bool = np.repeat(is_full, np.diff(self.offsets))
        left = np.where(is_full, max_nodes, max_nodes - nodes_used)
        return NodesPerLeaf(used | ~in_full_leaf, used == in_full_leaf, left)

    def open_rows(self, limits: SizeRuleLimits, gpus: int) -> Int64:
        """Return the rows on which the limits allow one more member."""
        if self.running is None:
            return self.rows
        leaf = np.repeat(np.arange(self.leaves), np.diff(self.offsets))
        is_open: Bool = self.members_left(limits, gpus, 1)[leaf] > 0
        if (nodes := self.nodes_per_leaf(limits)) is not None:
            is_open &= nodes.is_open
        return self.rows[is_open]

    def holds(self, fits: Int64, members: int, limits: SizeRuleLimits, gpus: int) -> Bool:
        """Return for each line of ``fits`` (int64[lines, rows]) whether that many members fit in the region."""
        leaves = np.empty((len(fits), self.leaves), np.int64)
        nodes = self.nodes_per_leaf(limits)
        if nodes is not None:
            fits = np.where(nodes.is_open, fits, 0)
        for leaf in range(self.leaves):
            rows = slice(int(self.offsets[leaf]), int(self.offsets[leaf + 1]))
            inside = fits[:, rows]
            if nodes is not None:
                counts, left = nodes.counts[rows], int(nodes.left[leaf])
                counted = inside[:, counts]
                if left < counted.shape[1]:
                    counted = np.sort(counted, axis=1)[:, counted.shape[1] - left :]
                inside = np.concatenate((inside[:, ~counts], counted), axis=1)
            leaves[:, leaf] = inside.sum(axis=1)
        np.minimum(leaves, self.members_left(limits, gpus, members), out=leaves)
        home, used_leaves = self.home, leaves
        if self.max_leaves < self.leaves:
            further = np.sort(leaves[:, ~home], axis=1)
            used_leaves = np.concatenate(
                (leaves[:, home], further[:, further.shape[1] - self.further_leaves :]), axis=1
            )
        held: Bool = used_leaves.sum(axis=1) >= members
        return held

    def _sums(self, by_row: Int64) -> Int64:
        """Return the sum of each leaf (int64[leaves])."""
        before = np.concatenate((np.zeros(1, np.int64), np.cumsum(by_row, dtype=np.int64)))
        sums: Int64 = before[self.offsets[1:]] - before[self.offsets[:-1]]
        return sums


def regions_for(ask: PlacementQuery, layout: Layout, rule: SizeRule) -> list[Region]:
    """Return the regions of which one must hold the members that lack a node.

    If one domain is required, the regions are the domains of the size rule. For a gang that only prefers them, they are
    the domains of the level that it requires, if any. For a gang that runs in part, they are the leaves where it runs,
    and all leaves where the planner places members beside them. Otherwise everything is one region. For segments of an
    outer level, the domains of that level replace leaves.
    """
    layout = seen_by(ask, layout)
    everywhere = np.arange(len(layout.paths), dtype=np.int64)
    if not ask.gang:
        return [_region(layout, everywhere, len(everywhere))]
    home = sorted(layout.leaves_of(ask.running))
    if home or (ask.running and _is_uniform(ask)):
        return _beside_running(ask, layout, rule, home)
    depth, max_leaves = _spread_allowed(ask, layout, rule)
    bounds = layout.domains[depth]
    regions: list[Region] = []
    for domain in range(len(bounds) - 1):
        inside = everywhere[bounds[domain] : bounds[domain + 1]]
        # If one leaf must hold all members, each leaf is a region: choosing among regions is cheaper than within one.
        parts = inside.reshape(-1, 1) if max_leaves == 1 else [inside]
        regions += [_region(layout, part, max_leaves) for part in parts]
    return regions


def _is_uniform(ask: PlacementQuery) -> bool:
    """Return whether the planner places lost members by `reachable`: those of one class, or in segments."""
    return not is_constrained(ask.groups) and (len(ask.groups) == 1 or bool(ask.segments.parts))


def _beside_running(ask: PlacementQuery, layout: Layout, rule: SizeRule, home: list[int]) -> list[Region]:
    """Return the leaves where the gang runs, and all leaves where the planner may place further members."""
    if _is_uniform(ask):
        near, further = reachable(ask, layout, rule, home)
    else:
        depth = bound(layout, max(ask.within, ask.bounds.depth), set(home))
        domain = layout.domain_of_leaf(depth, home[0])
        near, further = list(range(*layout.domains[depth][domain : domain + 2].tolist())), len(layout.paths)
    running = np.zeros(len(layout.leaf_of_row), np.int64)
    np.add.at(running, np.asarray(ask.running, np.int64), 1)
    regions = [_region(layout, np.array(home, np.int64), len(home), running)] if home else []
    leaves = sorted({*home, *near})
    if further > 0 and len(leaves) > len(home):
        regions.append(_region(layout, np.array(leaves, np.int64), len(home) + further, running))
    return regions


def _spread_allowed(ask: PlacementQuery, layout: Layout, rule: SizeRule) -> tuple[int, int]:
    """Return the depth of the domain that the gang must share, and the most leaves that it may use there."""
    if ask.enforcement is not Enforcement.PREFERRED:
        return rule.depth, rule.leaves
    depth = min(max(ask.within, ask.bounds.depth), layout.depth)
    return depth, ask.bounds.leaves or len(layout.paths)


def _region(layout: Layout, leaves: Int64, max_leaves: int, running: Int64 | None = None) -> Region:
    parts = [layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]] for leaf in leaves.tolist()]
    sizes = np.array([len(part) for part in parts], np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    rows = np.concatenate(parts) if parts else np.empty(0, np.int64)
    return Region(rows, offsets, max_leaves, running[rows] if running is not None else None)
