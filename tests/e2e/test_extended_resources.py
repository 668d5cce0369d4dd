"""Unchanged pods with ``nvidia.com/gpu: 2`` on nodes whose GPUs are in ResourceSlices, end to end.

Whatever happens to the writes in between, a pod is bound with its devices, or nothing is left of them.
"""

from collections.abc import Callable
from typing import Any, Final

import pytest

from topo_scheduler.simulation.apiserver import Delay, Refuse, RequestInfo
from topo_scheduler.simulation.apiserver.faults import Fault

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica, Trouble
from .device_objects import CLASS, FINALIZER, add_slices, claims_of, devices_of, slice_of
from .recovery import recovery_configuration
from .replica import Replica
from .write_faults import FAULTS

WRITES: Final = (
    ("create", "resourceclaims"),
    ("patch", "resourceclaims/status"),
    ("patch", "pods/status"),
    ("create", "pods/binding"),
)


async def pod_has_its_devices(cluster: Cluster, name: str, count: int) -> None:
    """Check that a bound pod has one claim with so many devices of its node, and that its status names the claim."""
    (pod,) = await cluster.pods_of(name)
    (made,) = await claims_of(cluster)
    uid = pod["metadata"]["uid"]
    assert FINALIZER in made["metadata"]["finalizers"]
    assert made["metadata"]["annotations"] == {"resource.kubernetes.io/extended-resource-claim": "true"}
    (owner,) = made["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", uid, True)
    assert [entry["uid"] for entry in made["status"]["reservedFor"]] == [uid]
    results = made["status"]["allocation"]["devices"]["results"]
    assert {result["pool"] for result in results} == {pod["spec"]["nodeName"]}
    assert len({result["device"] for result in results}) == count == len(results)
    assert pod["status"]["extendedResourceClaimStatus"] == {
        "resourceClaimName": made["metadata"]["name"],
        "requestMappings": [
            {"containerName": "main", "resourceName": objects.NVIDIA, "requestName": "container-0-request-2"}
        ],
    }


async def test_an_unchanged_pod_gets_exact_devices(cluster: Cluster, daemon: Replica) -> None:
    await add_slices(cluster, [2])
    await cluster.apply(objects.pod("p", 2))
    await cluster.wait_bound("p", 1)
    await pod_has_its_devices(cluster, "p", 2)
    (pod,) = await cluster.pods_of("p")
    await cluster.wait_note(pod, "devices gpu-0, gpu-1", reason="Scheduled")


async def test_a_gang_is_packed_into_one_leaf(cluster: Cluster, daemon: Replica) -> None:
    await add_slices(cluster, [2, 2, 4])
    await cluster.apply(objects.gang("training", 8, 4))
    bound = await cluster.wait_bound("training", 8)
    assert leaves_of(bound) == {"s1-l3"}
    used = await devices_of(cluster)
    assert len(used) == 32
    assert set(used.values()) == {1}, "a device was given twice"


async def test_nodes_of_device_plugins_and_of_slices_are_used_together(cluster: Cluster, daemon: Replica) -> None:
    names = await add_slices(cluster, [2], plugin=2)
    await cluster.apply(objects.gang("training", 8, 4))
    bound = await cluster.wait_bound("training", 8)
    assert sorted(nodes_of(bound)) == sorted(2 * [*names, "plugin-0", "plugin-1"])
    used = await devices_of(cluster)
    assert {pool for pool, _ in used} == set(names)
    assert len(used) == 16
    for pod in bound:
        with_devices = "extendedResourceClaimStatus" in pod["status"]
        assert with_devices == (pod["spec"]["nodeName"] in names), "the kubelet would not ask the device plugin"


async def test_the_claim_goes_with_its_pod_and_its_devices_are_used_again(cluster: Cluster, daemon: Replica) -> None:
    await add_slices(cluster, [1])
    await cluster.apply(objects.pod("first", 8, run=1.0), objects.pod("forever", 8))
    await cluster.wait_bound("first", 1)
    await cluster.wait_bound("forever", 1, timeout=30)
    await cluster.api.delete("pods", "forever")

    async def none_left() -> bool:
        return not await devices_of(cluster)

    await cluster.wait_until(none_left, 20, "no device allocated")


@pytest.mark.parametrize(("verb", "resource"), WRITES)
async def test_a_successor_of_a_leader_that_ended_between_writes(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, verb: str, resource: str
) -> None:
    first = await start_replica()
    await add_slices(cluster, [2])
    rule = trouble.faults.add(Delay(600.0), verb=verb, resource=resource)
    await cluster.apply(objects.pod("p", 2))
    await cluster.wait_for(lambda: rule.struck > 0, 10, f"{verb} of {resource} on its way")
    await first.kill()
    trouble.faults.clear()
    await start_replica()
    await cluster.wait_bound("p", 1, timeout=30)
    await pod_has_its_devices(cluster, "p", 2)


