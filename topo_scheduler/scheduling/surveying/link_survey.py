"""Links for the CLI and metrics: capacity and reserved bandwidth of each."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topo_scheduler.api.links import NODE
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.nodes.node_table import UNKNOWN
from topo_scheduler.state.topology.fabric import Path


@dataclass(frozen=True, slots=True)
class LinkState:
    """The uplink of a domain, in Mbit/s in each direction. ``capacity`` is None where unknown.

    Level ``node`` sums the network interfaces of a leaf's nodes, as far as their capacity is known.
    """

    level: str
    path: Path
    capacity: int | None
    reserved: int


def survey_links(world: World) -> Iterator[LinkState]:
    """Yield the uplink of each domain, the outermost level first, then the networks of the nodes of each leaf."""
    layout, links = world.layout, world.links
    links.settle(layout)
    for depth, level in enumerate(layout.levels, 1):
        uplinks = links.wiring.uplinks(depth)
        uplink_values = zip(links.capacity[uplinks].tolist(), links.reserved[uplinks].tolist(), strict=True)
        for index, (capacity, reserved) in enumerate(uplink_values):
            known_capacity = None if capacity == UNKNOWN else capacity
            yield LinkState(level, layout.domain_path(depth, index), known_capacity, reserved)
    if not len(layout.order):
        return
    known = links.capacity[layout.order] != UNKNOWN
    starts = layout.offsets[:-1]
    capacities = np.add.reduceat(np.where(known, links.capacity[layout.order], 0), starts).tolist()
    reservations = np.add.reduceat(links.reserved[layout.order], starts).tolist()
    for path, capacity, reserved in zip(layout.paths, capacities, reservations, strict=True):
        yield LinkState(NODE, path, capacity or None, reserved)
