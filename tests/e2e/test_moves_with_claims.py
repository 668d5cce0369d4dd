"""A pod whose claim is its own by name moves to another node, and gives its devices back."""

import pytest

from . import objects
from .api import ApiError
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .device_objects import add_devices, asking, by_name, claim, devices_of
from .recovery import migration, recovery_configuration, undeleted_pods, wait_for_migration


async def test_a_pod_with_a_claim_by_name_moves(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await add_devices(cluster, [2])
    await cluster.apply(claim("own", asking(2)))
    await cluster.apply(objects.job("moved", 1, 0, **by_name("own")))
    (before,) = await cluster.wait_bound("moved", 1)
    await cluster.api.create("migrations", migration("ours", before["metadata"]["name"]))
    await wait_for_migration(cluster, "Done")
    (after,) = nodes_of(await undeleted_pods(cluster, "moved"))
    assert after != before["spec"]["nodeName"]
    assert {node for node, _ in await devices_of(cluster)} == {after}


async def test_a_claim_without_devices_can_not_be_reserved(cluster: Cluster) -> None:
    """Otherwise a scheduler that is a moment late would reserve what Kubernetes has just deallocated."""
    await cluster.apply(claim("own", asking(2)))
    pod = {"resource": "pods", "name": "late", "uid": "late"}
    with pytest.raises(ApiError, match="reservedFor: Forbidden") as refused:
        await cluster.api.patch("resourceclaims", "own", {"status": {"reservedFor": [pod]}}, subresource="status")
    assert refused.value.status == 422
