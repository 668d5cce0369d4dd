"""Pods with ResourceClaims, end to end: devices are allocated before the pods are bound, and given back after."""

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .device_objects import (
    DRIVER,
    FINALIZER,
    add_devices,
    asking,
    by_name,
    by_template,
    claim,
    claims_of,
    devices_of,
    template,
)
from .priority_classes import create_priority_classes
from .replica import Replica


async def test_a_pod_gets_devices_then_its_node(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2])
    await cluster.apply(template("two", asking(2)), objects.pod("p", **by_template("two")))
    (node,) = nodes_of(await cluster.wait_bound("p", 1))
    (pod,) = await cluster.pods_of("p")
    (made,) = await claims_of(cluster)
    assert FINALIZER in made["metadata"]["finalizers"], "without it Kubernetes never deallocates the claim"
    assert [entry["uid"] for entry in made["status"]["reservedFor"]] == [pod["metadata"]["uid"]]
    results = made["status"]["allocation"]["devices"]["results"]
    assert [(result["request"], result["driver"], result["pool"]) for result in results] == 2 * [("gpus", DRIVER, node)]
    assert len({result["device"] for result in results}) == 2
    (term,) = made["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": [node]}]


async def test_a_claim_whose_configuration_a_client_wrote_with_spaces_is_protected_and_allocated(
    cluster: Cluster, daemon: Replica
) -> None:
    # The API server compares it byte by byte, and a patch neither keeps spaces nor the order of keys.
    parameters = {"kind": "GpuConfig", "apiVersion": "example.com/v1", "sharing": {"strategy": "MPS", "b": 1, "a": 2}}
    config = [{"opaque": {"driver": DRIVER, "parameters": parameters}}]
    await add_devices(cluster, [1])
    await cluster.apply(claim("own", asking(2, config=config)), objects.pod("p", **by_name("own")))
    await cluster.wait_bound("p", 1)
    (made,) = await claims_of(cluster)
    assert FINALIZER in made["metadata"]["finalizers"]
    (copied,) = made["status"]["allocation"]["devices"]["config"]
    assert copied["opaque"]["parameters"] == parameters


async def test_a_gang_gets_all_its_devices_on_the_fewest_leaves(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2, 4])
    await cluster.apply(template("four", asking(4)), objects.gang("training", 8, 0, **by_template("four")))
    bound = await cluster.wait_bound("training", 8)
    assert leaves_of(bound) == {"s1-l2"}
    used = await devices_of(cluster)
    assert len(used) == 32
    assert set(used.values()) == {1}, "a device was given twice"


async def test_a_gang_without_devices_for_all_waits_whole_and_holds_none(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2])
    await cluster.apply(template("eight", asking(8)), objects.gang("training", 3, 0, **by_template("eight")))
    pods = await cluster.wait_pods("training", 3)
    await cluster.wait_note(pods[0], "2 nodes")
    assert not any(nodes_of(await cluster.pods_of("training")))
    assert not await devices_of(cluster)


async def test_a_claim_that_was_protected_ahead_and_never_allocated_can_be_deleted(
    cluster: Cluster, daemon: Replica
) -> None:
    await add_devices(cluster, [1])
    await cluster.apply(template("nine", asking(9)), objects.pod("p", **by_template("nine")))
    await cluster.apply(claim("own", asking(9)), objects.pod("q", **by_name("own")))

    async def protected() -> bool:
        claims = await claims_of(cluster)
        return len(claims) == 2 and all(
            FINALIZER in resource_claim["metadata"].get("finalizers", ()) for resource_claim in claims
        )

    await cluster.wait_until(protected, 20, "finalizers of claims of pods that wait")
    await cluster.api.delete("resourceclaims", "own", "default")
    await cluster.api.delete("pods", "p", "default", grace=0)

    async def gone() -> bool:
        return not await claims_of(cluster)

    await cluster.wait_until(gone, 30, "claims without devices gone")


async def test_devices_come_back_when_their_pod_ends(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [1])
    await cluster.apply(template("eight", asking(8)), objects.pod("first", run=1.0, **by_template("eight")))
    await cluster.wait_bound("first", 1)
    await cluster.apply(objects.pod("second", **by_template("eight")))
    (second,) = await cluster.wait_pods("second", 1)
    await cluster.wait_bound("second", 1, timeout=30)
    assert second["metadata"]["uid"]


async def test_a_pod_without_free_devices_says_so(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2])
    await cluster.apply(template("nine", asking(9)), objects.pod("p", **by_template("nine")))
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, "0/2 nodes are available: 2 cannot allocate all claims.")


async def test_pods_that_share_a_claim_share_its_device_and_its_node(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [3])
    await cluster.apply(claim("shared", asking(1)), *(objects.pod(f"p{n}", **by_name("shared")) for n in range(3)))
    nodes = {nodes_of(await cluster.wait_bound(f"p{n}", 1))[0] for n in range(3)}
    assert len(nodes) == 1
    (made,) = await claims_of(cluster)
    assert len(made["status"]["reservedFor"]) == 3
    assert sum((await devices_of(cluster)).values()) == 1


async def test_a_selector_that_fails_or_is_unknown_is_a_reason_on_the_pod(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [1])
    await cluster.apply(
        template("failing", asking(1, f"device.attributes['{DRIVER}'].missing == 'x'")),
        objects.pod("p", **by_template("failing")),
        objects.pod("other", 8),
    )
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, "missing")
    await cluster.wait_bound("other", 1)


async def test_a_claim_that_is_missing_is_waited_for(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [1])
    await cluster.apply(objects.pod("p", **by_name("later")))
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, 'resourceclaim "later" not found')
    await cluster.apply(claim("later", asking(1)))
    await cluster.wait_bound("p", 1)


