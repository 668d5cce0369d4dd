"""Estimate the slowdown of gangs by network contention from their placements, with a simple model.

A training step consists of computation and one ring all-reduce over the n GPUs of the gang. The all-reduce sends
2 (n - 1) / n times the gradients over each link between neighbours of the ring. The ring follows the fabric, so it
leaves each domain once, however many nodes the gang has there. The gangs whose rings cross a link share it evenly. The
smallest share of its links limits a ring. Rates change only when a gang starts or ends.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009 (the ring);
    docs/explanation/slowdown.md (the formula, and what it leaves out)
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from math import inf

import numpy as np

from topo_scheduler.api.labels import GPU_RESOURCES, UNLABELLED
from topo_scheduler.api.links import NODE, Link
from topo_scheduler.api.objects import Node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.quantity import MAX_BANDWIDTH_MBITS
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, Stay
from topo_scheduler.state.nodes.node_table import UNKNOWN, NodeLabels, NodeTable
from topo_scheduler.state.nodes.resources import ResourceTable
from topo_scheduler.state.topology.fabric import Fabric
from topo_scheduler.state.topology.wiring import Wiring, capacities, wire


@dataclass(frozen=True, slots=True)
class Assumed:
    """Assumptions of the model.

    ``communication`` is the share of a step that an all-reduce of very many GPUs takes without contention, from 0 to 1.
    ``network`` is the bandwidth of a node in Mbit/s. ``oversubscription`` is the bandwidth below a domain divided by
    that of its uplink. Both apply only where neither labels nor the configuration have a value.
    """

    communication: float = 0.3
    network: int = 400_000
    oversubscription: float = 2.0


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster. ``above`` has the links above each node, its own first; ``capacity`` is in Mbit/s."""

    above: tuple[tuple[int, ...], ...]
    capacity: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class GangSlowdown:
    """The slowdown of one gang.

    ``seconds`` is the time in which all of its pods ran. ``factor`` is the mean duration of its steps over this time,
    relative to steps without contention, at least 1.
    """

    job: int
    seconds: float
    factor: float


@dataclass(slots=True)
class _Ring:
    """An interval in which all pods of a gang ran in one placement. ``alone`` is the rate without contention.

    Rates are in Mbit/s, times in seconds. ``stretched`` is the time up to ``since``, each second multiplied by its
    factor.
    """

    job: int
    begin: float
    end: float
    links: tuple[int, ...]
    alone: float
    gpus: float
    rate: float = 0.0
    since: float = 0.0
    stretched: float = 0.0

    def until(self, at: float, communication: float) -> None:
        """Add the time since the last change of rate to ``stretched``."""
        network_share = communication * (self.gpus - 1) / self.gpus if self.gpus > 1 else 0.0
        step = 1 - communication + network_share
        slowed_step = 1 - communication + network_share * (self.alone / self.rate if self.links else 1.0)
        self.stretched += (at - self.since) * (slowed_step / step)
        self.since = at


def network_of(
    nodes: Sequence[Node], levels: SchedulerConfig, configured_links: Sequence[Link], assumed: Assumed
) -> Network:
    """Return the links of a cluster, with capacities from labels, else the configuration, else assumptions.

    Args:
        nodes: the nodes in the order in which a run numbers them.
        levels: configuration of the topology levels.
        configured_links: ``links`` of the configuration.
        assumed: values for all other links.
    """
    fabric = Fabric(levels.topology)
    table = NodeTable(ResourceTable(GPU_RESOURCES), NodeLabels(levels.gpu_model_labels, levels.bandwidth_labels))
    rows = []
    for node in nodes:
        row, _, _ = table.put(node)
        fabric.put(row, node.metadata.name, node.metadata.labels)
        rows.append(row)
    default = next((link.mbits for link in configured_links if link.level == NODE), None)
    table.assume_bandwidth(assumed.network if default is None else default)
    wiring = wire(fabric.layout(table.rows))
    known, _ = capacities(wiring, table, configured_links)
    carried = [float(mbits) if mbits != UNKNOWN else inf for mbits in known.tolist()]
    for row in rows:
        carried[row] = min(carried[row], float(MAX_BANDWIDTH_MBITS))  # an invalid bandwidth label would mean no limit
    _assume_uplinks(wiring, known.tolist(), carried, assumed.oversubscription)
    return Network(tuple(tuple(wiring.of_row[row].tolist()) for row in rows), tuple(carried))


