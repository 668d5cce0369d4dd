"""Quality of the placement of a gang: levels of the fabric that it spans, and distances between its members."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topo_scheduler.state.decision import Quality
from topo_scheduler.state.topology.fabric import Layout, Path


def quality_of(layout: Layout, rows: Sequence[int]) -> Quality:
    """Return the quality of a gang whose members are on these rows, one entry per member.

    Two members on one node are 0 hops apart. On two nodes their distance is twice the number of levels up to the first
    domain that they share: 2 hops in one leaf, 4 under one spine, 6 beyond, and so on in deeper fabrics.
    """
    members = len(rows)
    pairs = members * (members - 1) // 2
    # Members in each domain: first on nodes, then in leaves, then level by level outward.
    leaves = _counted(layout.leaf_of_row[np.asarray(rows, np.int64)].tolist())
    pairs_sharing, hops, levels = _pairs(_counted(rows)), 0, 0
    while pairs_sharing < pairs:
        levels += 1
        pairs_inside, pairs_sharing = pairs_sharing, _pairs(_domains(layout, leaves, layout.depth - levels + 1))
        hops += 2 * levels * (pairs_sharing - pairs_inside)
    return Quality(levels, spanned_level(layout, levels), 2 * levels, 1000 * hops // pairs if pairs else 0)


def spanned_level(layout: Layout, levels: int) -> str:
    """Return the name of the level that lies ``levels`` above the node."""
    if not levels:
        return "node"
    return layout.levels[layout.depth - levels] if levels <= layout.depth else "cluster"


def _domains(layout: Layout, leaves: Mapping[int, int], depth: int) -> Mapping[Any, int]:
    """Return the members in each domain at a depth, from the members in each leaf."""
    if depth == layout.depth:
        return leaves
    members: Counter[Path] = Counter()
    for leaf, count in leaves.items():
        members[layout.paths[leaf][:depth]] += count
    return members


def _counted(values: Iterable[int]) -> dict[int, int]:
    """Count each value; for few values this is faster than a Counter."""
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def _pairs(members: Mapping[Any, int]) -> int:
    return sum(count * (count - 1) // 2 for count in members.values())
