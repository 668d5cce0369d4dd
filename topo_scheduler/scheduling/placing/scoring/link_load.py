"""Load of the links that a placement would use: latency-sensitive workloads go to the least loaded links."""

import numpy as np

from topo_scheduler.state.nodes.node_table import Int64
from topo_scheduler.state.topology.fabric import Layout
from topo_scheduler.state.topology.links import Links


def link_load(links: Links, layout: Layout, share: Int64, across: int | None) -> Int64:
    """Return the load of the links of each leaf (int64[leaves], in thousandths).

    The load is the reserved share of the networks of all nodes in the leaf. For placements in several leaves of one
    domain it is at least the load of the most loaded uplink between leaf and domain. Links of unknown capacity are
    unlimited, so reservations do not load them.

    Args:
        links: settled.
        layout: the fabric.
        share: int64[leaves], the load of leaves without a known capacity, in thousandths.
        across: depth of the domain, None for placements in one leaf.
    """
    wiring, capacity, reserved = links.wiring, links.capacity, links.reserved
    has_capacity = capacity[layout.order] > 0
    total_capacity, total_reserved = (
        np.add.reduceat(np.where(has_capacity, of_link[layout.order], 0), layout.offsets[:-1])
        for of_link in (capacity, reserved)
    )
    load = 1000 * total_reserved // np.maximum(total_capacity, 1)
    load = np.where(total_capacity > 0, load, -1)
    if across is not None:
        # The first node of a leaf has the links above the leaf.
        above = wiring.of_row[layout.order[layout.offsets[:-1]], across + 1 :]
        uplinks = np.where(capacity[above] > 0, 1000 * reserved[above] // np.maximum(capacity[above], 1), -1)
        load = np.maximum(load, uplinks.max(axis=1, initial=-1))
    return np.where(load >= 0, load, share).astype(np.int64)
