"""Pods ask how close their GPUs are and of which kind, end to end."""

from collections.abc import Mapping

from . import objects
from .api import Json
from .cluster import Cluster, annotation
from .conftest import StartReplica
from .device_objects import slice_of

MODEL = "nvidia.com/gpu.product"
MESH, SWITCHED, PLAIN = "Tesla-V100-SXM2-32GB", "NVIDIA-H100-80GB-HBM3", "NVIDIA-L40S"


def node(name: str, model: str, gpus: int = 8, labels: Mapping[str, str] | None = None) -> Json:
    return objects.node(name, spine="s1", leaf="l1", gpus=gpus, labels={MODEL: model, **(labels or {})})


async def bound(cluster: Cluster, name: str) -> Json:
    (pod,) = await cluster.wait_bound(name, 1)
    return pod


def in_use(name: str, on: str, indexes: str) -> Json:
    """Return a pod that an earlier process of this scheduler bound, with the GPUs that it predicted."""
    pod = objects.pod(name, len(indexes.split(",")), {"predicted-gpus": indexes})
    pod["spec"]["nodeName"] = on
    return pod


async def test_linked_gpus_are_found_or_the_closest_node_is_named(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.add_nodes([node("node-7", MESH), node("plain", PLAIN, 4)])
    await cluster.apply(in_use("taken", "node-7", "2,3,4,5"))
    await start_replica()
    await cluster.apply(objects.pod("four", 4, {"gpu-locality": "nvlink"}))
    (four,) = await cluster.wait_pods("four", 1)
    await cluster.wait_note(four, "node-7 has 4 free GPUs but at most 2 are linked by NVLink")
    await cluster.apply(objects.pod("two", 2, {"gpu-locality": "nvlink"}))
    two = await bound(cluster, "two")
    assert (two["spec"]["nodeName"], annotation(two, "predicted-gpus")) == ("node-7", "6,7")
    await cluster.api.delete("pods", "taken", "default", grace=0)
    assert (await bound(cluster, "four"))["spec"]["nodeName"] == "node-7"


async def test_a_new_process_reads_what_was_predicted(cluster: Cluster, start_replica: StartReplica) -> None:
    first = await start_replica()
    await cluster.add_nodes([node("mesh", MESH)])
    asks = {"gpu-locality": "nvlink"}
    await cluster.apply(*(objects.pod(name, 2, asks) for name in ("a", "b")))
    before = [annotation(await bound(cluster, name), "predicted-gpus") for name in ("a", "b")]
    await first.kill()
    await start_replica()
    await cluster.apply(*(objects.pod(name, 2, asks) for name in ("c", "d")))
    after = [annotation(await bound(cluster, name), "predicted-gpus") for name in ("c", "d")]
    assert sorted(",".join([*before, *after]).split(",")) == [str(index) for index in range(8)]


async def test_memory_and_architecture_of_slices_labels_and_products(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await start_replica()
    await cluster.add_nodes(
        [
            node("labelled", PLAIN, labels={"nvidia.com/gpu.memory": "46068"}),
            node("known", SWITCHED),
            objects.node("sliced", spine="s1", leaf="l1", gpus=8),
            objects.node("unknown", spine="s1", leaf="l1", gpus=8),
        ]
    )
    device = {"type": {"string": "gpu"}, "architecture": {"string": "Blackwell"}}
    await cluster.apply(slice_of("sliced", attributes=device, capacity={"memory": {"value": "183359Mi"}}))
    for name, asks in {
        "sliced": {"gpu-memory": "140Gi"},
        "known": {"gpu-architecture": "hopper"},
        "labelled": {"gpu-architecture": "ada", "gpu-memory": "40Gi"},
    }.items():
        await cluster.apply(objects.pod(f"pod-{name}", 1, asks))
        assert (await bound(cluster, f"pod-{name}"))["spec"]["nodeName"] == name
    await cluster.apply(objects.pod("huge", 1, {"gpu-memory": "400Gi"}))
    (huge,) = await cluster.wait_pods("huge", 1)
    await cluster.wait_note(huge, "1 node(s) had GPUs of unknown memory, 3 node(s) had GPUs with less memory.")


async def test_each_stage_of_a_gang_gets_linked_gpus(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica()
    await cluster.add_nodes([node("a", SWITCHED), node("b", PLAIN), node("c", SWITCHED)])
    asks = {"gpu-locality": "nvlink", "gang-name": "stages", "gang-size": "4"}
    await cluster.apply(*(objects.pod(f"stage-{number}", 4, asks) for number in range(4)))
    pods = [await bound(cluster, f"stage-{number}") for number in range(4)]
    assert sorted(pod["spec"]["nodeName"] for pod in pods) == ["a", "a", "c", "c"]
