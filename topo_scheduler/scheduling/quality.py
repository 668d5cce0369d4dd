"""How well a gang was placed: how many levels of the fabric it spans, and how far its members are from each other."""

from collections.abc import Sequence

import numpy as np

from topo_scheduler.state.decision import Quality
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import Int64


def quality_of(layout: Layout, rows: Sequence[int]) -> Quality:
    """Return how a gang lies whose members are on these rows, one entry a member.

    Two members on one node are 0 hops apart. On two nodes they are twice as many hops apart as there are levels up to
    the first domain that they share: 2 in one leaf, 4 under one spine, 6 beyond, and so on in deeper fabrics.
    """
    members = len(rows)
    place = np.asarray(rows, np.int64)
    _, on_node = np.unique(place, return_counts=True)
    leaves = layout.leaf_of_row[place]
    pairs = members * (members - 1) // 2
    # Pairs that share a domain of each depth, the node being the innermost.
    shared = [_pairs(on_node)]
    for depth in range(layout.depth, -1, -1):
        domains = np.searchsorted(layout.domains[depth], leaves, side="right")
        shared.append(_pairs(np.bincount(domains)))
    levels = next(level for level, count in enumerate(shared) if count == pairs)
    hops = sum(2 * level * (count - before) for level, count, before in _steps(shared))
    return Quality(levels, spanned_level(layout, levels), 2 * levels, 1000 * hops // pairs if pairs else 0)


def spanned_level(layout: Layout, levels: int) -> str:
    """Return the name of the level that lies so many levels above the node."""
    if not levels:
        return "node"
    return layout.levels[layout.depth - levels] if levels <= layout.depth else "cluster"


def _pairs(counts: Int64) -> int:
    return int((counts * (counts - 1) // 2).sum())


def _steps(shared: list[int]) -> list[tuple[int, int, int]]:
    return [(level, shared[level], shared[level - 1]) for level in range(1, len(shared))]