@pytest.mark.parametrize(("verb", "resource"), WRITES)
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_write_that_fails_leaves_all_or_nothing(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, fault: Fault, verb: str, resource: str
) -> None:
    replica = await start_replica()
    await add_slices(cluster, [2])
    rule = trouble.faults.add(fault, verb=verb, resource=resource, times=1)
    await cluster.apply(objects.pod("p", 2))
    await cluster.wait_bound("p", 1, timeout=40)
    assert rule.struck
    await pod_has_its_devices(cluster, "p", 2)
    assert replica.alive


async def test_a_gang_of_which_one_claim_is_refused_holds_nothing(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    await start_replica()
    await add_slices(cluster, [2])
    refused = trouble.faults.add(Refuse(422), verb="create", resource="resourceclaims", where=_every_other())
    await cluster.apply(objects.gang("team", 2, 8))
    await cluster.wait_for(lambda: refused.struck >= 2, 30, "claims refused")
    assert not any(nodes_of(await cluster.pods_of("team")))
    trouble.faults.clear()
    await cluster.wait_bound("team", 2, timeout=40)
    used = await devices_of(cluster)
    assert len(used) == 16
    assert set(used.values()) == {1}


def _every_other() -> Callable[[RequestInfo], bool]:
    count = 0

    def strikes(_: RequestInfo) -> bool:
        nonlocal count
        count += 1
        return count % 2 == 0

    return strikes


async def test_a_pod_that_is_deleted_before_its_bind_leaves_nothing(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    await start_replica()
    await add_slices(cluster, [1])
    rule = trouble.faults.add(Delay(600.0), verb="patch", resource="pods/status", times=1)
    await cluster.apply(objects.pod("p", 8))
    await cluster.wait_for(lambda: rule.struck > 0, 10, "its devices written")
    await cluster.api.delete("pods", "p")

    async def none_left() -> bool:
        return not await claims_of(cluster)

    await cluster.wait_until(none_left, 20, "the claim gone")
    trouble.faults.clear()
    await cluster.apply(objects.pod("q", 8))
    await cluster.wait_bound("q", 1, timeout=30)


async def taint(cluster: Cluster, node: str, **taints: Any) -> None:
    """Put a taint of effect NoExecute on the first GPU of a node."""
    item = slice_of(node)
    item["spec"]["devices"][0]["taints"] = [{"key": "gpu.example.com/xid", "effect": "NoExecute", **taints}]
    item["spec"]["pool"]["generation"] = 2
    await cluster.api.patch("resourceslices", item["metadata"]["name"], {"spec": item["spec"]})


async def test_a_device_that_must_not_be_used_any_more_loses_its_pod(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration(enabled=False, debounce="1s"))
    (node, *others) = await add_slices(cluster, [4])
    await cluster.apply(*(objects.pod(f"p{number}", 8) for number in range(4)))
    bound = [pod for number in range(4) for pod in await cluster.wait_bound(f"p{number}", 1)]
    (victim,) = [pod for pod in bound if pod["spec"]["nodeName"] == node]
    await taint(cluster, node)
    await cluster.wait_note(victim, "gpu.example.com/xid:NoExecute", reason="DeviceTainted")

    async def gone() -> bool:
        left = [pod for number in range(4) for pod in await cluster.pods_of(f"p{number}")]
        return {pod["metadata"]["uid"] for pod in left} == {
            pod["metadata"]["uid"] for pod in bound if pod["spec"]["nodeName"] in others
        }

    await cluster.wait_until(gone, 20, "only the pod on the tainted device gone")


async def test_a_driver_that_taints_everything_evicts_no_pod(cluster: Cluster, start_replica: StartReplica) -> None:
    replica = await start_replica(recovery_configuration(enabled=False, debounce="1s"))
    names = await add_slices(cluster, [4])
    await cluster.apply(*(objects.pod(f"p{number}", 8) for number in range(4)))
    for number in range(4):
        await cluster.wait_bound(f"p{number}", 1)
    for name in names[:3]:
        await taint(cluster, name)

    async def all_there() -> bool:
        return len([pod for number in range(4) for pod in await cluster.pods_of(f"p{number}")]) == 4

    await cluster.holds_for(4, all_there, "no pod evicted")
    assert replica.alive


async def test_a_pod_that_names_a_class_before_it_exists_is_placed_once_it_does(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_nodes([objects.node("sliced", spine="s1", leaf="l1", gpus=0)])
    early = objects.pod("early")
    implied = {"deviceclass.resource.kubernetes.io/gpu": "2"}
    early["spec"]["containers"][0]["resources"] = {"requests": implied, "limits": implied}
    await cluster.apply(slice_of("sliced"), early)
    await cluster.wait_unschedulable(early)
    await cluster.apply(CLASS)
    assert nodes_of(await cluster.wait_bound("early", 1)) == ["sliced"]
