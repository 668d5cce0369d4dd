"""Levels that gangs ask for, and segments, at an API server."""

import time

from . import objects
from .cluster import Cluster, annotation, leaves_of, nodes_of
from .replica import Replica


async def test_a_level_relaxes_while_the_gang_waits_and_the_pods_say_so(cluster: Cluster, daemon: Replica) -> None:
    """Two nodes are free in each of two leaves; nothing happens but that time passes."""
    await cluster.add_fabric({"s1": [4, 4]})
    for node in ("s1-l1-1", "s1-l1-2", "s1-l2-1", "s1-l2-2"):
        await cluster.occupy(node)
    began = time.monotonic()
    await cluster.apply(objects.gang("loose", 4, 8, {"required-level": "leaf", "relax-after": "3s"}))
    pods = await cluster.wait_pods("loose", 4)
    await cluster.wait_unschedulable(pods[0])
    assert not any(nodes_of(await cluster.pods_of("loose")))
    pods = await cluster.wait_bound("loose", 4)
    assert time.monotonic() - began > 2.9
    assert leaves_of(pods) == {"s1-l1", "s1-l2"}
    event = await cluster.wait_note(pods[0], "level relaxed from leaf to spine after 3s", reason="Scheduled")
    assert event["type"] == "Normal"


async def test_a_level_that_does_not_exist_is_refused_with_the_remedy(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("rack", 2, 8, {"required-level": "rack"}))
    (pod, _) = await cluster.wait_pods("rack", 2)
    event = await cluster.wait_note(
        pod, "Refused: annotation topology.scheduler/required-level", reason="FailedScheduling"
    )
    assert "'rack' is no level of the fabric; write one of" in event["note"]


async def test_segments_are_whole_in_their_leaves(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [3, 3, 3]})
    await cluster.apply(objects.gang("parts", 6, 8, {"segment-size": "2"}))
    pods = await cluster.wait_bound("parts", 6)
    by_rank = sorted((int(annotation(pod, "rank")), pod["spec"]["nodeName"].rpartition("-")[0]) for pod in pods)
    leaves = [leaf for _, leaf in by_rank]
    assert leaves[::2] == leaves[1::2], "ranks 0 and 1, 2 and 3, 4 and 5 share a leaf each"
    assert len(set(leaves)) == 3


async def test_the_leader_of_a_leader_worker_set_is_with_its_first_subgroup(cluster: Cluster, daemon: Replica) -> None:
    """Its pods are what the controller would make: a leader without GPUs, and two subgroups of two workers."""
    await cluster.add_fabric({"s1": [2, 3]})
    await cluster.occupy("s1-l2-1")
    lws = "leaderworkerset.sigs.k8s.io/"
    for number in range(5):
        pod = objects.pod(f"lws-{number}", 8 if number else 0)
        pod["metadata"]["labels"] = {f"{lws}name": "lws", f"{lws}group-index": "0", f"{lws}worker-index": str(number)}
        pod["metadata"]["annotations"] |= {f"{lws}size": "5", f"{lws}subgroup-size": "2"}
        await cluster.apply(pod)
    pods = await cluster.wait_bound("lws", 5)
    leaves = [pod["spec"]["nodeName"].rpartition("-")[0] for pod in pods]
    assert [annotation(pod, "rank") for pod in pods] == ["0", "1", "2", "3", "4"]
    assert leaves[0] == leaves[1] == leaves[2]
    assert leaves[3] == leaves[4] != leaves[0]


async def test_the_reason_of_different_pods_in_segments_counts_segments(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 2]})
    await cluster.occupy("s1-l2-1")
    said = {"gang-name": "crew", "gang-size": "6", "segment-size": "3"}
    for number in range(6):
        await cluster.apply(objects.pod(f"crew-{number}", 8 if number % 3 else 0, said))
    pods = await cluster.wait_pods("crew", 6)
    await cluster.wait_unschedulable(pods[0])
    await cluster.wait_note(pods[0], "1 segment fits, 2 are needed: l1 takes 1", reason="FailedScheduling")
