"""The numbered links of a fabric and their capacities.

Every node has one link, its network. Every domain below the whole fabric has one link, its uplink. The number of a
node's link is its row; the uplinks follow, level by level from the outermost. Bandwidths are Mbit/s in each direction.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.api.labels import UNLABELLED
from topo_scheduler.api.links import NODE, Link, uplink_label
from topo_scheduler.api.quantity import QuantityError, parse_bandwidth
from topo_scheduler.api.text import few_of
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64, NodeTable
from topo_scheduler.state.topology.fabric import Layout

_NO_LABEL: Final = 1 << 62
_MAX_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class Wiring:
    """The links of one layout.

    ``starts`` has the number of the first uplink of each depth, and the end of the last; depth 0 has no uplinks and
    starts at 0. ``of_row`` int64[rows, depth + 1]: the links above each row, its own first, then the uplinks from the
    outermost level inward; -1 in rows without a node.
    """

    layout: Layout
    starts: tuple[int, ...]
    of_row: Int64

    @property
    def links(self) -> int:
        """Count of link numbers, including rows without a node."""
        return self.starts[-1]

    def uplinks(self, depth: int) -> slice:
        """Return the numbers of the uplinks of a depth, 1 or more, in order of its domains."""
        return slice(self.starts[depth], self.starts[depth + 1])

    def place(self, link: int) -> tuple[int, int]:
        """Return depth and index of the domain of an uplink; depth 0 and the row for a node's link."""
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


def capacities(wiring: Wiring, nodes: NodeTable, links: Sequence[Link]) -> tuple[Int64, list[str]]:
    """Return the capacity of each link (int64[links]), -1 where unknown; and problems in labels and configuration.

    For an uplink, the configuration of its domain takes precedence, then the labels of its nodes, then the
    configuration of its level. For a node, its label takes precedence, then the configuration, which the node table
    already includes.

    Args:
        wiring: the numbered links.
        nodes: bandwidths and labels of the nodes.
        links: ``links`` of the configuration.
    """
    layout = wiring.layout
    mbits = np.full(wiring.links, UNKNOWN, np.int64)
    mbits[layout.order] = nodes.bandwidth[layout.order]
    problems: list[str] = []
    by_level = {link.level: link for link in links if link.level not in (None, NODE)}
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
    for link in links:
        if link.domain is not None and len(layout.order):
            _of_domain(wiring, nodes, link, mbits, named, problems)
    return mbits, problems


def _of_level(wiring: Wiring, nodes: NodeTable, depth: int, link: Link, problems: list[str]) -> Int64:
    layout = wiring.layout
    firsts = layout.domains[depth][:-1].tolist()
    # Nodes without a label for a level share a placeholder domain, which has no real uplink.
    exists = np.array([layout.paths[first][depth - 1] != UNLABELLED for first in firsts], np.bool_)
    if link.mbits is not None:
        return np.where(exists, link.mbits, UNKNOWN)
    mbits = np.where(exists, _sums_below(wiring, nodes, depth, link), UNKNOWN)
    unknown = np.flatnonzero(exists & (mbits == UNKNOWN)).tolist()
    if unknown:
        names = [_name(layout, depth, index) for index in unknown]
        problems.append(_silent(wiring, nodes, link, names, wiring.rows_below(depth, unknown[0])))
    return mbits


def _sums_below(wiring: Wiring, nodes: NodeTable, depth: int, link: Link) -> Int64:
    """Return the total bandwidth of the nodes of each domain by oversubscription; -1 if that of a node is unknown."""
    layout = wiring.layout
    networks = nodes.bandwidth[layout.order]
    ranges = layout.offsets[layout.domains[depth]][:-1]
    sums = np.add.reduceat(networks, ranges) if len(networks) else np.empty(0, np.int64)
    known = np.minimum.reduceat(networks, ranges) != UNKNOWN if len(networks) else np.empty(0, np.bool_)
    divided_sums = {int(total): max(1, link.divided(int(total))) for total in np.unique(sums[known])}
    return np.array(
        [divided_sums[total] if is_known else UNKNOWN for total, is_known in zip(sums.tolist(), known, strict=True)],
        np.int64,
    )


