"""The uid of an owner is any text: a tenant writes one under which the scheduler follows something else."""

import asyncio
from typing import Final

import pytest

from topo_scheduler.scheduling.intake.device_claims import watched_claim

from . import objects
from .cluster import Cluster
from .device_objects import asking, claim
from .replica import Replica

TENANT: Final = "e2e-evil"
CLAIMS: Final = ("a", "b")


@pytest.mark.timeout(120)
async def test_no_uid_of_an_owner_ends_the_daemon(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.add_namespace(TENANT)
    for name in CLAIMS:
        await cluster.api.create("resourceclaims", {**claim(name, asking()), "metadata": {"name": name}}, TENANT)
    pod = objects.pod("forged", namespace=TENANT)
    pod["spec"]["resourceClaims"] = [{"name": name, "resourceClaimName": name} for name in CLAIMS]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "nobody", "uid": watched_claim((TENANT, "a"))}
    pod["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    await cluster.api.create("pods", pod, TENANT)
    await asyncio.sleep(1)
    for name in CLAIMS:
        await cluster.api.patch("resourceclaims", name, {"metadata": {"annotations": {"a": "1"}}}, TENANT)
    await asyncio.sleep(0.5)
    assert daemon.alive, daemon.task.exception()
    await cluster.apply(objects.pod("other", 1))
    await cluster.wait_bound("other", 1)
