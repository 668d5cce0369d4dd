"""Sets of rows in which the links can carry any placement of a gang.

Suppose that a link can serve ``a`` nodes of a gang. Then either at most ``a`` of its nodes are below the link, or at
most ``a`` are elsewhere. In the second case the domain below the link holds more than half of the gang. At most one
domain of a level does. That gives one set of rows without such a domain, and one set for each possible such domain.

If nodes hold different numbers of members, the sets keep the nodes that hold most. The method is exact for members
that take a node each, in one domain of the level above the leaves. Then a placement exists only if a set contains one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.model.placement_query import GangTraffic
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.nodes.node_table import UNKNOWN, Int64
from topo_scheduler.state.topology.links import UNLIMITED, Links
from topo_scheduler.state.topology.wiring import Wiring

MAX_ROW_SETS: Final = 16
"""The most sets of rows to search, for each level and GPU model."""


@dataclass(frozen=True, slots=True)
class LinkRoom:
    """Additional nodes of a gang that links can serve, beyond the nodes on which it runs.

    ``below`` int64[links]: nodes below each link, if the other nodes are elsewhere. ``elsewhere`` int64[links]: nodes
    elsewhere, if more than half of the gang is below the link. ``networks`` bool[rows]: rows whose own network has
    enough bandwidth. ``home``: rows on which the gang runs.
    """

    wiring: Wiring
    below: Int64
    elsewhere: Int64
    networks: Bool
    home: Int64


def room_now(links: Links, traffic: GangTraffic) -> LinkRoom:
    """Return the free capacity of links for a gang, in nodes."""
    bandwidth = max(traffic.bandwidth, links.bandwidth_of(traffic.gang))
    served = np.maximum(links.left(traffic.gang), 0) // bandwidth
    home, removed = links.rows_of(traffic.gang)
    below = np.zeros(len(served), np.int64)
    np.add.at(below, links.wiring.of_row[home].ravel(), 1)
    return _room(links.wiring, served, home, below, len(home) + removed)


def room_ever(links: Links, traffic: GangTraffic) -> LinkRoom:
    """Return the capacity of links for a gang without other traffic, in nodes."""
    served = np.where(links.capacity == UNKNOWN, UNLIMITED, links.capacity) // traffic.bandwidth
    return _room(links.wiring, served, np.empty(0, np.int64), np.zeros(len(served), np.int64), 0)


def _room(wiring: Wiring, served: Int64, home: Int64, below: Int64, total: int) -> LinkRoom:
    rows = len(wiring.of_row)
    return LinkRoom(
        wiring,
        np.maximum(served - below, 0),
        np.maximum(served - (total - below), 0),
        served[:rows] > 0,
        home,
    )


def row_sets(room: LinkRoom, fit: Int64, depth: int, members: int) -> Iterator[Bool]:
    """Yield sets of rows (bool[rows] each), first the set without a domain that holds more than half.

    Args:
        room: nodes that links can serve.
        fit: int64[rows], members each row takes.
        depth: of the domain that all members share; its uplink and those further out carry no traffic.
        members: number of members to place.
    """
    usable = np.where(room.networks, fit, 0)
    without_large_domain = _narrowed(room, usable, depth)
    if int(without_large_domain.sum()) >= members:
        yield without_large_domain > 0
    for level in range(room.wiring.layout.depth, depth, -1):
        yield from _with_most_in_one(room, usable, depth, level, members)


def _with_most_in_one(room: LinkRoom, usable: Int64, depth: int, level: int, members: int) -> Iterator[Bool]:
    """Yield a set for each domain of a level that could hold more than half, the roomiest domain first."""
    wiring, layout = room.wiring, room.wiring.layout
    domain_fit = _narrowed(room, usable, level)
    ranges = layout.offsets[layout.domains[level]]
    held, nodes = (
        np.add.reduceat(values[layout.order], ranges[:-1]) for values in (domain_fit, (domain_fit > 0).astype(int))
    )
    below, elsewhere = room.below[wiring.uplinks(level)], room.elsewhere[wiring.uplinks(level)]
    # If the uplink can serve all nodes of the domain anyway, the first set covers it.
    rest_is_small = members - held <= np.minimum(elsewhere, members) * usable.max(initial=0)
    possible = np.flatnonzero((nodes > below) & (held > 0) & rest_is_small)
    for index in possible[np.lexsort((possible, -held[possible]))][:MAX_ROW_SETS].tolist():
        kept_fit = np.where(_in(wiring, level, index), domain_fit, 0)
        missing = members - int(held[index])
        if missing > 0 or elsewhere[index] > 0:
            kept_fit = np.maximum(kept_fit, _around(room, usable, depth, level, index))
        kept_fit[room.home] = usable[room.home]
        if int(kept_fit.sum()) >= members:
            yield kept_fit > 0


def _around(room: LinkRoom, usable: Int64, depth: int, level: int, index: int) -> Int64:
    """Return the members that rows outside a domain take if most of the gang is in the domain (int64[rows])."""
    wiring, layout = room.wiring, room.wiring.layout
    first, last = layout.domains[level][index : index + 2].tolist()
    outside = np.where(_in(wiring, level, index), 0, usable)
    if depth:
        outside = np.where(_in(wiring, depth, layout.domain_of_leaf(depth, first)), outside, 0)
    enclosing_domains = [layout.domain_of_leaf(outer_level, first) for outer_level in range(1, level)]
    outside = _narrowed(room, outside, depth, enclosing_domains)
    outside[room.home] = 0
    by_leaf = np.zeros(len(layout.paths), np.int64)
    np.add.at(by_leaf, layout.leaf_of_row[layout.order], outside[layout.order])
    rows = layout.order[outside[layout.order] > 0]
    leaves = layout.leaf_of_row[rows]
    levels_up = np.zeros(len(rows), np.int64)
    for outer_level, domain in enumerate(enclosing_domains, 1):
        low, high = layout.domains[outer_level][domain : domain + 2]
        levels_up += (leaves < low) | (leaves >= high)
    distance = np.where(leaves < first, first - leaves, leaves - last + 1)
    rows = rows[np.lexsort((layout.position[rows], -outside[rows], distance, -by_leaf[leaves], levels_up))]
    kept_fit = np.zeros(len(outside), np.int64)
    rows = rows[: int(min(room.elsewhere[wiring.starts[level] + index], len(rows)))]
    kept_fit[rows] = outside[rows]
    return kept_fit


def _narrowed(room: LinkRoom, fit: Int64, depth: int, spared: tuple[int, ...] | list[int] = ()) -> Int64:
    """Return the members that rows take if each domain below a depth has no more nodes than its uplink can serve.

    ``spared``: domains without a limit, by depth from 1 on.
    """
    from topo_scheduler.kernels.links import keep_roomiest  # most clusters have no gangs with bandwidth

    wiring, layout = room.wiring, room.wiring.layout
    kept_fit = fit.copy()
    kept_fit[room.home] = 0
    for level in range(layout.depth, depth, -1):
        max_rows = room.below[wiring.uplinks(level)].copy()
        if level <= len(spared):
            max_rows[spared[level - 1]] = UNLIMITED
        keep_roomiest(kept_fit, layout.order, layout.offsets[layout.domains[level]], max_rows)
    kept_fit[room.home] = fit[room.home]
    return kept_fit


def _in(wiring: Wiring, level: int, index: int) -> Bool:
    in_domain: Bool = wiring.of_row[:, level] == wiring.starts[level] + index
    return in_domain
