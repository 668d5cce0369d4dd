"""Pods that a tenant puts on nodes itself hold their GPUs, whatever other resources they ask for."""

import pytest

from . import objects
from .cluster import Cluster
from .replica import Replica

LARGE = "9223372036854775807"


@pytest.mark.only("real")  # the embedded server refuses such amounts
async def test_a_request_that_is_larger_than_any_node_hides_no_gpus(cluster: Cluster, daemon: Replica) -> None:
    # A kubelet leaves out extended resources that its node does not have, and runs the pod.
    await cluster.add_fabric({"s1": [1]})
    (node,) = (item["metadata"]["name"] for item in await cluster.api.list("nodes", None))
    cluster.overbooked_by_others.add(node)
    pod = objects.pod("h", 6, nodeName=node)
    resources = pod["spec"]["containers"][0]["resources"]
    for named in resources.values():
        named["example.com/thing"] = LARGE
    await cluster.apply(pod)
    await cluster.apply(objects.pod("large", 3))
    (large,) = await cluster.wait_pods("large", 1)
    await cluster.wait_note(large, "Insufficient nvidia.com/gpu")
    await cluster.apply(objects.pod("small", 2))
    await cluster.wait_bound("small", 1)
