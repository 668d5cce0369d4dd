"""A pod with claims on a failed node moves to a node that has devices for its replacement."""

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .device_objects import add_devices, asking, by_template, devices_of, template
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
