"""A gang waits though enough is free: others move by Migrations, with the manifests' rights, and the gang has room."""

from dataclasses import replace

from topo_scheduler.api.config import Configuration, TopologySchedulerConfig

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .recovery import recovery_configuration


def _defragmenting() -> Configuration:
    """A configuration with defragmentation on, for gangs that have waited a second."""
    base = recovery_configuration(defragmentation={"enabled": True})
    repair = base.topology.spec.repair.model_copy(update={"after": 1.0})
    spec = base.topology.spec.model_copy(update={"repair": repair})
    return replace(base, topology=TopologySchedulerConfig(spec=spec))


async def _alone_on(cluster: Cluster, name: str, node: str, full: dict[str, int]) -> None:
    """Have a small pod placed on a node, while the others are full."""
    for other, gpus in full.items():
        await cluster.occupy(other, gpus)
    await cluster.apply(objects.replicated("StatefulSet", name, 1, 2))
    (pod,) = await cluster.wait_bound(name, 1)
    assert pod["spec"]["nodeName"] == node
    for other in full:
        await cluster.free(other)


async def test_others_move_for_a_gang_that_waits(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    replica = await start_replica(_defragmenting())
    await cluster.add_fabric({"s1": [2, 2]})
    await _alone_on(cluster, "first", "s1-l1-1", {"s1-l1-2": 8, "s1-l2-1": 8, "s1-l2-2": 8})
    await _alone_on(cluster, "second", "s1-l2-1", {"s1-l1-1": 6, "s1-l1-2": 8, "s1-l2-2": 8})
    await cluster.apply(objects.gang("team", 2))
    team = await cluster.wait_bound("team", 2, timeout=60)
    assert len(leaves_of(team)) == 1, "no leaf had two free nodes"
    small = [*await cluster.wait_bound("first", 1), *await cluster.wait_bound("second", 1)]
    assert len(set(nodes_of(small))) == 1 and not set(nodes_of(small)) & set(nodes_of(team))

    async def over() -> bool:
        listed = await cluster.api.list("migrations", None)
        return len(listed) == 2 and all((migration.get("status") or {}).get("phase") == "Done" for migration in listed)

    await cluster.wait_until(over, 30, "both Migrations are done")
    by_reason = {migration["spec"]["reason"]: migration for migration in await cluster.api.list("migrations", None)}
    waiting, moved = by_reason["PendingGang"], by_reason["Defragmentation"]
    assert moved["spec"]["makesRoomFor"] == f"default/{waiting['metadata']['name']}"
    assert [pod["name"] for pod in waiting["status"]["others"]] == [moved["status"]["moves"][0]["pod"]]
    assert "would make room in" in waiting["spec"]["cause"]
    for cause in ("PendingGang", "Defragmentation"):
        assert await replica.metric("topology_recovery_duration_seconds_count", cause=cause, outcome="Done") == 1