def _assume_uplinks(wiring: Wiring, known: Sequence[int], carried: list[float], oversubscription: float) -> None:
    """Set unknown uplink capacities, from the innermost level outward; a domain without a label has no limit."""
    layout = wiring.layout
    for depth in range(layout.depth, 0, -1):
        below = depth + 1 if depth < layout.depth else 0
        for index, link in enumerate(range(wiring.starts[depth], wiring.starts[depth + 1])):
            first = int(layout.domains[depth][index])
            if known[link] == UNKNOWN and layout.paths[first][depth - 1] != UNLABELLED:
                links = np.unique(wiring.of_row[wiring.rows_below(depth, index), below]).tolist()
                carried[link] = sum(carried[lower_link] for lower_link in links) / oversubscription


# ---------------------------------------------------------------- gangs and their rings


def slowdowns(history: RunHistory, network: Network, assumed: Assumed) -> list[GangSlowdown]:
    """Return the slowdown of each gang of which all pods ran, in order of arrival. A fill has none, as it has no times.

    The times of the run do not change: a slowed gang does not run longer.
    """
    if history.order:
        return []
    rings = list(_rings(history, network))
    _run(rings, network, assumed.communication)
    seconds, stretched = defaultdict[int, float](float), defaultdict[int, float](float)
    for ring in rings:
        seconds[ring.job] += ring.end - ring.begin
        stretched[ring.job] += ring.stretched
    return [GangSlowdown(job, seconds[job], stretched[job] / seconds[job]) for job in sorted(seconds)]


def _rings(history: RunHistory, network: Network) -> Iterator[_Ring]:
    """Yield the intervals in which all pods of a gang ran; each interval has one placement."""
    stays: dict[int, list[Stay]] = defaultdict(list)
    for stay in history.stays:
        if stay.job != BEFORE and history.outcomes[stay.job].pods > 1:
            stays[stay.job].append(stay)
    for job, job_stays in stays.items():
        pods = history.outcomes[job].pods
        moments = sorted({moment for stay in job_stays for moment in (stay.start, min(stay.end, history.end))})
        for begin, end in pairwise(moments):
            present = [stay for stay in job_stays if stay.start <= begin and stay.end >= end]
            if len(present) == pods:
                yield _ring(job, begin, end, present, network)


def _ring(job: int, begin: float, end: float, stays: Sequence[Stay], network: Network) -> _Ring:
    nodes = sorted({stay.node for stay in stays})
    below: dict[int, int] = defaultdict(int)
    for node in nodes:
        for link in network.above[node]:
            below[link] += 1
    gpus = sum(stay.milli for stay in stays) / 1000
    # A gang with at most one GPU sends nothing.
    links = tuple(sorted(link for link, count in below.items() if count < len(nodes))) if gpus > 1 else ()
    alone = min(network.capacity[network.above[node][0]] for node in nodes)
    return _Ring(job, begin, end, links, alone, gpus)


def _run(rings: Sequence[_Ring], network: Network, communication: float) -> None:
    """Process starts and ends of rings in order, and update the rates of affected rings."""
    events = sorted(
        event for number, ring in enumerate(rings) for event in ((ring.begin, 1, number), (ring.end, 0, number))
    )
    rings_on: dict[int, set[int]] = defaultdict(set)

    def share_of(link: int) -> float:
        """Return the bandwidth of each ring on a link, in Mbit/s."""
        return network.capacity[link] / max(1, len(rings_on[link]))

    for at, moment_events in groupby(events, key=lambda event: event[0]):
        shares_before: dict[int, float] = {}
        changed: set[int] = set()
        for _, starts, number in moment_events:
            ring = rings[number]
            for link in ring.links:
                shares_before.setdefault(link, share_of(link))
                (rings_on[link].add if starts else rings_on[link].discard)(number)
            if starts:
                ring.since, ring.rate = at, inf
                changed.add(number)
            else:
                ring.until(at, communication)
                changed.discard(number)
        for link, share in shares_before.items():
            share_now = share_of(link)
            # A ring limited by another link is not affected.
            changed.update(
                other
                for other in rings_on[link]
                if rings[other].rate > share_now or rings[other].rate == share < share_now
            )
        for number in changed:
            ring = rings[number]
            if ring.since < at:
                ring.until(at, communication)
            ring.rate = min((share_of(link) for link in ring.links), default=inf)
