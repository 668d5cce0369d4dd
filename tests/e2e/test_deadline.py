"""What a leader has asked for, the API server does before its lease ends, or never."""

import asyncio
import time

import pytest

from topo_scheduler.kube.connection.client import MERGE_PATCH, Client
from topo_scheduler.kube.connection.fence import UNFENCED, Fence
from topo_scheduler.kube.writing.binder import Binder, BindRequest, BindStatus

from . import objects
from .cluster import Cluster
from .hanging import slow_bindings

pytestmark = pytest.mark.on_oldest


@pytest.mark.parametrize("left", [2.0, 60.0], ids=["within the lease", "control"])
async def test_a_binding_that_admission_holds_up_is_not_written_after_its_deadline(
    cluster: Cluster, left: float
) -> None:
    """The control shows that the same Binding is written, as late, where its deadline allows it."""
    await cluster.add_fabric({"s1": [1]})
    (pod,) = await cluster.apply(objects.pod("late", 1))
    client = await Client.connect(str(cluster.scheduler_kubeconfig))
    try:
        request = BindRequest("default", "late", pod["metadata"]["uid"], "s1-l1-1")
        async with slow_bindings(cluster, 4.0) as seen:
            end = time.monotonic() + left
            fence = Fence(lambda: end - time.monotonic())
            binder = Binder(client.fenced(fence), timeout=50.0)
            result = await binder.bind(request)
            assert "late" in seen, f"it did not reach admission: {result}"
            await asyncio.sleep(max(0.0, 6.0 - result.latency))
        bound = (await cluster.fresh(pod))["spec"].get("nodeName", "")
        if left > 50:
            assert (result.outcome, bound) == (BindStatus.BOUND, "s1-l1-1")
        else:
            assert (result.outcome, bound) == (BindStatus.UNKNOWN, "")
            assert "lease" in result.message
            assert result.latency < 4.0
    finally:
        await client.close()


async def test_the_api_server_takes_every_deadline_that_is_sent(cluster: Cluster) -> None:
    """Durations are in milliseconds; one that the server could not read would be a 400 for every write."""
    client = (await Client.connect(str(cluster.scheduler_kubeconfig))).fenced(UNFENCED)
    try:
        for seconds in (0.3, 1.0, 7.2, 33.333, 90.0):
            (pod,) = await cluster.apply(objects.pod(f"pod-{seconds * 1000:.0f}", 1))
            where = f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}/status"
            await client.request("PATCH", where, body=b"{}", content_type=MERGE_PATCH, timeout=seconds)
    finally:
        await client.close()
