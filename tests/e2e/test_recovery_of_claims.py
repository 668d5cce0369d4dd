"""A pod with claims on a failed node moves to a node that has devices for its replacement."""

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .device_objects import BACKING, add_devices, asking, by_template, devices_of, slice_of, template
from .recovery import recovery_configuration, undeleted_pods, wait_for_migration


async def test_a_lost_member_goes_to_a_node_with_devices(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration(force_delete=True))
    await add_devices(cluster, [5])
    await cluster.apply(template("eight", asking(8)), objects.pod("beside", **by_template("eight")))
    (beside,) = nodes_of(await cluster.wait_bound("beside", 1))
    await cluster.apply(objects.gang("team", 3, 0, **by_template("eight")))
    pods = await cluster.wait_bound("team", 3)
    free = {f"s1-l1-{number}" for number in range(1, 6)} - {beside, *nodes_of(pods)}
    lost = nodes_of(pods)[1]
    await cluster.fail_node(lost)
    done = await wait_for_migration(cluster, "Done", timeout=30)
    (move,) = done["status"]["moves"]
    assert (move["from"], {move["to"]}) == (lost, free), "the only node whose devices are free"
    now = await undeleted_pods(cluster, "team")
    assert len(now) == 3 and lost not in nodes_of(now)
    assert leaves_of(now) == {"s1-l1"}
    used = await devices_of(cluster)
    assert set(used.values()) == {1}
    assert {pool for pool, _ in used} == {beside, *nodes_of(now)}


async def test_pods_of_a_device_plugin_go_to_a_node_with_devices(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """Devices back the resource only since the pod was placed, as when a cluster gets its first driver."""
    await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_nodes([objects.node("plugin", spine="s1", leaf="l1")])
    await cluster.apply(objects.gang("team", 1, 4))
    assert nodes_of(await cluster.wait_bound("team", 1)) == ["plugin"]
    await cluster.add_nodes([objects.node("sliced", spine="s1", leaf="l2", gpus=0)])
    await cluster.apply(BACKING, slice_of("sliced"))
    await cluster.fail_node("plugin")
    (move,) = (await wait_for_migration(cluster, "Done", timeout=30))["status"]["moves"]
    assert move["to"] == "sliced"
