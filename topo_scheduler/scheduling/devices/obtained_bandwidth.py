"""How much of the bandwidth between GPUs that its node could give empty a placed pod gets; for metrics only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from topo_scheduler.scheduling.devices.gpu_closeness import best_bandwidth, ring_bandwidth
from topo_scheduler.scheduling.devices.hardware_table import HardwareTable
from topo_scheduler.scheduling.devices.plugin_choice import set_of
from topo_scheduler.state.decision import Seat
from topo_scheduler.state.nodes.node_table import NodeTable


@dataclass(frozen=True, slots=True)
class ObtainedBandwidth:
    """What one pod gets.

    Attributes:
        gpus: number of its GPUs, at least two.
        predicted: whether a device plugin is expected to choose these GPUs; otherwise the choice is exact.
        share: ring bandwidth of its GPUs over the best that so many GPUs of the empty node have, from 0 to 1.
    """

    gpus: int
    predicted: bool
    share: float


def obtained_bandwidths(
    nodes: NodeTable, hardware: HardwareTable, seats: Iterable[Seat]
) -> Iterator[ObtainedBandwidth]:
    """Yield what pods get of which the indexes of several GPUs are known, on nodes whose links are known.

    Pods that ask for shares of a GPU have one index, and are left out. The first pod on a node of a new shape takes up
    to 200 ms for 16 GPUs, 1 ms for 8.
    """
    for seat in seats:
        if len(seat.devices) < 2 or seat.row >= nodes.rows or nodes.names[seat.row] != seat.node:
            continue
        gpus, chosen = hardware.of(seat.row), set_of(sorted(set(seat.devices)))
        if gpus is None or not gpus.links_known or gpus.shared_by_time or chosen & ~gpus.all_gpus:
            continue
        best = best_bandwidth(gpus, chosen.bit_count())
        if best > 0:
            yield ObtainedBandwidth(chosen.bit_count(), seat.predicted, ring_bandwidth(gpus, chosen) / best)
