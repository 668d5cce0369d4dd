"""A gang that is deleted while it waits: garbage collection takes its pods one by one, and no pod is preempted for it.

On the real control plane kube-controller-manager has its default limits, 20 requests a second among them; on the
embedded server the garbage collector pauses between two pods.
"""

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from tests.controlplane import ControlPlane

from . import objects
from .cluster import Cluster, nodes_of
from .conftest import ALPHA, GATES
from .job_sets import JOB_SETS, create_job_set, wait_until_collected
from .priority_classes import create_priority_classes
from .replica import Replica

DEFAULTS = (
    "--kube-api-qps=20",
    "--kube-api-burst=30",
    "--concurrent-gc-syncs=20",
    "--concurrent-job-syncs=5",
    "--concurrent-replicaset-syncs=5",
    "--concurrent-deployment-syncs=5",
    "--concurrent-statefulset-syncs=5",
    "--concurrent-namespace-syncs=10",
)
"""Of kube-controller-manager, which the tests' control plane raises otherwise."""


@pytest.fixture(scope="module")
def plane(request: pytest.FixtureRequest) -> Iterator[ControlPlane | None]:
    """A control plane of this module's own, with a garbage collector as slow as by default."""
    if request.config.getoption("--apiserver") == "embedded":
        yield None
        return
    with ControlPlane(
        with_kwok=True, feature_gates=GATES, runtime_config=ALPHA, arguments={"kube-controller-manager": DEFAULTS}
    ) as plane:
        yield plane


@pytest.fixture
def garbage_pause_seconds() -> float:
    return 0.02


