"""Regions where preemption may make room for a workload, such as domains for a gang that must stay in one."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from topo_scheduler.api.annotations import Enforcement
from topo_scheduler.scheduling.placing.model.placement_query import PlacementQuery, SizeRuleLimits
from topo_scheduler.scheduling.placing.model.segments import seen_by
from topo_scheduler.state.decision import SizeRule
from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout

Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Region:
    """Leaf switches of which a workload may use some.

    ``rows`` are the nodes of all of them. ``offsets`` is int64[leaves + 1]: the range of each leaf in ``rows``.
    ``max_leaves`` is the maximum number of leaves that may be used.
    """

    rows: Int64
    offsets: Int64
    max_leaves: int

    def holds(self, fits: Int64, members: int, limits: SizeRuleLimits, gpus: int) -> Bool:
        """Return for each line of ``fits`` (int64[lines, rows]) whether that many members fit in the region."""
        capped = limits.members_per_leaf(gpus)
        leaves = np.empty((len(fits), len(self.offsets) - 1), np.int64)
        for leaf in range(leaves.shape[1]):
            inside = fits[:, self.offsets[leaf] : self.offsets[leaf + 1]]
            if limits.max_nodes_per_leaf and inside.shape[1] > limits.max_nodes_per_leaf:
                inside = np.sort(inside, axis=1)[:, -limits.max_nodes_per_leaf :]
            leaves[:, leaf] = inside.sum(axis=1)
        if capped:
            np.minimum(leaves, capped, out=leaves)
        if self.max_leaves < leaves.shape[1]:
            leaves = np.sort(leaves, axis=1)[:, -self.max_leaves :]
        held: Bool = leaves.sum(axis=1) >= members
        return held


def regions_for(ask: PlacementQuery, layout: Layout, rule: SizeRule) -> list[Region]:
    """Return the regions of which one must hold the members that lack a node.

    If one domain is required, the regions are the domains of the size rule. For a gang that only prefers them, they are
    the domains of the level that it requires, if any. For a gang that runs in part, they are the leaves where it runs,
    and the domain around them. Otherwise everything is one region. For segments of an outer level, the domains of that
    level replace leaves.
    """
    layout = seen_by(ask, layout)
    everywhere = np.arange(len(layout.paths), dtype=np.int64)
    depth, max_leaves = _spread_allowed(ask, layout, rule)
    home = sorted(layout.leaves_of(ask.running))
    domains = {layout.domain_of_leaf(depth, leaf) for leaf in home}
    broken = len(domains) > 1 or len(home) > max_leaves
    regions: list[Region] = []
    if home:
        regions.append(_region(layout, np.array(home, np.int64), len(home)))
    if not ask.gang or broken:
        return [*regions, _region(layout, everywhere, len(everywhere))]
    bounds = layout.domains[depth]
    wanted: Sequence[int] = sorted(domains) if home else range(len(bounds) - 1)
    for domain in wanted:
        inside = everywhere[bounds[domain] : bounds[domain + 1]]
        # If one leaf must hold all members, each leaf is a region: choosing among regions is cheaper than within one.
        parts = inside.reshape(-1, 1) if max_leaves == 1 else [inside]
        regions += [_region(layout, part, max_leaves) for part in parts]
    return regions


def _spread_allowed(ask: PlacementQuery, layout: Layout, rule: SizeRule) -> tuple[int, int]:
    """Return the depth of the domain that the gang must share, and the most leaves that it may use there."""
    if ask.enforcement is not Enforcement.PREFERRED:
        return rule.depth, rule.leaves
    depth = min(max(ask.within, ask.bounds.depth), layout.depth)
    return depth, ask.bounds.leaves or len(layout.paths)


def _region(layout: Layout, leaves: Int64, max_leaves: int) -> Region:
    parts = [layout.order[layout.offsets[leaf] : layout.offsets[leaf + 1]] for leaf in leaves.tolist()]
    sizes = np.array([len(part) for part in parts], np.int64)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes, dtype=np.int64)))
    return Region(np.concatenate(parts) if parts else np.empty(0, np.int64), offsets, max_leaves)
