"""Links as people and metrics see them: what each carries, and how much of it is reserved."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from topo_scheduler.api.links import NODE
from topo_scheduler.scheduling.world import World
from topo_scheduler.state.fabric import Path
from topo_scheduler.state.nodes import UNKNOWN


@dataclass(frozen=True, slots=True)
class LinkState:
    """Mbit/s in each direction of the uplink of a domain; ``capacity`` None where it is not known.

    With level ``node`` the networks of a leaf's nodes together, as far as their capacity is known.
    """

    level: str
    path: Path
    capacity: int | None
    reserved: int


def survey_links(world: World) -> Iterator[LinkState]:
    """Yield the uplink of each domain, level by level from the outside, then the networks of the nodes of each leaf."""
    layout, links = world.layout, world.links
    links.settle(layout)
    for depth, level in enumerate(layout.levels, 1):
        uplinks = links.wiring.uplinks(depth)
        both = zip(links.capacity[uplinks].tolist(), links.reserved[uplinks].tolist(), strict=True)
        for index, (capacity, reserved) in enumerate(both):
            told = None if capacity == UNKNOWN else capacity
            yield LinkState(level, layout.domain_path(depth, index), told, reserved)
    if not len(layout.order):
        return
    known = links.capacity[layout.order] != UNKNOWN
    starts = layout.offsets[:-1]
    capacities = np.add.reduceat(np.where(known, links.capacity[layout.order], 0), starts).tolist()
    reservations = np.add.reduceat(links.reserved[layout.order], starts).tolist()
    for path, capacity, reserved in zip(layout.paths, capacities, reservations, strict=True):
        yield LinkState(NODE, path, capacity or None, reserved)
