"""Pending to bound: what users write into a Job, a Deployment or a pod, and what becomes of it."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import pytest
import yaml

from . import objects
from .api import Json
from .cluster import ROOT, Cluster, annotation, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import Replica, configured
from .verifier import gpus_of, verify_gang

TRAINING = {"gpu-count": "16", "network-bandwidth": "200Gb", "placement-strategy": "consolidated"}


async def test_a_multi_node_job_stands_in_one_leaf_and_runs_to_completion(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 4], "s2": [4]})
    await cluster.apply(objects.job("training", 4, 4, TRAINING, run=1.5))
    pods = await cluster.wait_bound("training", 4)
    assert len(leaves_of(pods)) == 1
    assert {annotation(pod, "rank") for pod in pods} == {"0", "1", "2", "3"}
    for pod in pods:
        node = pod["spec"]["nodeName"]
        spine, leaf, _ = node.split("-")
        assert annotation(pod, "address").startswith(f"{spine}.{leaf}") or annotation(pod, "address").startswith(
            f"{spine}/{leaf}"
        ), annotation(pod, "address")
        assert 0 < float(annotation(pod, "score")) <= 1
        event = await cluster.wait_note(pod, "Successfully assigned", reason="Scheduled", timeout=30)
        name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        assert event["note"].startswith(f"Successfully assigned {name} to {node}")
        assert event["type"] == "Normal"
    assert not verify_gang(await cluster.api.list("nodes", None), pods, asked=objects.ours(TRAINING))
    await cluster.wait_job_done("training")


async def test_pods_of_one_job_use_nodes_with_enough_bandwidth_only(cluster: Cluster, daemon: Replica) -> None:
    slow = [objects.node(f"slow-{n}", spine="s1", leaf="l1", bandwidth="100Gb") for n in range(4)]
    fast = [objects.node(f"fast-{n}", spine="s1", leaf="l2", bandwidth="200Gb") for n in range(4)]
    await cluster.add_nodes([*slow, *fast])
    await cluster.apply(objects.job("training", 4, 4, TRAINING))
    assert all(name.startswith("fast-") for name in nodes_of(await cluster.wait_bound("training", 4)))


async def test_what_a_pod_says_itself_wins_over_its_owner(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_nodes(
        objects.node(f"{model.lower()}-1", spine="s1", leaf="l1", model=model) for model in ("A", "B")
    )
    await cluster.apply(objects.job("torn", 1, 1, {"gpu-model": "A"}, pod_annotations={"gpu-model": "B"}))
    assert nodes_of(await cluster.wait_bound("torn", 1)) == ["b-1"]


async def test_replicas_of_a_deployment_are_charged_what_it_says_per_replica(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """Annotations stand on the Deployment; its pods belong to a ReplicaSet, which belongs to it."""
    await start_replica(configured(gpus_by_annotation=("default",)))
    await cluster.add_fabric({"s1": [2]}, gpus=8)
    asked = {"gpu-count": "4", "placement-strategy": "distributed"}
    await cluster.apply(objects.replicated("Deployment", "inference", 4, 0, asked))
    pods = await cluster.wait_bound("inference", 4)
    assert [annotation(pod, "charged-gpus") for pod in pods] == ["4"] * 4
    assert sorted(nodes_of(pods)) == ["s1-l1-1", "s1-l1-1", "s1-l1-2", "s1-l1-2"]
    for pod in pods:
        await cluster.wait_note(pod, "no GPU limits", reason="GPUsWithoutLimits")
    await cluster.api.patch("deployments", "inference", {"spec": {"replicas": 5}})
    fifth = next(p for p in await cluster.wait_pods("inference", 5) if not p["spec"].get("nodeName"))
    await cluster.wait_note(fifth, "0/2 nodes are available: 2 Insufficient", reason="FailedScheduling")


async def test_replicas_are_spread_over_leaves_when_distributed(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 2, 2]})
    await cluster.apply(
        objects.replicated("Deployment", "inference", 3, 1, {"gpu-count": "1", "placement-strategy": "distributed"})
    )
    assert len(leaves_of(await cluster.wait_bound("inference", 3))) == 3


async def test_a_stateful_set(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 2]})
    await cluster.apply(objects.replicated("StatefulSet", "store", 3, 4, {"gpu-count": "4"}))
    pods = await cluster.wait_bound("store", 3)
    assert [pod["metadata"]["name"] for pod in pods] == ["store-0", "store-1", "store-2"]
    assert [gpus_of(pod) for pod in pods] == [4, 4, 4]


async def test_a_stateful_set_is_a_gang_when_it_says_its_size(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2, 4]})
    await cluster.apply(objects.replicated("StatefulSet", "store", 4, 8, {"gang-size": "4"}))
    pods = await cluster.wait_bound("store", 4)
    assert leaves_of(pods) == {"s1-l2"}
    assert [annotation(pod, "rank") for pod in pods] == ["0", "1", "2", "3"]


async def test_a_gang_of_bare_pods(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    said = {"gang-name": "crew", "gang-size": "3"}
    await cluster.apply(*(objects.pod(f"crew-{n}", 8, said) for n in range(2)))
    first = (await cluster.wait_pods("crew", 2))[0]
    await cluster.wait_note(first, "waiting for 1 of 3 pods", reason="FailedScheduling")
    await cluster.apply(objects.pod("crew-2", 8, said))
    assert len(leaves_of(await cluster.wait_bound("crew", 3))) == 1


async def test_a_single_pod(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.pod("single", 1))
    (pod,) = await cluster.wait_bound("single", 1)
    await cluster.wait_note(pod, f"Successfully assigned default/single to {pod['spec']['nodeName']}")
    assert not annotation(pod, "gang-id")


async def test_pods_of_other_schedulers_are_left_alone_and_take_room(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("theirs", 6, scheduler="another"))
    await cluster.apply(objects.pod("first", 2))
    await cluster.wait_bound("first", 1)
    assert nodes_of(await cluster.pods_of("theirs")) == [""]
    await cluster.api.bind("theirs", "s1-l1-1")
    await cluster.apply(objects.pod("second", 1))
    (second,) = await cluster.wait_pods("second", 1)
    await cluster.wait_note(second, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")


async def test_the_shipped_examples_verbatim(cluster: Cluster, daemon: Replica) -> None:
    shape = itertools.product((1, 2), (1, 2), range(1, 5))
    await cluster.add_nodes(
        objects.node(
            f"spine-{spine}-leaf-{leaf}-{number}",
            spine=f"spine-{spine}",
            leaf=f"leaf-{leaf}",
            model="NVIDIA-H100-80GB-HBM3" if spine == 1 else "NVIDIA-A100-SXM4-80GB",
            bandwidth="400Gb",
        )
        for spine, leaf, number in shape
    )
    files = sorted((ROOT / "examples").glob("0*.yaml"))
    names = {"single-gpu": 1, "eight-gpus": 1, "training": 4, "inference": 3, "bare-gang": 2, "pipeline": 2}
    pods: dict[str, list[Json]] = {}
    for file, (name, count) in zip(files, names.items(), strict=True):
        await cluster.apply(*yaml.safe_load_all(file.read_text()))
        # One after the other: controllers create the pods of several in any order, and another may take a leaf first.
        pods[name] = await cluster.wait_bound(name, count)
    assert pods["eight-gpus"][0]["spec"]["nodeName"].startswith("spine-1-leaf-1")
    leaves = {name: len(leaves_of(bound)) for name, bound in pods.items()}
    assert leaves == {"single-gpu": 1, "eight-gpus": 1, "training": 1, "inference": 3, "bare-gang": 1, "pipeline": 1}
    predicted = [annotation(pod, "predicted-gpus") for pod in pods["pipeline"]]
    assert [len(indexes.split(",")) for indexes in predicted] == [4, 4]


@pytest.mark.parametrize("strategy", ["consolidated", "balanced", "distributed"])
async def test_every_strategy_keeps_the_size_rule(cluster: Cluster, daemon: Replica, strategy: str) -> None:
    await cluster.add_fabric({"s1": [4, 4], "s2": [4, 4]})
    await cluster.apply(objects.gang("job", 4, 8, {"placement-strategy": strategy}))
    pods = await cluster.wait_bound("job", 4)
    assert not verify_gang(await cluster.api.list("nodes", None), pods)
    assert len(set(nodes_of(pods))) == 4


async def test_no_binding_is_sent_to_a_node_that_is_known_to_be_cordoned_or_deleted(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    replica = await start_replica(configured(max_binds_in_flight=1))
    await cluster.add_fabric({"s1": [1, 1]})
    names = [f"pod-{number}" for number in range(90)]
    await asyncio.gather(*(cluster.api.create("pods", objects.pod(name, cpu="100m")) for name in names))

    async def begun() -> bool:
        return any(pod["spec"].get("nodeName") for pod in await cluster.api.list("pods"))

    await cluster.wait_until(begun, 15, "a bound pod")
    await cluster.api.patch("nodes", "s1-l1-1", {"spec": {"unschedulable": True}})
    await cluster.api.delete("nodes", "s1-l2-1")
    assert replica.daemon.term is not None
    nodes = replica.daemon.term.engine.world.nodes

    def known() -> bool:
        return "s1-l2-1" not in nodes.row_of and bool(nodes.unschedulable[nodes.row_of["s1-l1-1"]])

    await cluster.wait_for(known, 10, "the scheduler knows")

    async def bound() -> set[str]:
        pods = await cluster.api.list("pods")
        return {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName")}

    await asyncio.sleep(0.2)  # the one Binding whose bytes had left
    before = await bound()
    await cluster.holds_for(2, lambda: _none_beside(bound, before), "no further pod is bound")


async def _none_beside(bound: Callable[[], Awaitable[set[str]]], before: set[str]) -> bool:
    return await bound() <= before
