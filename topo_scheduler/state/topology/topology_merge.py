"""Levels of the accelerator tree merged into the order of the network, so that code for one tree serves both.

A level of accelerator domains comes right below the innermost level of the network whose domains contain each of them
whole. That is below the spine if an NVL72 rack is a set of leaves, and below the leaf if a leaf has several racks. It
is outermost if one domain spans everything. The inner levels of the network follow, so one leaf may become several: one
for each accelerator domain in it. Domains are sorted by their first node in the order of the network.

Nodes without a label for a merged level are left out: they share such a domain with no other node.

If nodes must share a domain of the network, that level *cuts* accelerator domains that span several of its domains.
Each part is then a domain of its own, and the accelerator levels come below the level that cuts.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.accelerators import Accelerators
from topo_scheduler.state.topology.fabric import Layout, Path, layout_of


def crossed(layout: Layout, names: Iterable[str], *, whole: bool = False) -> Layout:
    """Return the fabric with the named levels of the accelerator tree merged in; without any, the network alone.

    The innermost network level among the names cuts accelerator domains, unless ``whole``. Calls with equal levels
    return the same object.
    """
    network, tree = layout.network, layout.accelerators
    if tree is None:
        return network
    requested = set(names)
    woven = tuple(level for level in tree.levels if level in requested)
    if not woven:
        return network
    cut = ""
    if not whole and len(requested) > len(woven):
        cut = next((level for level in reversed(network.levels) if level in requested), "")
    cache_key = (cut, *woven) if cut else woven
    merged = network._crossed.get(cache_key)
    if merged is None:
        merged = network._crossed[cache_key] = _weave(network, tree, woven, cut)
    return merged


def second_levels(layout: Layout, names: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are levels of the accelerator tree."""
    tree = layout.accelerators
    if tree is None:
        return ()
    levels = tree.levels
    return tuple([name for name in names if name in levels])


def depth_in(layout: Layout, target: Layout, depth: int) -> int:
    """Return the depth in ``target`` of the innermost level that is among the outer ``depth`` levels of ``layout``.

    0 without such a level: the whole fabric. Nodes that share a domain of the returned depth in ``target`` share one of
    ``depth`` in ``layout``.
    """
    if layout is target:
        return depth
    if layout.cut != target.cut:
        # Levels are in another order: all of them must be shared.
        return max(
            (target.levels.index(level) + 1 for level in layout.levels[:depth] if level in target.levels), default=0
        )
    return next(
        (target.levels.index(level) + 1 for level in reversed(layout.levels[:depth]) if level in target.levels), 0
    )


def depth_around(layout: Layout, target: Layout, depth: int) -> int:
    """Return the deepest depth in ``target`` at which nodes share a domain if they share one of ``depth`` here."""
    if layout.cut == target.cut:
        return depth_in(layout, target, depth)
    shared = set(layout.levels[:depth])
    return next((depth_ for depth_, level in enumerate(target.levels) if level not in shared), target.depth)


def leaves_in(layout: Layout, target: Layout, leaves: tuple[int, int]) -> tuple[int, int] | None:
    """Return the leaves (first, last + 1) of ``target`` with the nodes of these leaves; None if not contiguous."""
    if layout is target:
        return leaves
    rows = layout.order[layout.offsets[leaves[0]] : layout.offsets[leaves[1]]]
    target_leaves = np.unique(target.leaf_of_row[rows])
    target_leaves = target_leaves[target_leaves >= 0]
    if not len(target_leaves) or int(target_leaves[-1] - target_leaves[0]) + 1 != len(target_leaves):
        return None
    return int(target_leaves[0]), int(target_leaves[-1]) + 1


def network_leaves(layout: Layout) -> Int64:
    """Return the network leaf that contains each leaf (int64[leaves])."""
    return layout.network.leaf_of_row[layout.order[layout.offsets[:-1]]]


def _weave(network: Layout, tree: Accelerators, woven: tuple[str, ...], cut: str) -> Layout:
    domain_of_row = [tree.of_row(level) for level in woven]
    labelled = np.logical_and.reduce([of_row[network.order] >= 0 for of_row in domain_of_row])
    rows = network.order[labelled]
    leaves = network.leaf_of_row[rows]
    cut_domains = network.domains[network.levels.index(cut) + 1 if cut else 0]
    cut_domain = np.searchsorted(cut_domains, leaves, side="right").astype(np.int64)
    domains = [of_row[rows] * len(cut_domains) + cut_domain for of_row in domain_of_row]
    first_nodes = [_first_of_domain(domain_of_node) for domain_of_node in domains]
    insert_depths: list[int] = []
    for domain_of_node in domains:
        nested = _nested(network, domain_of_node, leaves)
        insert_depths.append(max([nested, *insert_depths[-1:]]))
    # np.lexsort compares the last key first.
    node_order = np.lexsort((np.arange(len(rows)), *reversed(first_nodes)))
    rows, leaves = rows[node_order], leaves[node_order]
    marks = np.stack([leaves, *(first_node[node_order] for first_node in first_nodes)])
    leaf_starts = np.flatnonzero(np.concatenate(([True], (marks[:, 1:] != marks[:, :-1]).any(axis=0))))
    offsets = np.append(leaf_starts, len(rows)).astype(np.int64)
    levels = _insert(network.levels, woven, insert_depths)
    names_by_level = [_names(tree, level, woven) for level in woven]
    paths = []
    for row, leaf in zip(rows[leaf_starts].tolist(), leaves[leaf_starts].tolist(), strict=True):
        names = tuple(
            level_names[of_row[row]] for level_names, of_row in zip(names_by_level, domain_of_row, strict=True)
        )
        paths.append(_insert(network.paths[leaf], names, insert_depths))
    layout = layout_of(network.generation, levels, paths, np.ascontiguousarray(rows), offsets, len(network.leaf_of_row))
    return replace(layout, accelerators=tree, woven=(cut, *woven) if cut else woven, cut=cut, plain=network)


def _first_of_domain(of_row: Int64) -> Int64:
    """Return for each row the index of the first row of its domain (int64[rows]), which numbers the domain."""
    _, first, inverse = np.unique(of_row, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _nested(network: Layout, of_row: Int64, leaves: Int64) -> int:
    """Return the depth of the innermost network level whose domains contain each accelerator domain whole.

    ``of_row`` and ``leaves`` int64[rows]: the domain and the leaf of rows in the order of the network.
    """
    _, first, inverse = np.unique(of_row, return_index=True, return_inverse=True)
    last = np.zeros(len(first), np.int64)
    np.maximum.at(last, inverse, np.arange(len(of_row)))
    low, high = leaves[first], leaves[last]
    for depth in range(network.depth, 0, -1):
        bounds = network.domains[depth]
        if (np.searchsorted(bounds, low, side="right") == np.searchsorted(bounds, high, side="right")).all():
            return depth
    return 0


def _insert(path: Path, names: Path, places: list[int]) -> Path:
    """Return a path with names inserted, each after the given number of parts of the path."""
    out: list[str] = []
    start = 0
    for name, depth in zip(names, places, strict=True):
        out += [*path[start:depth], name]
        start = depth
    return (*out, *path[start:])


def _names(tree: Accelerators, level: str, woven: tuple[str, ...]) -> list[str]:
    """Return the name of each domain of a level, prefixed with the names of outer domains that are not merged in."""
    depth = tree.levels.index(level) + 1
    first_part = next((index + 1 for index in range(depth - 2, -1, -1) if tree.levels[index] in woven), 0)
    return ["/".join(path[first_part:]) for path in tree.paths(level)]
