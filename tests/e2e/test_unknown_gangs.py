"""Gangs of which the scheduler can't know the size any more: they stay pending, and preempt no pod.

Neither does anything for pods of a Job that was suspended while no controller deletes them.
"""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.crds import PLUGINS, pod_group, pod_group_definition
from topo_scheduler.kube.reading import owners, pod_groups

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .job_sets import JOB_SETS, create_job_set
from .objects import POD_GROUP_LABEL
from .priority_classes import create_priority_classes
from .replica import SHORT_LEASE, Replica, configured

pytestmark = pytest.mark.timeout(240)
ELECTED = configured(election=SHORT_LEASE)
OWNERS = "topology-scheduler-owners"


@pytest.fixture(autouse=True)
def asked_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which APIs are served, and owners that are not watched, are asked for every second."""
    monkeypatch.setattr(pod_groups, "ASK_SECONDS", 1.0)
    monkeypatch.setattr(owners, "NEEDED_SECONDS", 1.0)
    monkeypatch.setattr(owners, "TICK_SECONDS", 0.5)


async def full_cluster(cluster: Cluster) -> set[str]:
    """A Deployment of low priority on all of 16 nodes; return the uids of its pods."""
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [16]})
    await cluster.apply(objects.replicated("Deployment", "served", 16, 8, priorityClassName="e2e-low"))
    return {pod["metadata"]["uid"] for pod in await cluster.wait_bound("served", 16, 60)}


async def untouched(cluster: Cluster, running: set[str], waiting: list[str], seconds: float) -> None:
    """Watch for a while: no running pod is evicted, and none of those that wait is bound."""
    until = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < until:
        alive = {
            pod["metadata"]["uid"]
            for pod in await cluster.pods_of("served")
            if not pod["metadata"].get("deletionTimestamp")
        }
        pods = [pod for name in waiting for pod in await cluster.pods_of(name)]
        bound = sum(map(bool, nodes_of(pods)))
        assert running <= alive, f"{len(running - alive)} of {len(running)} running pods were evicted, {bound} bound"
        assert not bound
        await asyncio.sleep(0.3)


async def pods_of_a_group(cluster: Cluster) -> list[Json]:
    """20 pods of 8 GPUs and high priority in one PodGroup, that wait for room on fewer nodes."""
    await create_priority_classes(cluster)
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("train", 20))
    for number in range(20):
        item = objects.pod(f"train-{number}", 8, priorityClassName="e2e-high")
        item["metadata"]["labels"] = {POD_GROUP_LABEL: "train"}
        await cluster.api.create("pods", item)
    pods = await cluster.wait_pods("train", 20)
    await cluster.wait_unschedulable(pods[0])
    return pods


async def test_pods_of_a_group_whose_definition_is_deleted_wait_and_evict_nothing(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await start_replica()
    running = await full_cluster(cluster)
    pod, *_ = await pods_of_a_group(cluster)
    await cluster.undefine(f"podgroups.{PLUGINS}")
    await untouched(cluster, running, ["train"], 6)
    # Where the API server does not end the watch, it is given up after 70 s of silence.
    text = "which this API server does not serve any more; install its CustomResourceDefinition"
    await cluster.wait_note(pod, text, timeout=30)


async def test_a_new_leader_knows_that_the_definition_of_their_group_was_served(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """It would take the pods for single ones otherwise, and place them one by one where there is room."""
    first = await start_replica(ELECTED)
    await cluster.add_fabric({"s1": [8]})
    pod, *_ = await pods_of_a_group(cluster)
    await first.stop()
    await cluster.undefine(f"podgroups.{PLUGINS}")
    await start_replica(ELECTED)
    await untouched(cluster, set(), ["train"], 6)
    await cluster.wait_note(pod, "which this API server does not serve any more; install its CustomResourceDefinition")
    await cluster.add_fabric({"s2": [16]})
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("train", 20))
    await cluster.wait_bound("train", 20, 60)


@pytest.fixture
async def roles(cluster: Cluster, job_sets: None) -> AsyncIterator[None]:
    """JobSets may be read, until `take_away`."""
    yield
    if await cluster.api.find("clusterroles", f"{OWNERS}-jobset") is None:
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": []}
        await cluster.api.create("clusterroles", {**role, "metadata": {"name": f"{OWNERS}-jobset"}})


async def take_away(cluster: Cluster) -> None:
    """Take away the right to read JobSets."""
    await cluster.api.delete("clusterroles", f"{OWNERS}-jobset")
    if cluster.embedded:
        await cluster.install()

    async def taken() -> bool:
        return "jobsets" not in str((await cluster.api.get("clusterroles", OWNERS)).get("rules"))

    await cluster.wait_until(taken, 30, "the right is gone")


async def test_a_gang_whose_owner_may_not_be_read_any_more_waits_and_evicts_nothing(
    cluster: Cluster, roles: None, daemon: Replica
) -> None:
    daemon.may_be_refused = True
    running = await full_cluster(cluster)
    await create_job_set(cluster, "train", 2, 10, indexed=False, priorityClassName="e2e-high")
    waiting = [pod for name in ("train-0", "train-1") for pod in await cluster.wait_pods(name, 10, 60)]
    await cluster.wait_unschedulable(waiting[0])
    await take_away(cluster)
    await untouched(cluster, running, ["train-0", "train-1"], 8)
    what = f"JobSet train cannot be read: grant the verb get on {JOB_SETS}"
    await cluster.wait_note(waiting[0], what, reason="OwnerUnreadable")
    # With room for all it is placed as the gang that it was, as far as that needs no eviction.
    await cluster.add_fabric({"s2": [16, 8]})
    for name in ("train-0", "train-1"):
        await cluster.wait_bound(name, 10, 60)
    alive = {pod["metadata"]["uid"] for pod in await cluster.pods_of("served")}
    assert running <= alive


async def test_pods_of_a_suspended_job_evict_nothing(cluster: Cluster, daemon: Replica) -> None:
    """Its controller would delete them, but is away."""
    running = await full_cluster(cluster)
    more = await cluster.add_fabric({"s2": [4]})
    for node in more:
        await cluster.apply(objects.pod(f"held-{node}", 8, scheduler="another", priorityClassName="e2e-high"))
        await cluster.api.bind(f"held-{node}", node)
    await cluster.apply(objects.gang("train", 20, 8, priorityClassName="e2e-high"))
    waiting = await cluster.wait_pods("train", 20, 60)
    await cluster.wait_unschedulable(waiting[0])
    async with cluster.without_controllers():
        await cluster.api.patch("jobs", "train", {"spec": {"suspend": True}})
        await asyncio.sleep(1)
        # From here on there is room for all if all others are preempted.
        for node in more:
            await cluster.free(node)
        await untouched(cluster, running, ["train"], 5)
        await cluster.api.patch("jobs", "train", {"spec": {"suspend": False}})
        await cluster.wait_bound("train", 20, 60)


async def test_pods_of_a_suspended_job_set_are_not_scheduled_until_it_is_resumed(
    cluster: Cluster, job_sets: None, start_replica: StartReplica
) -> None:
    """Its controller would suspend its Jobs, but is away; the scheduler does not watch JobSets."""
    first = await start_replica()
    more = await cluster.add_fabric({"s1": [4]})
    for node in more:
        await cluster.apply(objects.pod(f"held-{node}", 8, scheduler="another"))
        await cluster.api.bind(f"held-{node}", node)
    await create_job_set(cluster, "train", 2, 2)
    waiting = [pod for name in ("train-0", "train-1") for pod in await cluster.wait_pods(name, 2, 60)]
    await cluster.wait_unschedulable(waiting[0])
    await cluster.api.patch(JOB_SETS, "train", {"spec": {"suspend": True}})
    await asyncio.sleep(3)
    for node in more:
        await cluster.free(node)
    await untouched(cluster, set(), ["train-0", "train-1"], 3)
    await first.stop()
    await start_replica()
    await untouched(cluster, set(), ["train-0", "train-1"], 4)
    await cluster.api.patch(JOB_SETS, "train", {"spec": {"suspend": False}})
    for name in ("train-0", "train-1"):
        await cluster.wait_bound(name, 2, 30)
