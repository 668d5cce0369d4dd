"""How well a gang was placed: how many levels of the fabric it spans, and how far its members are from each other."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from topo_scheduler.state.decision import Quality
from topo_scheduler.state.fabric import Layout, Path


def quality_of(layout: Layout, rows: Sequence[int]) -> Quality:
    """Return how a gang lies whose members are on these rows, one entry a member.

    Two members on one node are 0 hops apart. On two nodes they are twice as many hops apart as there are levels up to
    the first domain that they share: 2 in one leaf, 4 under one spine, 6 beyond, and so on in deeper fabrics.
    """
    members = len(rows)
    pairs = members * (members - 1) // 2
    # Members in each domain, first of the nodes, then of the leaves, then level by level outward.
    leaves = _counted(layout.leaf_of_row[np.asarray(rows, np.int64)].tolist())
    shared, hops, levels = _pairs(_counted(rows)), 0, 0
    while shared < pairs:
        levels += 1
        before, shared = shared, _pairs(_domains(layout, leaves, layout.depth - levels + 1))
        hops += 2 * levels * (shared - before)
    return Quality(levels, spanned_level(layout, levels), 2 * levels, 1000 * hops // pairs if pairs else 0)


def spanned_level(layout: Layout, levels: int) -> str:
    """Return the name of the level that lies so many levels above the node."""
    if not levels:
        return "node"
    return layout.levels[layout.depth - levels] if levels <= layout.depth else "cluster"


def _domains(layout: Layout, leaves: Mapping[int, int], depth: int) -> Mapping[Any, int]:
    """Return how many members are in each domain of a level, by what are in each leaf."""
    if depth == layout.depth:
        return leaves
    inside: Counter[Path] = Counter()
    for leaf, count in leaves.items():
        inside[layout.paths[leaf][:depth]] += count
    return inside


def _counted(values: Iterable[int]) -> dict[int, int]:
    """Return how often each is there; of few it is faster than a Counter."""
    found: dict[int, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return found


def _pairs(inside: Mapping[Any, int]) -> int:
    return sum(count * (count - 1) // 2 for count in inside.values())
