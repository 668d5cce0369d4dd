"""How much longer gangs take for their neighbours on the network: an estimate from where they lay, by a stated model.

A step of training is computing and one ring all-reduce over the n GPUs of the gang, which sends 2 (n - 1) / n times the
gradients over each link between neighbours of the ring. The ring follows the fabric, so it leaves each domain that the
gang lies in once, however many of its nodes are there. A link is shared evenly by the gangs whose rings cross it, and a
ring is as fast as the least of its shares. From one beginning or end of a gang to the next nothing changes.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009 (the ring);
    docs/explanation/slowdown.md (the formula, and what it leaves out)
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import inf

import numpy as np

from topo_scheduler.api.labels import GPU_RESOURCES, UNLABELLED
from topo_scheduler.api.links import NODE, Link
from topo_scheduler.api.objects import Node
from topo_scheduler.api.process import SchedulerConfig
from topo_scheduler.api.quantity import MAX_BANDWIDTH_MBITS
from topo_scheduler.simulation.virtual.history import BEFORE, RunHistory, Stay
from topo_scheduler.state.fabric import Fabric
from topo_scheduler.state.nodes import UNKNOWN, NodeLabels, NodeTable
from topo_scheduler.state.resources import ResourceTable
from topo_scheduler.state.wiring import Wiring, capacities, wire


@dataclass(frozen=True, slots=True)
class Assumed:
    """What is assumed where nobody tells.

    ``communication`` share of a step that an all-reduce of very many GPUs takes where nobody is in its way, from 0 to
    1. ``network`` Mbit/s of a node, and ``oversubscription`` what comes up to a domain from below by what its uplink
    carries, of those that neither labels nor the configuration tell.
    """

    communication: float = 0.3
    network: int = 400_000
    oversubscription: float = 2.0


@dataclass(frozen=True, slots=True)
class Network:
    """The links of a cluster. ``above`` the links above each node, its own first; ``capacity`` Mbit/s of each link."""

    above: tuple[tuple[int, ...], ...]
    capacity: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Slow:
    """What the network cost one gang.

    ``seconds`` in which all of its pods ran, ``factor`` by how much longer than alone each of its steps took in the
    mean of these seconds, 1 or more.
    """

    job: int
    seconds: float
    factor: float


@dataclass(slots=True)
class _Ring:
    """A time in which all pods of a gang ran where they were; ``alone`` Mbit/s of its slowest node, ``rate`` now."""

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
        """Count what passed since the last change."""
        moved = communication * (self.gpus - 1) / self.gpus if self.gpus > 1 else 0.0
        step = 1 - communication + moved
        slower = 1 - communication + moved * (self.alone / self.rate if self.links else 1.0)
        self.stretched += (at - self.since) * (slower / step)
        self.since = at


@dataclass(slots=True)
class _Traffic:
    """Rings that run, by link."""

    network: Network
    on: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def share(self, link: int) -> float:
        """Return what each ring has of a link."""
        return self.network.capacity[link] / max(1, len(self.on[link]))


def network_of(nodes: Sequence[Node], levels: SchedulerConfig, told: Sequence[Link], assumed: Assumed) -> Network:
    """Return the links of a cluster, by labels, the configuration, and what is assumed of the rest.

    Args:
        nodes: in the order in which a run numbers them.
        levels: by which they tell where they hang.
        told: ``links`` of the configuration.
        assumed: where neither tells.
    """
    fabric = Fabric(levels.topology)
    table = NodeTable(ResourceTable(GPU_RESOURCES), NodeLabels(levels.gpu_model_labels, levels.bandwidth_labels))
    rows = []
    for node in nodes:
        row, _, _ = table.put(node)
        fabric.put(row, node.metadata.name, node.metadata.labels)
        rows.append(row)
    default = next((link.mbits for link in told if link.level == NODE), None)
    table.assume_bandwidth(assumed.network if default is None else default)
    wiring = wire(fabric.layout(table.rows))
    known = capacities(wiring, table, told).mbits
    carried = [float(one) if one != UNKNOWN else inf for one in known.tolist()]
    for row in rows:
        carried[row] = min(carried[row], float(MAX_BANDWIDTH_MBITS))  # of labels that are no bandwidth
    _assume_uplinks(wiring, known.tolist(), carried, assumed.oversubscription)
    return Network(tuple(tuple(wiring.of_row[row].tolist()) for row in rows), tuple(carried))


def _assume_uplinks(wiring: Wiring, known: Sequence[int], carried: list[float], oversubscription: float) -> None:
    """Tell of uplinks of which nobody does, from the innermost level out; a domain without a label has no limit."""
    layout = wiring.layout
    for depth in range(layout.depth, 0, -1):
        below = depth + 1 if depth < layout.depth else 0
        for index, link in enumerate(range(wiring.starts[depth], wiring.starts[depth + 1])):
            first = int(layout.domains[depth][index])
            if known[link] == UNKNOWN and layout.paths[first][depth - 1] != UNLABELLED:
                links = np.unique(wiring.of_row[wiring.rows_below(depth, index), below]).tolist()
                carried[link] = sum(carried[one] for one in links) / oversubscription


# ---------------------------------------------------------------- gangs and their rings


def slowdowns(history: RunHistory, network: Network, assumed: Assumed) -> list[Slow]:
    """Return what the network cost each gang that ran whole, in order of arrival; none of a fill, which has no times.

    The times of the run stay as they are: a gang that is slowed down does not stay longer.
    """
    if history.order:
        return []
    rings = list(_rings(history, network))
    _run(rings, network, assumed.communication)
    seconds, stretched = defaultdict[int, float](float), defaultdict[int, float](float)
    for ring in rings:
        seconds[ring.job] += ring.end - ring.begin
        stretched[ring.job] += ring.stretched
    return [Slow(job, seconds[job], stretched[job] / seconds[job]) for job in sorted(seconds)]


def _rings(history: RunHistory, network: Network) -> Iterator[_Ring]:
    """Yield the times in which gangs ran whole, each as long as its pods stayed where they were."""
    stays: dict[int, list[Stay]] = defaultdict(list)
    for stay in history.stays:
        if stay.job != BEFORE and history.outcomes[stay.job].pods > 1:
            stays[stay.job].append(stay)
    for job, some in stays.items():
        pods = history.outcomes[job].pods
        moments = sorted({moment for stay in some for moment in (stay.start, min(stay.end, history.end))})
        for begin, end in pairwise(moments):
            there = [stay for stay in some if stay.start <= begin and stay.end >= end]
            if len(there) == pods:
                yield _ring(job, begin, end, there, network)


def _ring(job: int, begin: float, end: float, stays: Sequence[Stay], network: Network) -> _Ring:
    nodes = sorted({stay.node for stay in stays})
    below: dict[int, int] = defaultdict(int)
    for node in nodes:
        for link in network.above[node]:
            below[link] += 1
    gpus = sum(stay.milli for stay in stays) / 1000
    # One GPU, or none, has nothing to reduce with others: such a ring sends nothing.
    links = tuple(sorted(link for link, count in below.items() if count < len(nodes))) if gpus > 1 else ()
    alone = min(network.capacity[network.above[node][0]] for node in nodes)
    return _Ring(job, begin, end, links, alone, gpus)


def _run(rings: Sequence[_Ring], network: Network, communication: float) -> None:
    """Let rings begin and end in turn, and work out the rate of those that this changes anything for."""
    events = sorted(
        event for number, ring in enumerate(rings) for event in ((ring.begin, 1, number), (ring.end, 0, number))
    )
    traffic = _Traffic(network)
    for at, some in groupby(events, key=lambda event: event[0]):
        before: dict[int, float] = {}
        changed: set[int] = set()
        for _, begins, number in some:
            ring = rings[number]
            for link in ring.links:
                before.setdefault(link, traffic.share(link))
                (traffic.on[link].add if begins else traffic.on[link].discard)(number)
            if begins:
                ring.since, ring.rate = at, inf
                changed.add(number)
            else:
                ring.until(at, communication)
                changed.discard(number)
        for link, share in before.items():
            now = traffic.share(link)
            # A ring that has less elsewhere does not notice what happens here.
            changed.update(one for one in traffic.on[link] if rings[one].rate > now or rings[one].rate == share < now)
        for number in changed:
            ring = rings[number]
            if ring.since < at:
                ring.until(at, communication)
            ring.rate = min((traffic.share(link) for link in ring.links), default=inf)
