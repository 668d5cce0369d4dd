"""The strategies of the built-in plugin: how members are dealt to leaves, and to the nodes of each.

Kernels are imported when the first is called: who only filters need not wait until they are compiled.
"""

from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Final

import numpy as np

from topo_scheduler.api.annotations import PlacementStrategy as Name
from topo_scheduler.scheduling.extensions.extension import LeafSeats, Prefers, Strategy
from topo_scheduler.state.nodes import Int64


@cache
def _kernels() -> ModuleType:
    from topo_scheduler.kernels import nodes

    return nodes


def deal_packed(limits: Int64, members: int) -> Int64:
    """Fill the leaf that holds least first, so that what stays free stays together."""
    dealt = np.zeros(len(limits), np.int64)
    _kernels().deal(limits, dealt, members, 0)
    return dealt


def deal_spread(limits: Int64, members: int) -> Int64:
    """Deal one at a time to the leaf that has got fewest."""
    dealt = np.zeros(len(limits), np.int64)
    _kernels().deal(limits, dealt, members, 1)
    return dealt


def seat_packed(here: LeafSeats) -> Int64 | None:
    """Use the fewest nodes, and strand the least."""
    counts = np.zeros(len(here.rows), np.int64)
    if _kernels().pack_nodes(
        here.rows, here.fit, here.free, here.preference, here.ask, here.members, here.most_nodes, counts
    ):
        return None
    return counts


def seat_spread(here: LeafSeats) -> Int64 | None:
    """Put members one at a time on the node with the fewest of them; packed where a limit of nodes is in the way."""
    counts = np.zeros(len(here.rows), np.int64)
    if _kernels().spread_nodes(
        here.rows,
        here.fit,
        here.free,
        here.preference,
        here.siblings,
        here.ask,
        here.members,
        here.most_nodes,
        counts,
    ):
        return seat_packed(here)
    return counts


STRATEGIES: Final[Sequence[Strategy]] = (
    Strategy(Name.CONSOLIDATED, deal_packed, seat_packed, Prefers.FULL),
    Strategy(Name.DISTRIBUTED, deal_spread, seat_spread, Prefers.EMPTY, apart=True),
    Strategy(Name.BALANCED, deal_packed, seat_packed, Prefers.EVEN),
)
