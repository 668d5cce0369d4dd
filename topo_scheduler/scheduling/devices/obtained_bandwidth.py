"""How much of the bandwidth between GPUs that its node could give empty a placed pod gets; for metrics only."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from topo_scheduler.scheduling.devices.gpu_sets import GpuSets
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


def obtained_bandwidths(nodes: NodeTable, sets: GpuSets | None, seats: Iterable[Seat]) -> Iterator[ObtainedBandwidth]:
    """Yield what pods get of which several GPUs are known, on nodes whose links are known.

    Pods that ask for shares of a GPU have one index, and are left out. So are nodes of a new shape while its tables are
    computed.
    """
    if sets is None:
        return
    for seat in seats:
        if not (seat.devices or seat.claims) or seat.row >= nodes.rows or nodes.names[seat.row] != seat.node:
            continue
        gpus = sets.hardware.of(seat.row)
        if gpus is None or not gpus.links_known or gpus.shared_by_time:
            continue
        chosen = _chosen(sets, seat, gpus.count)
        if chosen.bit_count() < 2 or chosen & ~gpus.all_gpus:
            continue
        tables = sets.tables.of(gpus.hardware)
        best = tables.best_ring(gpus.all_gpus, chosen.bit_count()) if sets.tables.decides(gpus.hardware) else 0
        if best > 0:
            yield ObtainedBandwidth(chosen.bit_count(), seat.predicted, tables.ring(chosen) / best)


def _chosen(sets: GpuSets, seat: Seat, count: int) -> int:
    """Return the GPUs of a placed pod as bits, 0 if they are not known."""
    if seat.devices:
        return set_of(sorted(set(seat.devices)))
    return max(0, sets.claimed.chosen(seat.claims, seat.row, count)) if sets.claimed is not None else 0
