"""How loaded the links are that a placement would use: latency-sensitive workloads go where they are least."""

import numpy as np

from topo_scheduler.state.fabric import Layout
from topo_scheduler.state.links import Links
from topo_scheduler.state.nodes import Int64


def link_load(links: Links, layout: Layout, share: Int64, across: int | None) -> Int64:
    """Return how loaded the links of each leaf are (int64[leaves], in thousandths).

    The reserved share of the networks of its nodes together and, for placements in several leaves of one domain, of the
    most loaded uplink on the way to it, whichever is more. Links of unknown capacity are unlimited: what is reserved of
    them loads nothing.

    Args:
        links: settled.
        layout: the fabric.
        share: int64[leaves], stands for the load of leaves of which no capacity is known.
        across: depth of the domain, None for placements in one leaf.
    """
    wiring, capacity, reserved = links.wiring, links.capacity, links.reserved
    known = capacity[layout.order] > 0
    carried, taken = (
        np.add.reduceat(np.where(known, of_link[layout.order], 0), layout.offsets[:-1])
        for of_link in (capacity, reserved)
    )
    load = 1000 * taken // np.maximum(carried, 1)
    load = np.where(carried > 0, load, -1)
    if across is not None:
        # Each leaf's first node tells the links above the leaf.
        above = wiring.of_row[layout.order[layout.offsets[:-1]], across + 1 :]
        uplinks = np.where(capacity[above] > 0, 1000 * reserved[above] // np.maximum(capacity[above], 1), -1)
        load = np.maximum(load, uplinks.max(axis=1, initial=-1))
    return np.where(load >= 0, load, share).astype(np.int64)
