"""Pods with claims evict others for their devices: bound once Kubernetes has deallocated what the victims had."""

import asyncio
from pathlib import Path

import pytest

from topo_scheduler.simulation.apiserver import Delay

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica, Trouble
from .device_objects import add_devices, add_slices, asking, by_name, by_template, claim, devices_of, template
from .priority_classes import create_priority_classes
from .replica import Replica, written

ENDING = 2.0
"""Seconds a victim takes to end."""


async def fill(cluster: Cluster, count: int) -> None:
    """Fill nodes of eight GPUs with pods of low priority, which have them by claims."""
    slowly = cluster.let_pods_end_slowly(ENDING)
    await create_priority_classes(cluster)
    await cluster.apply(template("eight", asking(8)))
    await cluster.apply(*(low(f"low-{number}", slowly, by_template("eight")) for number in range(count)))
    await cluster.wait_bound("low", count)


def low(name: str, annotations: dict[str, str], claims: Json) -> Json:
    seconds = int(ENDING)
    return objects.pod(
        name, 0, annotations, priorityClassName="e2e-low", terminationGracePeriodSeconds=seconds, **claims
    )


async def remaining(cluster: Cluster, name: str) -> int:
    """Return how many pods are there and not being deleted."""
    pods = await cluster.pods_of(name)
    return sum(not pod["metadata"].get("deletionTimestamp") for pod in pods)


async def test_a_pod_gets_the_devices_of_the_pod_that_it_evicted(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2])
    await fill(cluster, 2)
    await cluster.apply(
        template("five", asking(5)), objects.pod("urgent", priorityClassName="e2e-high", **by_template("five"))
    )
    (node,) = nodes_of(await cluster.wait_bound("urgent", 1, 30))
    used = await devices_of(cluster)
    assert sum(pool == node for pool, _ in used) == 5
    assert set(used.values()) == {1}, "a device was given twice"
    assert await remaining(cluster, "low") == 1, "one victim makes room"


async def test_a_gang_gets_the_devices_of_one_leaf(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [2, 2])
    await fill(cluster, 4)
    gang = objects.gang("urgent", 2, 0, priorityClassName="e2e-high", **by_template("eight"))
    await cluster.apply(gang)
    bound = await cluster.wait_bound("urgent", 2, 30)
    assert len(leaves_of(bound)) == 1
    assert set((await devices_of(cluster)).values()) == {1}
    assert await remaining(cluster, "low") == 2


async def test_the_devices_of_a_claim_that_stays_are_deallocated_first(cluster: Cluster, daemon: Replica) -> None:
    await add_devices(cluster, [1])
    await create_priority_classes(cluster)
    slowly = cluster.let_pods_end_slowly(ENDING)
    await cluster.apply(claim("shared", asking(8)), *(low(f"low-{n}", slowly, by_name("shared")) for n in range(2)))
    await cluster.wait_bound("low", 2)
    await cluster.apply(
        template("eight", asking(8)), objects.pod("urgent", priorityClassName="e2e-high", **by_template("eight"))
    )
    await cluster.wait_bound("urgent", 1, 30)
    assert set((await devices_of(cluster)).values()) == {1}
    shared = await cluster.api.get("resourceclaims", "shared", "default")
    assert shared is not None
    assert not shared["status"].get("allocation"), "Kubernetes deallocated it; the claim itself stays"


async def test_devices_of_claims_count_toward_the_quota(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    file = tmp_path / "config.yaml"
    await start_replica(written(file, quotas=[{"namespaces": ["default"], "hard": {"gpus": 10}}]), config_path=file)
    await add_devices(cluster, [2])
    await cluster.apply(template("eight", asking(8)), objects.pod("first", **by_template("eight")))
    await cluster.wait_bound("first", 1)
    await cluster.apply(objects.pod("second", **by_template("eight")))
    (second,) = await cluster.wait_pods("second", 1)
    await cluster.wait_note(second, "Quota of namespace default: 8 of 10 gpus in use, 8 more asked.")
    assert len(await devices_of(cluster)) == 8


@pytest.mark.parametrize("extended", [False, True], ids=["claims for extended", "extended for claims"])
async def test_gangs_of_rising_priority_evict_no_more_pods_than_they_need(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica, extended: bool
) -> None:
    """Victims end slowly, and so do evictions and allocations; the gangs and their victims get GPUs in two ways."""
    ranks, size = 3, 4
    daemon = await start_replica()
    await create_priority_classes(cluster, ranks)
    await add_slices(cluster, [size] * (ranks + 1))
    await cluster.apply(template("eight", asking(8)))
    slowly, victims = cluster.let_pods_end_slowly(ENDING), size * (ranks + 1)
    for number in range(victims):
        gpus, claims = (0, by_template("eight")) if extended else (8, {})
        lasting = {"priorityClassName": "e2e-low", "terminationGracePeriodSeconds": int(ENDING), **claims}
        await cluster.apply(objects.pod(f"low-{number}", gpus, slowly, **lasting))
    await cluster.wait_bound("low", victims, 30)
    for verb, resource in (("create", "pods/eviction"), ("patch", "resourceclaims/status")):
        trouble.faults.add(Delay(0.3), verb=verb, resource=resource)
    for rank in range(ranks):
        await asyncio.sleep(0.15)
        gpus, claims = (8, {}) if extended else (0, by_template("eight"))
        gang = objects.gang(f"rank-{rank}", size, gpus, priorityClassName=f"e2e-rank-{rank}", **claims)
        await cluster.apply(gang)
    for rank in range(ranks):
        assert len(leaves_of(await cluster.wait_bound(f"rank-{rank}", size, 60))) == 1
    assert set((await devices_of(cluster)).values()) == {1}, "a device was given twice"
    assert await remaining(cluster, "low") == size
    evicted = await daemon.metric("topology_scheduler_preemption_victims_total", outcome="evicted")
    assert evicted == ranks * size