async def test_a_claim_of_another_namespace_is_not_found_and_not_used(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [1])
    await cluster.add_namespace("e2e-other")
    other = claim("own", asking(8))
    other["metadata"]["namespace"] = "e2e-other"
    await cluster.apply(other, objects.pod("p", **by_name("own")))
    (pod,) = await cluster.wait_pods("p", 1)
    await cluster.wait_note(pod, 'resourceclaim "own" not found in namespace default')
    await cluster.apply(claim("own", asking(2)))
    await cluster.wait_bound("p", 1)
    assert sum((await devices_of(cluster)).values()) == 2
    (untouched,) = await cluster.api.list("resourceclaims", "e2e-other")
    assert not untouched.get("status")
    assert not untouched["metadata"].get("finalizers")


async def report(cluster: Cluster, made: Json, condition: str) -> None:
    """Report a condition of the devices of a claim, as their driver does."""
    devices = [
        {
            **{field: result[field] for field in ("driver", "pool", "device")},
            "conditions": [
                {
                    "type": condition,
                    "status": "True",
                    "reason": "Reported",
                    "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
        for result in made["status"]["allocation"]["devices"]["results"]
    ]
    await cluster.api.patch(
        "resourceclaims", made["metadata"]["name"], {"status": {"devices": devices}}, subresource="status"
    )


async def test_devices_that_report_failure_are_given_back_and_those_that_are_ready_bound(
    cluster: Cluster, daemon: Replica
) -> None:
    conditions = {"bindingConditions": [f"{DRIVER}/ready"], "bindingFailureConditions": [f"{DRIVER}/failed"]}
    await add_devices(cluster, [1], **conditions)
    await cluster.apply(claim("own", asking(2)), objects.pod("p", **by_name("own")))
    (pod,) = await cluster.wait_pods("p", 1)

    async def allocated() -> list[Json]:
        return [
            resource_claim
            for resource_claim in await claims_of(cluster)
            if resource_claim.get("status", {}).get("allocation")
        ]

    (first,) = await cluster.wait_until(allocated, 15, "devices allocated")
    assert not any(nodes_of(await cluster.pods_of("p"))), "no condition is reported yet"
    await report(cluster, first, f"{DRIVER}/failed")
    await cluster.wait_note(pod, f"reports {DRIVER}/failed")

    async def allocated_anew() -> list[Json]:
        return [resource_claim for resource_claim in await allocated() if not resource_claim["status"].get("devices")]

    (second,) = await cluster.wait_until(allocated_anew, 40, "devices given back and allocated again")
    assert FINALIZER in second["metadata"]["finalizers"]
    assert not any(nodes_of(await cluster.pods_of("p")))
    await report(cluster, second, f"{DRIVER}/ready")
    await cluster.wait_bound("p", 1)
    (made,) = await claims_of(cluster)
    assert [entry["name"] for entry in made["status"]["reservedFor"]] == ["p"]


async def test_devices_that_are_not_ready_go_to_a_pod_of_higher_priority_without_an_eviction(
    cluster: Cluster, daemon: Replica
) -> None:
    await create_priority_classes(cluster)
    await add_devices(
        cluster, [1], bindingConditions=[f"{DRIVER}/ready"], bindingFailureConditions=[f"{DRIVER}/failed"]
    )
    low = objects.pod("low", priorityClassName="e2e-low", **by_name("low"))
    await cluster.apply(claim("low", asking(8)), low)
    (pod,) = await cluster.wait_pods("low", 1)
    await cluster.wait_note(pod, f"does not report {DRIVER}/ready", reason="WaitingForDevices")
    high = objects.pod("high", priorityClassName="e2e-high", **by_name("high"))
    await cluster.apply(claim("high", asking(8)), high)

    async def given() -> list[Json]:
        named = {resource_claim["metadata"]["name"]: resource_claim for resource_claim in await claims_of(cluster)}
        return [named["high"]] if named["high"].get("status", {}).get("allocation") else []

    (made,) = await cluster.wait_until(given, 30, "the devices given to the pod of higher priority")
    await report(cluster, made, f"{DRIVER}/ready")
    await cluster.wait_bound("high", 1)
    (waits,) = await cluster.pods_of("low")
    assert waits["metadata"]["uid"] == pod["metadata"]["uid"], "it was not bound, so nothing evicts it"
    assert not any(nodes_of([waits]))
    assert set((await devices_of(cluster)).values()) == {1}, "a device was given twice"


async def test_a_successor_releases_what_was_allocated_for_a_pod_that_was_not_bound(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await add_devices(cluster, [2])
    await cluster.apply(template("two", asking(2)), objects.pod("p", **by_template("two")))
    (pod,) = await cluster.wait_pods("p", 1)

    async def there() -> list[Json]:
        return await claims_of(cluster)

    (made,) = await cluster.wait_until(there, 15, "its claim made")
    name = made["metadata"]["name"]
    results = [{"request": "gpus", "driver": DRIVER, "pool": "gone", "device": f"gpu-{n}"} for n in range(2)]
    await cluster.api.patch("resourceclaims", name, {"metadata": {"finalizers": [FINALIZER]}})
    reserved = [{"resource": "pods", "name": "p", "uid": pod["metadata"]["uid"]}]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved}
    await cluster.api.patch("resourceclaims", name, {"status": status}, subresource="status")
    await start_replica()
    (node,) = nodes_of(await cluster.wait_bound("p", 1))
    assert {pool for pool, _ in await devices_of(cluster)} == {node}
