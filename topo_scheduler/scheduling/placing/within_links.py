"""Where a gang may go so that no link carries more than it can: sets of rows within which any placement will do.

Of a link that can serve ``a`` nodes of a gang, either at most ``a`` of its nodes are below, or at most ``a`` are
elsewhere. A domain of the second kind holds more than half of the gang, so of the domains of a level there is at most
one. That gives one set of rows without such a domain, and one for each domain that could be it.

Where nodes hold different numbers of members, those that hold most are kept. For members that take a node each, in one
domain of the level above the leaves, a placement exists exactly if one of the sets has it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from topo_scheduler.scheduling.placing.ask import GangTraffic
from topo_scheduler.scheduling.rules.filters import Bool
from topo_scheduler.state.links import UNLIMITED, Links
from topo_scheduler.state.nodes import UNKNOWN, Int64
from topo_scheduler.state.wiring import Wiring

TRIES: Final = 16
"""Sets of rows in which a place is looked for at most, for each level and GPU model."""


@dataclass(frozen=True, slots=True)
class LinkRoom:
    """How many more nodes of a gang links can serve, beyond those on which it runs.

    ``below`` int64[links]: below each, if the others are elsewhere. ``elsewhere`` int64[links]: elsewhere, if more than
    half of the gang is below. ``networks`` bool[rows]: rows whose own network will do. ``home`` rows on which it runs.
    """

    wiring: Wiring
    below: Int64
    elsewhere: Int64
    networks: Bool
    home: Int64


def room_now(links: Links, traffic: GangTraffic) -> LinkRoom:
    """Return what links have left for a gang."""
    bandwidth = max(traffic.bandwidth, links.bandwidth_of(traffic.gang))
    served = np.maximum(links.left(traffic.gang), 0) // bandwidth
    home, gone = links.rows_of(traffic.gang)
    below = np.zeros(len(served), np.int64)
    np.add.at(below, links.wiring.of_row[home].ravel(), 1)
    return _room(links.wiring, served, home, below, len(home) + gone)


def room_ever(links: Links, traffic: GangTraffic) -> LinkRoom:
    """Return what links have for a gang if nobody else sends anything."""
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
    """Yield sets of rows (bool[rows] each), the one without a domain that holds more than half first.

    Args:
        room: what links can serve.
        fit: int64[rows], members each row takes.
        depth: of the domain that all members share; its own uplink and those further out carry nothing.
        members: how many are to be placed.
    """
    usable = np.where(room.networks, fit, 0)
    kept = _narrowed(room, usable, depth)
    if int(kept.sum()) >= members:
        yield kept > 0
    for level in range(room.wiring.layout.depth, depth, -1):
        yield from _with_most_in_one(room, usable, depth, level, members)


def _with_most_in_one(room: LinkRoom, usable: Int64, depth: int, level: int, members: int) -> Iterator[Bool]:
    """Yield a set for domains of a level that could hold more than half, those that hold most first."""
    wiring, layout = room.wiring, room.wiring.layout
    inside = _narrowed(room, usable, level)
    ranges = layout.offsets[layout.domains[level]]
    held, nodes = (np.add.reduceat(values[layout.order], ranges[:-1]) for values in (inside, (inside > 0).astype(int)))
    below, elsewhere = room.below[wiring.uplinks(level)], room.elsewhere[wiring.uplinks(level)]
    # Where the uplink can serve all nodes of the domain anyway, the first set knows it already.
    few = members - held <= np.minimum(elsewhere, members) * usable.max(initial=0)
    possible = np.flatnonzero((nodes > below) & (held > 0) & few)
    for index in possible[np.lexsort((possible, -held[possible]))][:TRIES].tolist():
        chosen = np.where(_in(wiring, level, index), inside, 0)
        missing = members - int(held[index])
        if missing > 0 or elsewhere[index] > 0:
            chosen = np.maximum(chosen, _around(room, usable, depth, level, index))
        chosen[room.home] = usable[room.home]
        if int(chosen.sum()) >= members:
            yield chosen > 0


def _around(room: LinkRoom, usable: Int64, depth: int, level: int, index: int) -> Int64:
    """Return how many members rows outside of a domain take when most of the gang is in it (int64[rows])."""
    wiring, layout = room.wiring, room.wiring.layout
    first, last = layout.domains[level][index : index + 2].tolist()
    outside = np.where(_in(wiring, level, index), 0, usable)
    if depth:
        outside = np.where(_in(wiring, depth, layout.domain_of_leaf(depth, first)), outside, 0)
    around = [layout.domain_of_leaf(outer, first) for outer in range(1, level)]
    outside = _narrowed(room, outside, depth, around)
    outside[room.home] = 0
    by_leaf = np.zeros(len(layout.paths), np.int64)
    np.add.at(by_leaf, layout.leaf_of_row[layout.order], outside[layout.order])
    rows = layout.order[outside[layout.order] > 0]
    leaves = layout.leaf_of_row[rows]
    levels_up = np.zeros(len(rows), np.int64)
    for outer, domain in enumerate(around, 1):
        low, high = layout.domains[outer][domain : domain + 2]
        levels_up += (leaves < low) | (leaves >= high)
    distance = np.where(leaves < first, first - leaves, leaves - last + 1)
    rows = rows[np.lexsort((layout.position[rows], -outside[rows], distance, -by_leaf[leaves], levels_up))]
    found = np.zeros(len(outside), np.int64)
    rows = rows[: int(min(room.elsewhere[wiring.starts[level] + index], len(rows)))]
    found[rows] = outside[rows]
    return found


def _narrowed(room: LinkRoom, fit: Int64, depth: int, spared: tuple[int, ...] | list[int] = ()) -> Int64:
    """Return how many members rows take when each domain below a depth has no more nodes than its uplink can serve.

    ``spared`` domains that may have any number, by depth from 1 on.
    """
    from topo_scheduler.kernels.links import keep_roomiest  # most clusters have no gangs that ask for bandwidth

    wiring, layout = room.wiring, room.wiring.layout
    out = fit.copy()
    out[room.home] = 0
    for level in range(layout.depth, depth, -1):
        most = room.below[wiring.uplinks(level)].copy()
        if level <= len(spared):
            most[spared[level - 1]] = UNLIMITED
        keep_roomiest(out, layout.order, layout.offsets[layout.domains[level]], most)
    out[room.home] = fit[room.home]
    return out


def _in(wiring: Wiring, level: int, index: int) -> Bool:
    inside: Bool = wiring.of_row[:, level] == wiring.starts[level] + index
    return inside