async def full_cluster(cluster: Cluster, nodes: int) -> set[str]:
    """A Deployment of low priority on all nodes but two; return the uids of its pods."""
    await create_priority_classes(cluster)
    await cluster.add_fabric({f"s{n}": [16] for n in range(1, nodes // 16 + 1)} | {"free": [2]})
    await cluster.apply(objects.replicated("Deployment", "served", nodes, 8, priorityClassName="e2e-low"))
    return {pod["metadata"]["uid"] for pod in await cluster.wait_bound("served", nodes, 90)}


async def goes_without_harm(
    cluster: Cluster, running: set[str], names: Sequence[str], namespace: str = "default"
) -> None:
    """Watch the pods of Jobs until they are gone: none is bound, and no running pod is evicted."""

    async def untouched() -> None:
        pods = await cluster.pods_of("served")
        alive = {pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
        assert alive == running, f"{len(running - alive)} of {len(running)} running pods were evicted"

    async with asyncio.timeout(120):
        while pods := [pod for name in names for pod in await cluster.pods_of(name, namespace)]:
            assert not any(nodes_of(pods)), "a pod that is about to be deleted was bound"
            await untouched()
            await asyncio.sleep(0.2)
    await asyncio.sleep(1)
    await untouched()


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("nodes", "size", "propagation"),
    [
        (64, 100, "Background"),
        (16, 20, "Foreground"),
        (16, 64, "Foreground"),
        (64, 100, "Foreground"),
        (16, 256, "Background"),
        (16, 256, "Foreground"),
    ],
    ids=["100", "20-foreground", "64-foreground", "100-foreground", "256", "256-foreground"],
)
async def test_a_deleted_gang_evicts_nothing(
    cluster: Cluster, daemon: Replica, nodes: int, size: int, propagation: str
) -> None:
    """The gang is larger than the cluster, so it waits although all others could be preempted."""
    running = await full_cluster(cluster, nodes)
    await cluster.apply(objects.gang("train", size, 8, priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", size, 60)
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("jobs", "train", propagation=propagation)
    await goes_without_harm(cluster, running, ["train"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_a_deleted_job_set_evicts_nothing(
    cluster: Cluster, job_sets: None, daemon: Replica, propagation: str
) -> None:
    """Its kind is not watched, and its Jobs are deleted one after the other."""
    running = await full_cluster(cluster, 16)
    await create_job_set(cluster, "train", 4, 6, priorityClassName="e2e-high")
    names = [f"train-{number}" for number in range(4)]
    waiting = [pod for name in names for pod in await cluster.wait_pods(name, 6, 60)]
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete(JOB_SETS, "train", propagation=propagation)
    await goes_without_harm(cluster, running, names)


@pytest.mark.timeout(300)
async def test_pods_of_a_kind_whose_definition_is_deleted_evict_nothing(
    cluster: Cluster, job_sets: None, daemon: Replica
) -> None:
    """All JobSets go with the definition, and what is below them."""
    await wait_until_collected(cluster)
    running = await full_cluster(cluster, 16)
    await create_job_set(cluster, "train", 2, 10, priorityClassName="e2e-high")
    names = ["train-0", "train-1"]
    waiting = [pod for name in names for pod in await cluster.wait_pods(name, 10, 60)]
    await cluster.wait_unschedulable(waiting[0])
    await cluster.undefine(JOB_SETS)
    await goes_without_harm(cluster, running, names)


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


async def test_orphans_with_a_gang_of_their_own_are_a_gang(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    own = {"gang-name": "train", "gang-size": "3"}
    await cluster.apply(objects.job("train", 3, 8, pod_annotations=objects.ours(own)))
    waiting = await cluster.wait_pods("train", 3)
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("jobs", "train", propagation="Orphan")

    async def orphaned() -> bool:
        return not any(pod["metadata"].get("ownerReferences") for pod in await cluster.pods_of("train"))

    await cluster.wait_until(orphaned, 20, "the pods have no owner")
    await asyncio.sleep(2)
    assert not any(nodes_of(await cluster.pods_of("train"))), "two of a gang of three"
    await cluster.add_fabric({"s2": [1]})
    await cluster.wait_until(lambda: all_bound(cluster), 20, "all three bound")


async def all_bound(cluster: Cluster) -> bool:
    return all(nodes_of(await cluster.pods_of("train")))


async def test_a_namespace_that_is_deleted_takes_no_room(cluster: Cluster, daemon: Replica) -> None:
    daemon.may_be_refused = True  # no event can be created in a namespace that is being deleted
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("runs", 8, priorityClassName="e2e-low"))
    await cluster.wait_bound("runs", 1)
    await cluster.api.create("namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "doomed"}})
    # Larger than the cluster, so it waits although the other could be preempted.
    await cluster.apply(objects.gang("train", 2, 8, namespace="doomed", priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", 2, namespace="doomed")
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("namespaces", "doomed")

    async def gone() -> bool:
        return not await cluster.pods_of("train", "doomed")

    await cluster.wait_until(gone, 60, "the pods of the namespace are gone")
    (runs,) = await cluster.pods_of("runs")
    assert not runs["metadata"].get("deletionTimestamp")


@pytest.mark.timeout(300)
async def test_a_gang_of_twenty_whose_namespace_is_deleted_evicts_nothing(cluster: Cluster, daemon: Replica) -> None:
    """As soon as two of them are gone, the others would fit if running pods were preempted."""
    daemon.may_be_refused = True  # no event can be created in a namespace that is being deleted
    running = await full_cluster(cluster, 16)
    await cluster.add_namespace("doomed-twenty")
    await cluster.apply(objects.gang("train", 20, 8, namespace="doomed-twenty", priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", 20, 60, namespace="doomed-twenty")
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.delete("namespaces", "doomed-twenty")
    await goes_without_harm(cluster, running, ["train"], "doomed-twenty")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("nodes", "what"),
    [(16, "jobs"), (64, "jobs"), (16, "namespaces")],
    ids=["18-foreground", "66-foreground", "18-namespace"],
)
async def test_a_gang_that_would_fit_while_it_is_being_deleted_evicts_nothing(
    cluster: Cluster, daemon: Replica, nodes: int, what: str
) -> None:
    """Its Job or its namespace is marked as deleted, and no controller has deleted a pod of it yet."""
    daemon.may_be_refused = True  # no event can be created in a namespace that is being deleted
    running = await full_cluster(cluster, nodes)
    used = set(nodes_of(await cluster.pods_of("served")))
    held = [node["metadata"]["name"] for node in await cluster.api.list("nodes", None)]
    held = [node for node in held if node not in used]
    for node in held:
        await cluster.apply(objects.pod(f"held-{node}", 8, scheduler="another", priorityClassName="e2e-high"))
        await cluster.api.bind(f"held-{node}", node)
    namespace = f"doomed-{what}-{nodes}"
    await cluster.add_namespace(namespace)
    size = nodes + len(held)
    await cluster.apply(objects.gang("train", size, 8, namespace=namespace, priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", size, 60, namespace=namespace)
    await cluster.wait_unschedulable(waiting[0])
    async with cluster.without_controllers():
        if what == "jobs":
            await cluster.api.delete("jobs", "train", namespace, propagation="Foreground")
        else:
            await cluster.api.delete("namespaces", namespace)
        for node in held:
            await cluster.free(node)

        async def unharmed() -> bool:
            pods = await cluster.pods_of("served")
            alive = {pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}
            return alive == running and not any(nodes_of(await cluster.pods_of("train", namespace)))

        await cluster.holds_for(3.0, unharmed, "no running pod is evicted, and none of the gang is bound")
    await goes_without_harm(cluster, running, ["train"], namespace)
    if what == "jobs":
        await cluster.api.delete("namespaces", namespace)
