"""Levels of the second tree woven into the order of the network, so that all that is known of one tree holds for both.

A level of accelerator domains comes right below the innermost level of the network whose domains each of them keeps
within: below the spine where an NVL72 rack is a set of leaves, below the leaf where a leaf has several, outermost where
one reaches across everything. Further in the levels of the network go on, so what was one leaf may become several, each
the part of it that lies in one accelerator domain. Domains come in the order in which the network meets them.

Nodes that do not tell a level which is woven in are not there: they share no such domain with anybody.

Where nodes must share a domain of the network, a level of that *cuts* accelerator domains that lie across several: the
part in each of them is a domain then, and the levels come below the one that cuts.
"""

from collections.abc import Iterable

import numpy as np

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.state.accelerators import Accelerators
from topo_scheduler.state.fabric import Layout, Path, domains_of
from topo_scheduler.state.nodes import Int64


def crossed(layout: Layout, names: Iterable[str], *, whole: bool = False) -> Layout:
    """Return the fabric with levels of the second tree woven in, the network alone where none of the names is one.

    Of levels of the network among the names the innermost cuts domains, unless these are to be ``whole``. The same
    levels of the same fabric are the same object.
    """
    network, tree = layout.network, layout.accelerators
    if tree is None:
        return network
    wanted = set(names)
    woven = tuple(level for level in tree.levels if level in wanted)
    if not woven:
        return network
    cut = ""
    if not whole and len(wanted) > len(woven):
        cut = next((level for level in reversed(network.levels) if level in wanted), "")
    key = (cut, *woven) if cut else woven
    found = network._crossed.get(key)
    if found is None:
        found = network._crossed[key] = _weave(network, tree, woven, cut)
    return found


def second_levels(layout: Layout, names: Iterable[str]) -> tuple[str, ...]:
    """Return those of some names that are levels of the second tree."""
    tree = layout.accelerators
    if tree is None:
        return ()
    levels = tree.levels
    return tuple([name for name in names if name in levels])


def depth_in(one: Layout, other: Layout, depth: int) -> int:
    """Return the depth in another fabric of the innermost level that it shares with the outer ones of this.

    0 where there is none: the whole fabric. Who shares a domain of that depth there shares one of ``depth`` here.
    """
    if one is other:
        return depth
    if one.cut != other.cut:
        # Levels are in another order: all of them must be shared.
        return max((other.levels.index(level) + 1 for level in one.levels[:depth] if level in other.levels), default=0)
    return next((other.levels.index(level) + 1 for level in reversed(one.levels[:depth]) if level in other.levels), 0)


def depth_around(one: Layout, other: Layout, depth: int) -> int:
    """Return the deepest depth in another fabric of which those share a domain who share one of ``depth`` here."""
    if one.cut == other.cut:
        return depth_in(one, other, depth)
    shared = set(one.levels[:depth])
    return next((at for at, level in enumerate(other.levels) if level not in shared), other.depth)


def leaves_in(one: Layout, other: Layout, leaves: tuple[int, int]) -> tuple[int, int] | None:
    """Return the leaves (first, last + 1) of another fabric on which the nodes of these hang; None if not a run."""
    if one is other:
        return leaves
    rows = one.order[one.offsets[leaves[0]] : one.offsets[leaves[1]]]
    found = np.unique(other.leaf_of_row[rows])
    found = found[found >= 0]
    if not len(found) or int(found[-1] - found[0]) + 1 != len(found):
        return None
    return int(found[0]), int(found[-1]) + 1


def network_leaves(layout: Layout) -> Int64:
    """Return the leaf of the network of which each leaf is a part (int64[leaves])."""
    return layout.network.leaf_of_row[layout.order[layout.offsets[:-1]]]


def _weave(network: Layout, tree: Accelerators, woven: tuple[str, ...], cut: str) -> Layout:
    told = [tree.of_row(level) for level in woven]
    inside = np.logical_and.reduce([of_row[network.order] >= 0 for of_row in told])
    rows = network.order[inside]
    leaves = network.leaf_of_row[rows]
    within = network.domains[network.levels.index(cut) + 1 if cut else 0]
    part = np.searchsorted(within, leaves, side="right").astype(np.int64)
    domains = [of_row[rows] * len(within) + part for of_row in told]
    firsts = [_first_of_domain(of_each) for of_each in domains]
    places: list[int] = []
    for of_each in domains:
        nested = _nested(network, of_each, leaves)
        places.append(max([nested, *places[-1:]]))
    # The last key is the first to be compared.
    turn = np.lexsort((np.arange(len(rows)), *reversed(firsts)))
    rows, leaves = rows[turn], leaves[turn]
    marks = np.stack([leaves, *(first[turn] for first in firsts)])
    begins = np.flatnonzero(np.concatenate(([True], (marks[:, 1:] != marks[:, :-1]).any(axis=0))))
    offsets = np.append(begins, len(rows)).astype(np.int64)
    levels = _insert(network.levels, woven, places)
    named = [_names(tree, level, woven) for level in woven]
    paths = []
    for row, leaf in zip(rows[begins].tolist(), leaves[begins].tolist(), strict=True):
        names = tuple(name[of_row[row]] for name, of_row in zip(named, told, strict=True))
        paths.append(_insert(network.paths[leaf], names, places))
    leaf_of_row = np.full(len(network.leaf_of_row), -1, np.int64)
    leaf_of_row[rows] = np.repeat(np.arange(len(begins), dtype=np.int64), np.diff(offsets))
    position = np.full(len(network.leaf_of_row), -1, np.int64)
    position[rows] = np.arange(len(rows), dtype=np.int64)
    return Layout(
        generation=network.generation,
        levels=levels,
        paths=tuple(paths),
        order=np.ascontiguousarray(rows),
        offsets=offsets,
        domains=domains_of(paths, len(levels)),
        aligned=np.fromiter((UNLABELLED not in path for path in paths), np.int64, len(paths)),
        leaf_of_row=leaf_of_row,
        position=position,
        accelerators=tree,
        woven=(cut, *woven) if cut else woven,
        cut=cut,
        plain=network,
    )


def _first_of_domain(of_row: Int64) -> Int64:
    """Return for each row in order where the first of its domain stands (int64[rows]): a number for the domain."""
    _, first, inverse = np.unique(of_row, return_index=True, return_inverse=True)
    return first[inverse].astype(np.int64)


def _nested(network: Layout, of_row: Int64, leaves: Int64) -> int:
    """Return the depth of the innermost level of the network of which each domain keeps within one domain.

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
    """Return a path with names put in, each after so many parts of the path."""
    out: list[str] = []
    at = 0
    for name, place in zip(names, places, strict=True):
        out += [*path[at:place], name]
        at = place
    return (*out, *path[at:])


def _names(tree: Accelerators, level: str, woven: tuple[str, ...]) -> list[str]:
    """Return the name of each domain of a level; with the names of outer domains where these are not woven in."""
    depth = tree.levels.index(level) + 1
    begin = next((at + 1 for at in range(depth - 2, -1, -1) if tree.levels[at] in woven), 0)
    return ["/".join(path[begin:]) for path in tree.paths(level)]
