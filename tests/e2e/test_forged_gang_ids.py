"""A tenant writes, on pods that it puts on nodes itself, a gang id that could be that of pods which leave a gang."""

import asyncio
from typing import Final

import pytest

from . import objects
from .cluster import Cluster
from .conftest import StartReplica

TENANT: Final = "e2e-evil"


@pytest.mark.timeout(120)
@pytest.mark.parametrize("again", [False, True])
async def test_no_gang_id_ends_the_daemon(cluster: Cluster, start_replica: StartReplica, again: bool) -> None:
    (node, _) = await cluster.add_fabric({"s1": [2]})
    await cluster.add_namespace(TENANT)
    daemon = await start_replica()
    # No kubelet ends it: its node does not exist.
    going = objects.pod("going", 0, {"gang-id": f"{TENANT}/a"}, namespace=TENANT, nodeName="nowhere")
    going["metadata"]["finalizers"] = ["example.com/stays"]
    comes = objects.pod("comes", 99, {"gang-name": "a", "gang-size": "2"}, namespace=TENANT)
    forged = objects.pod("forged", 0, {"gang-id": f"{TENANT}/a (leaving)"}, namespace=TENANT, nodeName=node)
    await cluster.apply(going, comes)
    await cluster.api.delete("pods", "going", TENANT, grace=600)
    await asyncio.sleep(1)
    await cluster.apply(forged)
    if again:
        await daemon.stop()
        daemon = await start_replica()
    for number in range(3):
        await cluster.api.patch("pods", "forged", {"metadata": {"annotations": {"a": str(number)}}}, TENANT)
        await asyncio.sleep(0.5)
    assert daemon.alive, daemon.task.exception()
    await cluster.apply(objects.pod("other", 1))
    await cluster.wait_bound("other", 1)
