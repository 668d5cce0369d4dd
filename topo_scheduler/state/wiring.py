"""The links of a fabric, numbered, and what each carries.

Every node has one link, its network, and every domain below the whole fabric has one, its uplink. A node's link has the
number of its row; the uplinks follow, level by level from the outside. All bandwidths are Mbit/s in each direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.links import NODE, Link, uplink_label
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth
from topo_scheduler.api.words import few_of
from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.nodes import UNKNOWN, Int64, NodeTable

_NOBODY: Final = 1 << 62
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Wiring:
    """The links of one layout.

    ``starts`` number of the first uplink of each depth (that of depth 0, which has none, is 0), and one more past the
    last. ``of_row`` int64[rows, depth + 1]: the links above each row, its own first, then the uplinks from the
    outermost level in; -1 in rows where there is no node.
    """

    layout: Layout
    starts: tuple[int, ...]
    of_row: Int64

    @property
    def links(self) -> int:
        """How many numbers there are, those of rows without a node included."""
        return self.starts[-1]

    def uplinks(self, depth: int) -> slice:
        """Return the numbers of the uplinks of a depth, 1 or more, in order of its domains."""
        return slice(self.starts[depth], self.starts[depth + 1])

    def place(self, link: int) -> tuple[int, int]:
        """Return depth and index of the domain whose uplink a link is; depth 0 and the row for that of a node."""
        for depth in range(1, self.layout.depth + 1):
            if self.starts[depth] <= link < self.starts[depth + 1]:
                return depth, link - self.starts[depth]
        return 0, link

    def rows_below(self, depth: int, index: int) -> Int64:
        """Return the rows of the nodes in a domain, in order."""
        first, last = self.layout.domains[depth][index : index + 2]
        return self.layout.order[self.layout.offsets[first] : self.layout.offsets[last]]


def wire(layout: Layout) -> Wiring:
    """Number the links of a layout."""
    rows = len(layout.leaf_of_row)
    starts = [0, rows]
    of_row = np.full((rows, layout.depth + 1), -1, np.int64)
    of_row[layout.order, 0] = layout.order
    leaves = layout.leaf_of_row[layout.order]
    for depth in range(1, layout.depth + 1):
        ranges = layout.domains[depth]
        domain_of_leaf = np.repeat(np.arange(len(ranges) - 1, dtype=np.int64), np.diff(ranges))
        of_row[layout.order, depth] = starts[depth] + domain_of_leaf[leaves]
        starts.append(starts[depth] + len(ranges) - 1)
    return Wiring(layout, tuple(starts), of_row)


@dataclass(frozen=True, slots=True)
class Capacities:
    """What each link carries: ``mbits`` int64[links], -1 where that is not known; and what is wrong with what was told.

    ``limited``: whether any link is known at all.
    """

    mbits: Int64
    problems: Sequence[str] = field(default=())

    @property
    def limited(self) -> bool:
        """Whether the capacity of any link is known."""
        return bool((self.mbits != UNKNOWN).any())


def capacities(wiring: Wiring, nodes: NodeTable, told: Sequence[Link]) -> Capacities:
    """Return what each link carries.

    Of an uplink what the configuration says of its domain holds, then the labels of its nodes, then what the
    configuration says of its level. Of a node its label holds, then the configuration, which is in the table already.

    Args:
        wiring: the links.
        nodes: their networks, and labels.
        told: ``links`` of the configuration.
    """
    layout = wiring.layout
    mbits = np.full(wiring.links, UNKNOWN, np.int64)
    mbits[layout.order] = nodes.bandwidth[layout.order]
    problems: list[str] = []
    by_level = {link.level: link for link in told if link.level not in (None, NODE)}
    problems += [
        f"spec.links: no node has a label for a level called {level}; there are {', '.join(layout.levels)}."
        " The entry is ignored"
        for level in by_level
        if level not in layout.levels and len(layout.order)
    ]
    for depth, level in enumerate(layout.levels, 1):
        link = by_level.get(level)
        if link is not None:
            mbits[wiring.uplinks(depth)] = _of_level(wiring, nodes, depth, link, problems)
        _from_labels(wiring, nodes, depth, mbits, problems)
    named: dict[int, Link] = {}
    for link in told:
        if link.domain is not None and len(layout.order):
            _of_domain(wiring, nodes, link, mbits, named, problems)
    return Capacities(mbits, tuple(problems))


def _of_level(wiring: Wiring, nodes: NodeTable, depth: int, link: Link, problems: list[str]) -> Int64:
    layout = wiring.layout
    firsts = layout.domains[depth][:-1].tolist()
    # Nodes that do not tell a level share a domain for want of a better one: it has no uplink that anybody built.
    built = np.array([layout.paths[first][depth - 1] != UNLABELLED for first in firsts], np.bool_)
    if link.mbits is not None:
        return np.where(built, link.mbits, UNKNOWN)
    found = np.where(built, _sums_below(wiring, nodes, depth, link), UNKNOWN)
    silent = np.flatnonzero(built & (found == UNKNOWN)).tolist()
    if silent:
        names = [_name(layout, depth, index) for index in silent]
        problems.append(_silent(wiring, nodes, link, names, wiring.rows_below(depth, silent[0])))
    return found


def _sums_below(wiring: Wiring, nodes: NodeTable, depth: int, link: Link) -> Int64:
    """Return what the nodes of each domain carry together, less oversubscription; -1 where one does not tell."""
    layout = wiring.layout
    networks = nodes.bandwidth[layout.order]
    ranges = layout.offsets[layout.domains[depth]][:-1]
    sums = np.add.reduceat(networks, ranges) if len(networks) else np.empty(0, np.int64)
    told = np.minimum.reduceat(networks, ranges) != UNKNOWN if len(networks) else np.empty(0, np.bool_)
    divided = {int(one): max(1, link.divided(int(one))) for one in np.unique(sums[told])}
    return np.array(
        [divided[one] if known else UNKNOWN for one, known in zip(sums.tolist(), told, strict=True)], np.int64
    )


def _of_domain(
    wiring: Wiring, nodes: NodeTable, link: Link, mbits: Int64, named: dict[int, Link], problems: list[str]
) -> None:
    """Take over what one entry tells of a domain; ``named`` the entry that told of each link before."""
    layout = wiring.layout
    found = [(depth, index) for depth, index in layout.find(link.domain or "") if depth]
    if not found:
        problems.append(
            f"spec.links: no domain is called {link.domain}, so this has no effect; write a path or a name as"
            " `topo-scheduler topology` shows them"
        )
    elif len(found) > 1:
        paths = ", ".join(_name(layout, depth, index) for depth, index in found[:4])
        problems.append(f"spec.links: {link.domain} may mean {paths}; all of them are meant, write a path to name one")
    for depth, index in found:
        carries = link.mbits if link.mbits is not None else int(_sums_below(wiring, nodes, depth, link)[index])
        if carries == UNKNOWN:
            names = [_name(layout, depth, index)]
            problems.append(_silent(wiring, nodes, link, names, wiring.rows_below(depth, index)))
        at = wiring.starts[depth] + index
        other = named.setdefault(at, link)
        if other is not link and carries != mbits[at]:
            name = _name(layout, depth, index)
            problems.append(f"spec.links: {other.domain} and {link.domain} both mean {name}; the least holds")
            carries = min((one for one in (carries, int(mbits[at])) if one != UNKNOWN), default=UNKNOWN)
        mbits[at] = carries


def _silent(wiring: Wiring, nodes: NodeTable, link: Link, names: Sequence[str], rows: Int64) -> str:
    lost = [nodes.names[row] for row in rows.tolist() if nodes.bandwidth[row] == UNKNOWN]
    label = next(iter(nodes.label_keys.bandwidth), "")
    return (
        f"spec.links: {link.name}: what nodes carry together is not known, as {few_of(lost, _EXAMPLES)} of {names[0]}"
        f" tell no bandwidth; {len(names)} {'uplink counts' if len(names) == 1 else 'uplinks count'} as unlimited."
        f" Label the nodes with {label}, or give a capacity"
    )


def _from_labels(wiring: Wiring, nodes: NodeTable, depth: int, mbits: Int64, problems: list[str]) -> None:
    """Take over what labels of nodes tell of the uplinks of a depth; where they disagree, the least."""
    layout = wiring.layout
    key = uplink_label(layout.levels[depth - 1])
    values = nodes.label_column(key)[layout.order]
    if not (values != UNKNOWN).any():
        return
    told = np.full(len(values), UNKNOWN, np.int64)
    for value in np.unique(values[values != UNKNOWN]).tolist():
        try:
            told[values == value] = parse_bandwidth(nodes.values[value])
        except QuantityError as error:
            lost = [nodes.names[row] for row in layout.order[values == value].tolist()]
            problems.append(f"node {few_of(lost, _EXAMPLES)}: label {key}: {error}; it is ignored")
    ranges = layout.offsets[layout.domains[depth]]
    least = np.minimum.reduceat(np.where(told == UNKNOWN, _NOBODY, told), ranges[:-1])
    most = np.maximum.reduceat(told, ranges[:-1])
    for index in np.flatnonzero((most != UNKNOWN) & (least != most)).tolist():
        inside = layout.order[ranges[index] : ranges[index + 1]]
        here = told[ranges[index] : ranges[index + 1]]
        low, high = (nodes.names[int(inside[here == mark][0])] for mark in (least[index], most[index]))
        problems.append(
            f"label {key}: nodes of {_name(layout, depth, index)} disagree: {readable(int(least[index]))} Gbit/s on"
            f" {low}, {readable(int(most[index]))} on {high}; the least holds. Give all its nodes the same"
        )
    uplinks = mbits[wiring.uplinks(depth)]
    uplinks[most != UNKNOWN] = least[most != UNKNOWN]


def readable(mbits: int) -> str:
    """Return a bandwidth in Gbit/s."""
    return f"{mbits / 1000:.12g}"


def _name(layout: Layout, depth: int, index: int) -> str:
    return "/".join(layout.domain_path(depth, index))
