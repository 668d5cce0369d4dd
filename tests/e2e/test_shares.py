"""Pods share GPUs on nodes that are labelled for it, and their Bindings say which."""

from collections import Counter

from . import objects
from .api import Json
from .cluster import Cluster, annotation
from .conftest import StartReplica
from .replica import configured

SHARES = configured(gpus_by_annotation=("default",))
SHARING = {"topology.scheduler/gpu-sharing": "true"}


def share(name: str, fraction: str = "0.5") -> Json:
    return objects.pod(name, 0, {"gpu-fraction": fraction})


async def bound(cluster: Cluster, name: str) -> Json:
    (pod,) = await cluster.wait_bound(name, 1)
    return pod


async def test_two_shares_are_on_one_gpu_and_whole_gpus_are_others(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await start_replica(SHARES)
    await cluster.add_nodes(
        [
            objects.node("shared", spine="s1", leaf="l1", gpus=3, labels=SHARING),
            objects.node("whole", spine="s1", leaf="l1", gpus=1),
        ]
    )
    await cluster.apply(*(share(f"half-{number}") for number in range(2)))
    halves = [await bound(cluster, f"half-{number}") for number in range(2)]
    assert [(pod["spec"]["nodeName"], annotation(pod, "gpu-index")) for pod in halves] == [("shared", "0")] * 2
    assert [annotation(pod, "charged-gpu-fraction") for pod in halves] == ["0.5"] * 2
    await cluster.apply(objects.pod("pair", 2))
    pair = await bound(cluster, "pair")
    assert (pair["spec"]["nodeName"], annotation(pair, "gpu-index")) == ("shared", "1,2")
    # No GPU is left there that is not held; on the other node shares are refused.
    await cluster.apply(share("late", "0.1"), objects.pod("one", 1))
    single = await bound(cluster, "one")
    assert single["spec"]["nodeName"] == "whole"
    assert "topology.scheduler/gpu-index" not in single["metadata"]["annotations"]
    (late,) = await cluster.wait_pods("late", 1)
    await cluster.wait_note(
        late, "0/2 nodes are available: 1 Insufficient GPU shares, 1 node(s) didn't share their GPUs."
    )
    await cluster.api.delete("pods", "half-1", "default", grace=0)
    assert annotation(await bound(cluster, "late"), "gpu-index") == "0"


async def test_a_new_process_knows_which_pod_holds_which_gpu(cluster: Cluster, start_replica: StartReplica) -> None:
    first = await start_replica(SHARES)
    await cluster.add_nodes([objects.node("shared", spine="s1", leaf="l1", gpus=4, labels=SHARING)])
    await cluster.apply(share("a", "0.6"), share("b", "0.6"), objects.pod("c", 1))
    before = {name: annotation(await bound(cluster, name), "gpu-index") for name in "abc"}
    assert len(set(before.values())) == 3
    await first.kill()
    await start_replica(SHARES)
    await cluster.apply(share("d", "0.3"), share("e", "0.3"), objects.pod("g", 1))
    after = before | {name: annotation(await bound(cluster, name), "gpu-index") for name in "deg"}
    asked = {"a": 600, "b": 600, "c": 1000, "d": 300, "e": 300, "g": 1000}
    held: Counter[str] = Counter()
    for name, index in after.items():
        held[index] += asked[name]
    assert all(amount <= 1000 for amount in held.values()), after
    assert list(after.values()).count(after["c"]) == list(after.values()).count(after["g"]) == 1


async def test_what_makes_no_sense_is_refused_with_the_remedy(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica(SHARES)
    await cluster.add_nodes([objects.node("shared", spine="s1", leaf="l1", gpus=4, labels=SHARING)])
    await cluster.apply(share("huge", "1.5"), objects.pod("both", 1, {"gpu-fraction": "0.5"}))
    (huge,) = await cluster.wait_pods("huge", 1)
    (both,) = await cluster.wait_pods("both", 1)
    await cluster.wait_note(huge, "'1.5' is not a share of a GPU; write a fraction above 0 and below 1")
    await cluster.wait_note(both, "remove the limits, or topology.scheduler/gpu-fraction")
    await cluster.apply(share("good"))
    assert annotation(await bound(cluster, "good"), "gpu-index") == "0", "the queue moves on"
