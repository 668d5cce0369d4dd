"""The definition of Migrations is deleted while one is under way: its seats are free, and recovery starts again."""

import asyncio

import pytest

from tests.crds import migration_definition
from topo_scheduler.recovery.controller import runner

from . import objects
from .cluster import Cluster
from .conftest import StartReplica
from .recovery import migration, recovery_configuration, wait_for_migration


@pytest.mark.parametrize("killed", [False, True], ids=["leader lives", "leader killed"])
async def test_a_definition_that_is_deleted_in_mid_migration(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setattr(runner, "DEFINITION_CHECK_SECONDS", 0.5)
    definition = migration_definition()
    await cluster.define(definition)
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [5]})  # also for what replaces the two pods that take their time, beside the next
    slowly = cluster.let_pods_end_slowly(600.0)
    await cluster.apply(objects.gang("team", 2, pod_annotations=slowly, terminationGracePeriodSeconds=600))
    pods = await cluster.wait_bound("team", 2)
    async with cluster.without_controllers():  # no pod takes the seat
        await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))
        held = await wait_for_migration(cluster, "Evicting")
        seat = held["status"]["moves"][0]["to"]
        if killed:
            await replica.kill()
        undefining = asyncio.create_task(cluster.undefine(definition["metadata"]["name"]))
        if killed:
            replica = await start_replica(recovery_configuration())
        await undefining
        await cluster.apply(objects.pod("next", 8, nodeSelector={"kubernetes.io/hostname": seat}))
        await cluster.wait_bound("next", 1, 60)  # recovery pauses longer each time before it starts again
        await cluster.define(definition)
        await cluster.api.create("migrations", migration("move", pods[1]["metadata"]["name"]))
        await wait_for_migration(cluster, "Evicting", timeout=60)
    assert (await replica.get("/livez"))[0] == 200
    await cluster.undefine(definition["metadata"]["name"])
