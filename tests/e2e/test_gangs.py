"""All or nothing, as few leaves as can be, and told what is missing."""

import asyncio
import time

from topo_scheduler.scheduling.binding.contention import SETTLED_SECONDS

from . import objects
from .cluster import Cluster, annotation, leaves_of, nodes_of, unschedulable
from .conftest import StartReplica
from .replica import Replica, configured
from .verifier import verify_gang


async def test_eight_nodes_take_two_neighbouring_leaves(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica(configured(max_nodes_per_leaf=4, max_gpus_per_leaf=32))
    await cluster.add_fabric({"s1": [4, 4, 4, 4], "s2": [4, 4]})
    await cluster.apply(objects.gang("eight", 8))
    pods = await cluster.wait_bound("eight", 8)
    leaves = sorted(leaves_of(pods))
    spine, first = leaves[0].split("-l")
    assert leaves == [f"{spine}-l{first}", f"{spine}-l{int(first) + 1}"]
    nodes = await cluster.api.list("nodes", None)
    assert not verify_gang(nodes, pods, max_nodes_per_leaf=4, max_gpus_per_leaf=32)


async def test_sixteen_nodes_take_four_leaves_under_one_spine(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica(configured(max_nodes_per_leaf=4, max_gpus_per_leaf=32))
    await cluster.add_fabric({"s1": [4, 4, 4], "s2": [4, 4, 4, 4]})
    await cluster.apply(objects.gang("sixteen", 16))
    pods = await cluster.wait_bound("sixteen", 16)
    assert leaves_of(pods) == {"s2-l1", "s2-l2", "s2-l3", "s2-l4"}


async def test_a_gang_waits_for_a_leaf_and_is_placed_when_there_is_room(cluster: Cluster, daemon: Replica) -> None:
    """Four nodes are free in two leaves, but one leaf could hold the gang: it waits for that."""
    await cluster.add_fabric({"s1": [4, 4]})
    for node in ("s1-l1-1", "s1-l2-1"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("whole", 4))
    pods = await cluster.wait_pods("whole", 4)
    for pod in pods:
        event = await cluster.wait_note(pod, "0/8 nodes are available", reason="FailedScheduling")
        assert "2 Insufficient nvidia.com/gpu" in event["note"]
        assert "48 GPUs are free, but the largest free block in one leaf is 24: l1." in event["note"]
        assert "The gang needs 1 leaf with room for 4 pods of 8 GPUs." in event["note"]
        assert "The gang needs 1 leaf with" in (await cluster.wait_unschedulable(pod))["message"]
    assert not any(nodes_of(await cluster.pods_of("whole")))
    await asyncio.sleep(SETTLED_SECONDS)  # until the scheduler expects no more pods of those that occupy nodes
    began = time.monotonic()
    await cluster.free("s1-l2-1")
    pods = await cluster.wait_bound("whole", 4)
    assert time.monotonic() - began < 1.0, "woken by the event"
    assert leaves_of(pods) == {"s1-l2"}


async def test_a_gang_may_say_that_one_leaf_is_only_preferred(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    for node in ("s1-l1-1", "s1-l2-1"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("whole", 4, 8, {"placement": "preferred"}))
    assert leaves_of(await cluster.wait_bound("whole", 4)) == {"s1-l1", "s1-l2"}


async def test_enforcement_may_be_preferred_for_all(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica(configured(enforcement="preferred"))
    await cluster.add_fabric({"s1": [4, 4]})
    for node in ("s1-l1-1", "s1-l2-1"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("whole", 4))
    assert leaves_of(await cluster.wait_bound("whole", 4)) == {"s1-l1", "s1-l2"}


async def test_an_incomplete_gang_says_how_many_pods_it_waits_for(cluster: Cluster, daemon: Replica) -> None:
    """It lacks pods, not nodes: an autoscaler that sees Unschedulable would add nodes in vain."""
    await cluster.add_fabric({"s1": [8]})
    said = {"gang-name": "crew", "gang-size": "8"}
    await cluster.apply(*(objects.pod(f"crew-{n}", 8, said) for n in range(5)))
    pods = await cluster.wait_pods("crew", 5)
    for pod in pods:
        await cluster.wait_note(pod, "waiting for 3 of 8 pods", reason="FailedScheduling")

    async def not_marked() -> bool:
        return not any(unschedulable(pod) for pod in await cluster.pods_of("crew"))

    await cluster.holds_for(0.5, not_marked, "no member of an incomplete gang is marked unschedulable")
    await cluster.apply(*(objects.pod(f"crew-{n}", 8, said) for n in range(5, 8)))
    assert len(set(nodes_of(await cluster.wait_bound("crew", 8)))) == 8


async def test_a_gang_larger_than_the_cluster_waits_and_delays_no_other_pod(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 2]})
    await cluster.apply(objects.gang("huge", 6))
    huge = await cluster.wait_pods("huge", 6)
    event = await cluster.wait_note(huge[0], "0/4 nodes are available", reason="FailedScheduling")
    assert "even" in event["note"] and "empty" in event["note"], event["note"]
    await cluster.apply(objects.gang("small", 2))
    await cluster.wait_bound("small", 2)
    assert not any(nodes_of(await cluster.pods_of("huge")))
    await cluster.add_nodes(objects.node(f"more-{n}", spine="s1", leaf="l3", model="H100") for n in range(1, 7))
    assert len(set(nodes_of(await cluster.wait_bound("huge", 6)))) == 6


async def test_each_pod_of_a_large_gang_without_room_gets_one_event_and_so_does_its_job(
    cluster: Cluster, daemon: Replica
) -> None:
    """However long the controller takes to make the pods: not first how many lack, and then that there is no room."""
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("huge", 64))
    pods = await cluster.wait_pods("huge", 64, timeout=30)
    for pod in pods:
        await cluster.wait_note(pod, "0/2 nodes are available", reason="FailedScheduling", timeout=30)
    for pod in pods:
        assert len(await cluster.events(pod, "FailedScheduling")) == 1
    job = await cluster.api.get("jobs", "huge")
    (event,) = await cluster.events(job, "FailedScheduling")
    assert "0/2 nodes are available" in event["note"]


async def test_gangs_of_one_name_in_two_namespaces_are_two(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_namespace("e2e-other")
    await cluster.add_fabric({"s1": [2, 2]})
    said = {"gang-name": "crew", "gang-size": "2"}
    await cluster.apply(objects.pod("a-0", 8, said), objects.pod("b-0", 8, said, namespace="e2e-other"))
    for namespace, name in (("default", "a"), ("e2e-other", "b")):
        (pod,) = await cluster.wait_pods(name, 1, namespace=namespace)
        await cluster.wait_note(pod, "waiting for 1 of 2 pods")
    await cluster.apply(objects.pod("a-1", 8, said))
    ours = await cluster.wait_bound("a", 2)
    assert not any(nodes_of(await cluster.pods_of("b", "e2e-other")))
    await cluster.apply(objects.pod("b-1", 8, said, namespace="e2e-other"))
    theirs = await cluster.wait_bound("b", 2, namespace="e2e-other")
    assert not set(nodes_of(ours)) & set(nodes_of(theirs))
    assert {annotation(pod, "gang-id") for pod in theirs} == {"e2e-other/crew"}


async def test_a_lost_member_is_placed_again_next_to_the_others(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 8]})
    for node in ("s1-l2-1", "s1-l2-2", "s1-l2-3", "s1-l2-4", "s1-l2-5", "s1-l2-6"):
        await cluster.occupy(node)
    await cluster.apply(objects.gang("team", 3))
    pods = await cluster.wait_bound("team", 3)
    assert leaves_of(pods) == {"s1-l1"}
    for number in range(1, 7):
        await cluster.free(f"s1-l2-{number}")
    lost = pods[1]
    await cluster.api.delete("pods", lost["metadata"]["name"], grace=0)

    async def replaced() -> bool:
        now = [pod for pod in await cluster.pods_of("team") if not pod["metadata"].get("deletionTimestamp")]
        uids = {pod["metadata"]["uid"] for pod in now if pod["spec"].get("nodeName")}
        return len(uids) == 3 and lost["metadata"]["uid"] not in uids

    await cluster.wait_until(replaced, 30, "the lost member made and bound again")
    now = [pod for pod in await cluster.pods_of("team") if not pod["metadata"].get("deletionTimestamp")]
    assert leaves_of(now) == {"s1-l1"}
    assert sorted(annotation(pod, "rank") for pod in now) == ["0", "1", "2"]


