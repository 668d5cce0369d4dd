"""Bandwidth as a resource: two gangs that would overload an uplink do not share it, whichever process decides."""

from pathlib import Path

from . import objects
from .cluster import Cluster, annotation, leaves_of
from .conftest import StartReplica
from .replica import Replica, written

SPEC = {
    "links": [{"level": "leaf", "capacity": "300Gb"}],
    # One node of a leaf each: all that a gang sends goes over uplinks.
    "topologyConstraints": {"maxNodesPerLeaf": 1},
}
ASKS = {"network-bandwidth": "200Gb"}


async def test_a_second_gang_waits_for_the_uplink_over_a_restart_and_comes_when_the_first_ends(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    configuration = written(tmp_path / "config.yaml", **SPEC)
    replica = await start_replica(configuration)
    await cluster.add_fabric({"s1": [2, 2]})
    await cluster.apply(objects.gang("first", 2, annotations=ASKS))
    pods = await cluster.wait_bound("first", 2)
    assert leaves_of(pods) == {"s1-l1", "s1-l2"}
    assert {annotation(pod, "reserved-bandwidth") for pod in pods} == {"200000"}
    await reserves(replica, 200e9)
    await replica.stop()
    replica = await start_replica(configuration)
    await reserves(replica, 200e9)
    await cluster.apply(objects.gang("second", 2, annotations=ASKS))
    (waiting, *_) = await cluster.wait_pods("second", 2)
    await cluster.wait_note(waiting, "uplink of s1/l1 has 100 of 300 Gbit/s left, 200 needed")
    # A gang that asks for less may share the uplinks with the first.
    await cluster.apply(objects.gang("modest", 2, annotations={"network-bandwidth": "100Gb"}))
    await cluster.wait_bound("modest", 2)
    await reserves(replica, 300e9)
    assert not any(pod["spec"].get("nodeName") for pod in await cluster.pods_of("second"))
    await cluster.api.delete("jobs", "modest")
    await cluster.api.delete("jobs", "first")
    assert leaves_of(await cluster.wait_bound("second", 2)) == {"s1-l1", "s1-l2"}
    await reserves(replica, 200e9)


async def test_a_second_gang_goes_where_uplinks_are_free(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    await start_replica(written(tmp_path / "config.yaml", **SPEC))
    await cluster.add_fabric({"s1": [2, 2], "s2": [2, 2]})
    await cluster.apply(objects.gang("first", 2, annotations=ASKS))
    taken = leaves_of(await cluster.wait_bound("first", 2))
    await cluster.apply(objects.gang("second", 2, annotations=ASKS))
    assert not taken & leaves_of(await cluster.wait_bound("second", 2))


async def test_labels_of_nodes_give_uplinks_and_bad_ones_delay_no_pod(cluster: Cluster, daemon: Replica) -> None:
    names = await cluster.add_fabric({"s1": [2, 2]})
    label = "topology.scheduler/leaf-uplink-bandwidth"
    for name in names:
        await cluster.label_node(name, {label: "0Gb" if name == "s1-l1-1" else "800Gb"})

    async def known() -> bool:
        capacity = "topology_scheduler_link_capacity_bits_per_second"
        capacities = [await daemon.metric(capacity, level="leaf", domain=f"s1/l{number}") for number in (1, 2)]
        return capacities == [800e9, 800e9]

    await cluster.wait_until(known, 20, "uplinks known from labels")
    await cluster.apply(objects.gang("any", 4, annotations=ASKS))
    await cluster.wait_bound("any", 4)
    await reserves(daemon, 400e9)


async def reserves(replica: Replica, bits: float) -> None:
    for leaf in ("s1/l1", "s1/l2"):
        reserved = "topology_scheduler_link_reserved_bits_per_second"
        assert await replica.metric(reserved, level="leaf", domain=leaf) == bits
