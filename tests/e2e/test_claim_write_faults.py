"""Pods with ResourceClaims of users: whatever happens to one of the three writes, a pod has everything or nothing.

The writes are the finalizer, the allocation and the Binding.
"""

from typing import Final

import pytest

from topo_scheduler.simulation.apiserver import Delay, Disconnect, Refuse
from topo_scheduler.simulation.apiserver.faults import Fault

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
from .device_objects import FINALIZER, add_devices, asking, by_name, by_template, claim, claims_of, devices_of, template
from .write_faults import FAULTS

WRITES: Final = (
    ("patch", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("create", "pods/binding"),
)
CRASHES: Final[dict[str, Fault]] = {"before": Delay(600.0), "after": Disconnect(applied=True)}
CLAIMS: Final[dict[str, tuple[Json, Json]]] = {
    "claim": (claim("two", asking(2)), by_name("two")),
    "template": (template("two", asking(2)), by_template("two")),
}


async def pod_has_its_devices(cluster: Cluster) -> None:
    """Check that the bound pod has two devices of its node, and no other claim has any."""
    (pod,) = await cluster.pods_of("p")
    (made,) = await claims_of(cluster)
    assert FINALIZER in made["metadata"]["finalizers"], "without it Kubernetes never deallocates the claim"
    assert [entry["uid"] for entry in made["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    used = await devices_of(cluster)
    assert {pool for pool, _ in used} == {pod["spec"]["nodeName"]}
    assert sorted(used.values()) == [1, 1]


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("asked", CLAIMS.values(), ids=CLAIMS.keys())
async def test_a_write_of_a_claim_that_fails_leaves_all_or_nothing(
    cluster: Cluster,
    trouble: Trouble,
    start_replica: StartReplica,
    asked: tuple[Json, Json],
    fault: Fault,
    verb: str,
    resource: str,
) -> None:
    replica = await start_replica()
    await add_devices(cluster, [2])
    rule = trouble.faults.add(fault, verb=verb, resource=resource, times=1)
    made, spec = asked
    await cluster.apply(made, objects.pod("p", **spec))
    await cluster.wait_bound("p", 1, timeout=40)
    assert rule.struck
    await pod_has_its_devices(cluster)
    assert replica.alive


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("crash", CRASHES.values(), ids=CRASHES.keys())
async def test_a_leader_that_ends_between_writes_of_a_claim_leaves_its_successor_all_or_nothing(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, crash: Fault, verb: str, resource: str
) -> None:
    first = await start_replica()
    await add_devices(cluster, [2])
    rule = trouble.faults.add(crash, verb=verb, resource=resource)
    await cluster.apply(claim("two", asking(2)), objects.pod("p", **by_name("two")))
    await cluster.wait_for(lambda: rule.struck > 0, 10, f"{verb} of {resource} on its way")
    await first.kill()
    trouble.faults.clear()
    await start_replica()
    await cluster.wait_bound("p", 1, timeout=30)
    await pod_has_its_devices(cluster)


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("code", [409, 422])
async def test_a_pod_whose_writes_are_refused_until_it_is_deleted_leaves_nothing(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, code: int, verb: str, resource: str
) -> None:
    await start_replica()
    await add_devices(cluster, [1])
    rule = trouble.faults.add(Refuse(code), verb=verb, resource=resource)
    trouble.faults.add(Refuse(code), verb="update", resource="resourceclaims")  # a refused patch is written so
    await cluster.apply(claim("own", asking(8)), objects.pod("p", **by_name("own")))
    await cluster.wait_for(lambda: rule.struck > 1, 30, f"{verb} of {resource} refused twice")
    assert not any(nodes_of(await cluster.pods_of("p")))
    await cluster.api.delete("pods", "p", grace=0)
    trouble.faults.clear()

    async def unused() -> bool:
        return not any(
            status.get("allocation") or status.get("reservedFor")
            for status in (claim_object.get("status", {}) for claim_object in await claims_of(cluster))
        )

    await cluster.wait_until(unused, 30, "the claim deallocated")
    await cluster.apply(template("eight", asking(8)), objects.pod("q", **by_template("eight")))
    await cluster.wait_bound("q", 1, timeout=30)
    await cluster.api.delete("resourceclaims", "own", "default")

    async def gone() -> bool:
        return "own" not in {claim_object["metadata"]["name"] for claim_object in await claims_of(cluster)}

    await cluster.wait_until(gone, 30, "the claim gone")
