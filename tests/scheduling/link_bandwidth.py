"""Nodes, links and gangs with network bandwidth, and what is reserved of each link."""

import random
from collections.abc import Iterable, Mapping, Sequence

from tests.helpers import make_node, make_pod
from tests.scheduling.driver import Driver, configured
from topo_scheduler.api.objects import Node, Pod
from topo_scheduler.scheduling.engine import Engine

LEAF_LINKS = "links: [{level: leaf, capacity: 800Gb}]"


def nodes_with_bandwidth(leaves: Mapping[str, int], bandwidth: str = "400Gb") -> list[Node]:
    """Return nodes with a network bandwidth, by the count per leaf."""
    return [
        make_node(f"{path.replace('/', '-')}-{number}", path, gpus=8, bandwidth=bandwidth)
        for path, count in leaves.items()
        for number in range(1, count + 1)
    ]


def bandwidth_gang(
    size: int, bandwidth: str = "200Gb", *, gpus: int = 8, name: str = "g", **annotations: str
) -> list[Pod]:
    """Return the pods of a gang that request network bandwidth."""
    pod_annotations = {"gang-name": name, "gang-size": str(size), "network-bandwidth": bandwidth}
    pod_annotations |= {key.replace("_", "-"): value for key, value in annotations.items()}
    return [make_pod(f"{name}-{n}", gpus=gpus, annotations=pod_annotations, created=n) for n in range(size)]


def reserved_mbits(d: Driver | Engine) -> dict[str, int]:
    """Return the reserved Mbit/s above 0 of each link, by path of the domain or name of the node."""
    engine = d.engine if isinstance(d, Driver) else d
    links = engine.world.links
    links.settle(engine.world.layout)
    layout = engine.world.layout
    reserved = {engine.world.nodes.names[row]: int(links.reserved[row]) for row in layout.order.tolist()}
    for depth in range(1, layout.depth + 1):
        for index, amount in enumerate(links.reserved[links.wiring.uplinks(depth)].tolist()):
            reserved["/".join(layout.domain_path(depth, index))] = amount
    return {name: amount for name, amount in reserved.items() if amount}


def nodes_of(pods: Iterable[Pod]) -> list[str]:
    """Return the nodes of the placed pods, sorted."""
    return sorted(pod.spec.node_name for pod in pods if pod.spec.node_name)


class DriverWithNodes(Driver):
    """A driver that keeps its nodes."""

    cluster: Sequence[Node] = ()


def placement_annotations(pod: Pod) -> dict[str, str]:
    """Return the annotations of a pod that concern its placement."""
    wanted = ("gang-name", "gang-size", "network-bandwidth", "placement-strategy", "placement", "latency-sensitive")
    return {key: value for key in wanted if (value := pod.metadata.annotations.get(f"topology.scheduler/{key}"))}


def random_cluster(luck: random.Random) -> DriverWithNodes:
    """Return a driver of a random fabric with random link capacities and size rules."""
    shape = {
        f"s{s}/l{leaf}": luck.randint(2, 5) for s in range(luck.randint(1, 3)) for leaf in range(luck.randint(2, 3))
    }
    cluster = [
        make_node(
            f"{path.replace('/', '-')}-{n}",
            path,
            gpus=8,
            cpu="64",
            bandwidth=luck.choice(["", "400Gb", "200Gb", "800Gb"]),
        )
        for path, count in shape.items()
        for n in range(count)
    ]
    links = [f"{{level: leaf, capacity: {luck.choice([200, 400, 800])}Gb}}"]
    if luck.random() < 0.6:
        links.append(f"{{level: spine, capacity: {luck.choice([400, 800])}Gb}}")
    if luck.random() < 0.5:
        links.append(f"{{domain: {luck.choice(sorted(shape))}, capacity: 300Gb}}")
    enforcement = luck.choice(["required", "preferred"])
    limit = f", maxNodesPerLeaf: {luck.choice([1, 2, 2, 3])}" if luck.random() < 0.7 else ""
    spec = f"{{links: [{', '.join(links)}], topologyConstraints: {{enforcement: {enforcement}{limit}}}}}"
    d = DriverWithNodes(cluster, configured(spec))
    d.cluster = cluster
    return d


def capacity_mbits(d: Driver) -> dict[str, int]:
    """Return the capacity in Mbit/s of each link that has one, by path of the domain or name of the node."""
    world = d.engine.world
    world.links.settle(world.layout)
    layout, mbits = world.layout, world.links.capacity
    capacity = {world.nodes.names[row]: int(mbits[row]) for row in layout.order.tolist()}
    for depth in range(1, layout.depth + 1):
        for index, amount in enumerate(mbits[world.links.wiring.uplinks(depth)].tolist()):
            capacity["/".join(layout.domain_path(depth, index))] = amount
    return {name: amount for name, amount in capacity.items() if amount >= 0}
