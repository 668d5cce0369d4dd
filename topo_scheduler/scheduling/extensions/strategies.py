"""The strategies of the built-in plugin: how they distribute members over leaves, and over the nodes of each leaf.

The first call imports the kernels: a process that only filters need not wait until they are compiled.
"""

from collections.abc import Sequence
from functools import cache, partial
from types import ModuleType
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy as Name
from topo_scheduler.scheduling.extensions.extension import LeafSeats, Prefers, Strategy
from topo_scheduler.state.nodes.node_table import Int64


@cache
def _kernels() -> ModuleType:
    from topo_scheduler.kernels import nodes

    return nodes


def _deal(spread: int, limits: Int64, members: int) -> Int64:
    dealt = np.zeros(len(limits), np.int64)
    _kernels().deal(limits, dealt, members, spread)
    return dealt


deal_packed = partial(_deal, 0)
"""Fills the leaf with least room first, so that free nodes stay together."""
deal_spread = partial(_deal, 1)
"""Assigns one member at a time to the leaf with the fewest."""


def seat_packed(leaf_seats: LeafSeats) -> Int64 | None:
    """Use the fewest nodes, and leave the fewest resources stranded."""
    rows, fit, free, preference, _, _, members, most_nodes = leaf_seats
    counts = np.zeros(len(rows), np.int64)
    return None if _kernels().pack_nodes(rows, fit, free, preference, members, most_nodes, counts) else counts


def seat_spread(leaf_seats: LeafSeats) -> Int64 | None:
    """Assign one member at a time to the node with the fewest. Pack if the limit of nodes does not allow that."""
    counts = np.zeros(len(leaf_seats.rows), np.int64)
    return seat_packed(leaf_seats) if _kernels().spread_nodes(*leaf_seats, counts) else counts


STRATEGIES: Final[Sequence[Strategy]] = (
    Strategy(Name.CONSOLIDATED, deal_packed, seat_packed, Prefers.FULL),
    Strategy(Name.DISTRIBUTED, deal_spread, seat_spread, Prefers.EMPTY, apart=True),
    Strategy(Name.BALANCED, deal_packed, seat_packed, Prefers.EVEN),
)
