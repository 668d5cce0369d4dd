"""Nodes are reserved for a pending gang: jobs that end in time use them meanwhile, others wait; events say so."""

from pathlib import Path

from . import objects
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import written


async def test_a_gang_is_held_the_leaf_that_is_free_first(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    replica = await start_replica(written(path, reservation={"after": "1s"}), config_path=path)
    await cluster.add_fabric({"s1": [2]})
    long = {"expected-duration": "1h"}
    await cluster.apply(objects.pod("runs", 8, long))
    (first,) = await cluster.wait_bound("runs", 1)
    free = ({"s1-l1-1", "s1-l1-2"} - set(nodes_of([first]))).pop()
    await cluster.apply(objects.gang("large", 2))
    pods = await cluster.wait_pods("large", 2)
    for pod in pods:
        event = await cluster.wait_note(
            pod, "Reserved: s1/l1 (2 nodes), expected free at about", reason="FailedScheduling"
        )
        assert ": waits for pod default/runs." in event["note"]
    assert await replica.metric("topology_scheduler_reservations") == 1
    assert await replica.metric("topology_scheduler_reserved_gpus") == 16

    await cluster.apply(objects.pod("endless", 8), objects.pod("short", 8, {"expected-duration": "10m"}))
    (short,) = await cluster.wait_bound("short", 1)
    assert nodes_of([short]) == [free]
    (endless,) = await cluster.wait_pods("endless", 1)
    await cluster.wait_note(endless, "Insufficient nvidia.com/gpu", reason="FailedScheduling")
    await cluster.api.delete("pods", "short", grace=0)
    event = await cluster.wait_note(
        endless, "1 node(s) with room reserved for gang default/large", reason="FailedScheduling"
    )
    assert not any(nodes_of(await cluster.pods_of("endless")))

    await cluster.api.delete("pods", "runs", grace=0)
    assert leaves_of(await cluster.wait_bound("large", 2)) == {"s1-l1"}


async def test_moves_that_would_make_room_are_reported(
    cluster: Cluster, start_replica: StartReplica, tmp_path: Path
) -> None:
    path = tmp_path / "config.yaml"
    await start_replica(written(path, repair={"enabled": True, "after": "1s"}), config_path=path)
    await cluster.add_fabric({"s1": [2, 1]})
    await cluster.apply(objects.job("small", 1, 4, {"preferred-domain": "s1/l1"}))
    (small,) = await cluster.wait_bound("small", 1)
    assert leaves_of([small]) == {"s1-l1"}
    await cluster.apply(objects.gang("large", 2))
    for pod in await cluster.wait_pods("large", 2):
        name, node = small["metadata"]["name"], nodes_of([small])[0]
        moved = f"Moving 1 pod (default/{name} from {node} to s1-l2-1) would make room in s1/l1."
        await cluster.wait_note(pod, moved, reason="FailedScheduling")
    assert nodes_of(await cluster.pods_of("small")) == [node], "the event proposes it, and no pod moves"