async def test_pods_that_opt_out_are_placed_one_by_one(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("loose", 4, 8, {"gang": "false"}))

    async def two_bound() -> bool:
        return sum(map(bool, nodes_of(await cluster.pods_of("loose")))) == 2

    await cluster.wait_until(two_bound, 15, "two of four pods bound")
    waiting = [pod for pod in await cluster.pods_of("loose") if not pod["spec"].get("nodeName")]
    for pod in waiting:
        await cluster.wait_note(pod, "0/2 nodes are available: 2 Insufficient nvidia.com/gpu")
    await cluster.api.delete("jobs", "loose")


async def test_a_gang_keeps_to_one_gpu_model(cluster: Cluster, daemon: Replica) -> None:
    nodes = [
        objects.node(f"{model.lower()}-{n}", spine="s1", leaf="l1", model=model) for model in ("A", "B") for n in (1, 2)
    ]
    await cluster.add_nodes(nodes)
    await cluster.apply(objects.gang("three", 3))
    (first, *_) = await cluster.wait_pods("three", 3)
    await cluster.wait_note(first, "0/4 nodes are available")
    await cluster.apply(objects.gang("mixed", 3, 8, {"gpu-model": "A,B", "gpu-model-mixed": "true"}))
    await cluster.wait_bound("mixed", 3)
    await cluster.api.delete("jobs", "mixed")
    await cluster.apply(objects.gang("second", 2, 8, {"gpu-model": "B"}))
    assert {name[0] for name in nodes_of(await cluster.wait_bound("second", 2))} == {"b"}


async def test_a_gang_larger_than_a_spine_spans_spines(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2], "s2": [2]})
    await cluster.apply(objects.gang("wide", 3))
    assert leaves_of(await cluster.wait_bound("wide", 3)) == {"s1-l1", "s2-l1"}


async def test_finished_gangs_make_room_for_the_next(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    names = [f"wave-{n}" for n in range(4)]
    await cluster.apply(*(objects.gang(name, 4, run=0.5) for name in names))
    for name in names:
        await cluster.wait_job_done(name, 60)