def _of_domain(
    wiring: Wiring, nodes: NodeTable, link: Link, mbits: Int64, previous_entries: dict[int, Link], problems: list[str]
) -> None:
    """Set the uplinks that one entry names; ``previous_entries`` has the entry that set each link before."""
    layout = wiring.layout
    domains = [(depth, index) for depth, index in layout.find(link.domain or "") if depth]
    if not domains:
        problems.append(
            f"spec.links: no domain is called {link.domain}, so this has no effect; write a path or a name as"
            " `topo-scheduler topology` shows them"
        )
    elif len(domains) > 1:
        paths = ", ".join(_name(layout, depth, index) for depth, index in domains[:4])
        problems.append(
            f"spec.links: {link.domain} may mean {paths}; it applies to all of them, write a path to name one"
        )
    for depth, index in domains:
        capacity = link.mbits if link.mbits is not None else int(_sums_below(wiring, nodes, depth, link)[index])
        if capacity == UNKNOWN:
            names = [_name(layout, depth, index)]
            problems.append(_silent(wiring, nodes, link, names, wiring.rows_below(depth, index)))
        number = wiring.starts[depth] + index
        previous = previous_entries.setdefault(number, link)
        if previous is not link and capacity != mbits[number]:
            name = _name(layout, depth, index)
            problems.append(
                f"spec.links: {previous.domain} and {link.domain} both mean {name}; the lowest value is used"
            )
            capacity = min((value for value in (capacity, int(mbits[number])) if value != UNKNOWN), default=UNKNOWN)
        mbits[number] = capacity


def _silent(wiring: Wiring, nodes: NodeTable, link: Link, names: Sequence[str], rows: Int64) -> str:
    unlabelled = [nodes.names[row] for row in rows.tolist() if nodes.bandwidth[row] == UNKNOWN]
    label = next(iter(nodes.label_keys.bandwidth), "")
    return (
        f"spec.links: {link.name}: the aggregate bandwidth of its nodes is not known, as"
        f" {few_of(unlabelled, _MAX_EXAMPLES)} of {names[0]} have no bandwidth label;"
        f" {len(names)} {'uplink counts' if len(names) == 1 else 'uplinks count'}"
        f" as unlimited. Label the nodes with {label}, or give a capacity"
    )


def _from_labels(wiring: Wiring, nodes: NodeTable, depth: int, mbits: Int64, problems: list[str]) -> None:
    """Set the uplinks of a depth from node labels; if labels disagree, the lowest value counts."""
    layout = wiring.layout
    key = uplink_label(layout.levels[depth - 1])
    values = nodes.label_column(key)[layout.order]
    if not (values != UNKNOWN).any():
        return
    mbits_of_node = np.full(len(values), UNKNOWN, np.int64)
    for value in np.unique(values[values != UNKNOWN]).tolist():
        try:
            mbits_of_node[values == value] = parse_bandwidth(nodes.values[value])
        except QuantityError as error:
            nodes_with_value = [nodes.names[row] for row in layout.order[values == value].tolist()]
            problems.append(f"node {few_of(nodes_with_value, _MAX_EXAMPLES)}: label {key}: {error}; it is ignored")
    ranges = layout.offsets[layout.domains[depth]]
    lowest = np.minimum.reduceat(np.where(mbits_of_node == UNKNOWN, _NO_LABEL, mbits_of_node), ranges[:-1])
    highest = np.maximum.reduceat(mbits_of_node, ranges[:-1])
    for index in np.flatnonzero((highest != UNKNOWN) & (lowest != highest)).tolist():
        rows = layout.order[ranges[index] : ranges[index + 1]]
        mbits_here = mbits_of_node[ranges[index] : ranges[index + 1]]
        low, high = (nodes.names[int(rows[mbits_here == value][0])] for value in (lowest[index], highest[index]))
        problems.append(
            f"label {key}: nodes of {_name(layout, depth, index)} disagree: {readable(int(lowest[index]))} Gbit/s on"
            f" {low}, {readable(int(highest[index]))} on {high}; the lowest value is used. Give all its nodes the same"
        )
    uplinks = mbits[wiring.uplinks(depth)]
    uplinks[highest != UNKNOWN] = lowest[highest != UNKNOWN]


def readable(mbits: int) -> str:
    """Return a bandwidth in Gbit/s."""
    return f"{mbits / 1000:.12g}"


def _name(layout: Layout, depth: int, index: int) -> str:
    return "/".join(layout.domain_path(depth, index))
