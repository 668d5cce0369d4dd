"""A gang that is deleted while it waits: garbage collection takes its pods one by one, and nothing gives way to them.

On the real control plane kube-controller-manager has the client limits it has by default, 20 requests a second.
"""

import asyncio
from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane

from . import objects
from .cluster import Cluster, nodes_of
from .conftest import ALPHA, GATES
from .replica import Replica
from .test_preemption import classes

DEFAULT_LIMITS = {"kube-controller-manager": ["--kube-api-qps=20", "--kube-api-burst=30"]}


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane | None]:
    """A control plane of this module's own, with a garbage collector as slow as by default."""
    if request.config.getoption("--apiserver") == "embedded":
        yield None
        return
    with ControlPlane(with_kwok=True, feature_gates=GATES, runtime_config=ALPHA, arguments=DEFAULT_LIMITS) as plane:
        yield plane


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("nodes", "size", "propagation"), [(64, 100, "Background"), (16, 20, "Foreground")], ids=["100", "20-foreground"]
)
async def test_a_deleted_gang_evicts_nothing(
    cluster: Cluster, daemon: Replica, nodes: int, size: int, propagation: str
) -> None:
    """The gang is larger than the cluster, so it waits although all others would give way."""
    await classes(cluster)
    await cluster.add_fabric({f"s{n}": [16] for n in range(1, nodes // 16 + 1)})
    await cluster.apply(objects.replicated("Deployment", "served", nodes, 8, priorityClassName="e2e-low"))
    running = {pod["metadata"]["uid"] for pod in await cluster.wait_bound("served", nodes, 90)}
    await cluster.apply(objects.gang("train", size, 8, priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", size, 60)
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("jobs", "train", propagation=propagation)

    async def untouched() -> None:
        alive = {
            p["metadata"]["uid"] for p in await cluster.pods_of("served") if not p["metadata"].get("deletionTimestamp")
        }
        assert alive == running, f"{len(running - alive)} of {len(running)} running pods were evicted"

    async with asyncio.timeout(120):
        while pods := await cluster.pods_of("train"):
            assert not any(nodes_of(pods)), "a pod that is about to be deleted was bound"
            await untouched()
            await asyncio.sleep(0.2)
    await asyncio.sleep(1)
    await untouched()


async def test_orphans_are_bare_pods_and_no_gang(cluster: Cluster, daemon: Replica) -> None:
    """Their Job said that they are a gang, and it is gone: those that have room are placed."""
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("train", 3))
    waiting = await cluster.wait_pods("train", 3)
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("jobs", "train", propagation="Orphan")

    async def two_bound() -> bool:
        return sum(bool(node) for node in nodes_of(await cluster.pods_of("train"))) == 2

    await cluster.wait_until(two_bound, 20, "two bare pods bound")
    assert len(await cluster.pods_of("train")) == 3


async def test_a_namespace_that_is_deleted_takes_no_room(cluster: Cluster, daemon: Replica) -> None:
    await classes(cluster)
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("runs", 8, priorityClassName="e2e-low"))
    await cluster.wait_bound("runs", 1)
    await cluster.api.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}})
    # Larger than the cluster, so it waits although the other would give way.
    await cluster.apply(objects.gang("train", 2, 8, namespace="doomed", priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", 2, namespace="doomed")
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("namespaces", "doomed")

    async def gone() -> bool:
        return not await cluster.pods_of("train", "doomed")

    await cluster.wait_until(gone, 60, "the pods of the namespace are gone")
    (runs,) = await cluster.pods_of("runs")
    assert not runs["metadata"].get("deletionTimestamp")
