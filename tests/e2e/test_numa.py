"""Machines whose kubelet aligns pods to NUMA nodes, end to end: NodeResourceTopology objects are followed."""

from tests.crds import node_topology_definition

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica

KIND = "noderesourcetopologies"


def topology(node: str, free: tuple[int, ...], policy: str = "single-numa-node", gpus: int = 4) -> Json:
    zones = [
        {
            "name": f"node-{number}",
            "type": "Node",
            "costs": [{"name": f"node-{other}", "value": 10 if other == number else 21} for other in range(len(free))],
            "resources": [
                {"name": objects.NVIDIA, "capacity": gpus, "allocatable": gpus, "available": available},
                {"name": "cpu", "capacity": "48", "allocatable": "46", "available": "46"},
            ],
        }
        for number, available in enumerate(free)
    ]
    return {
        "apiVersion": "topology.node.k8s.io/v1alpha2",
        "kind": "NodeResourceTopology",
        "metadata": {"name": node},
        "attributes": [
            {"name": "topologyManagerPolicy", "value": policy},
            {"name": "topologyManagerScope", "value": "container"},
        ],
        "zones": zones,
    }


async def nodes_in(cluster: Cluster) -> list[str]:
    return sorted(item["metadata"]["name"] for item in await cluster.api.list("nodes", None))


async def test_a_pod_is_bound_where_its_kubelet_admits_it_and_waits_where_none_does(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.define(node_topology_definition())
    await cluster.add_fabric({"s1": [2]})
    first, second = await nodes_in(cluster)
    await cluster.apply(topology(first, (2, 1)), topology(second, (4, 4)))
    await start_replica()
    await cluster.apply(objects.pod("three", 3))
    assert nodes_of(await cluster.wait_bound("three", 1)) == [second]
    await cluster.apply(objects.pod("five", 5))
    (five,) = await cluster.wait_pods("five", 1)
    needed = "5 nvidia.com/gpu needed, free on NUMA nodes: node-0 "
    await cluster.wait_note(five, f"node(s) had no NUMA node(s) with room for the pod: {needed}")
    item = await cluster.api.get(KIND, first)
    item["attributes"][0]["value"] = "best-effort"
    await cluster.api.patch(KIND, first, {"attributes": item["attributes"]})
    assert nodes_of(await cluster.wait_bound("five", 1)) == [first]


async def test_a_report_that_cannot_be_used_leaves_its_node_in_use(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.define(node_topology_definition())
    await cluster.add_fabric({"s1": [1]})
    (node,) = await nodes_in(cluster)
    await cluster.apply(topology(node, (5, 4)))
    await start_replica()
    await cluster.apply(objects.pod("six", 6))
    assert nodes_of(await cluster.wait_bound("six", 1)) == [node]
