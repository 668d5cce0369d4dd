"""A tenant that may write the status of its claims allocates devices itself, and reserves them for pods of others."""

import pytest

from . import objects
from .api import Json
from .cluster import Cluster
from .device_objects import DRIVER, FINALIZER, add_devices, asking, by_template, claim, template
from .replica import Replica

TENANT = "e2e-hostile"


async def forge(cluster: Cluster, name: str, node: str, pod: Json) -> None:
    """Allocate all devices of a node to a claim of the tenant, reserved for a pod.

    Kubernetes would take a pod of another namespace off the claim, but not what it knows no kind of.
    """
    item = claim(name, asking(8))
    await cluster.api.create("resourceclaims", {**item, "metadata": {"name": name, "namespace": TENANT}}, TENANT)
    results = [{"request": "gpus", "driver": DRIVER, "pool": node, "device": f"gpu-{n}"} for n in range(8)]
    meta = pod["metadata"]
    reserved = {"apiGroup": "example.com", "resource": "things", "name": meta["name"], "uid": meta["uid"]}
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": [reserved]}
    await cluster.api.patch("resourceclaims", name, {"status": status}, TENANT, subresource="status")


@pytest.mark.only("real")  # the embedded server deallocates the claim at once
async def test_devices_of_a_deleted_claim_are_not_kept_for_a_pod_of_another_namespace(
    cluster: Cluster, daemon: Replica
) -> None:
    await add_devices(cluster, [1])
    await cluster.add_namespace(TENANT)
    await cluster.apply(objects.pod("victim", 0))
    (victim,) = await cluster.wait_bound("victim", 1)
    await forge(cluster, "forged", victim["spec"]["nodeName"], victim)
    await cluster.apply(template("eight", asking(8)), objects.pod("p", 0, **by_template("eight")))
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, "cannot allocate all claims")
    forged = await cluster.api.get("resourceclaims", "forged", TENANT)
    assert FINALIZER not in forged["metadata"].get("finalizers", ()), "nothing takes it off again"
    await cluster.api.delete("resourceclaims", "forged", TENANT)
    await cluster.wait_bound("p", 1)
