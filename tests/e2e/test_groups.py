"""Gangs as others name them: PodGroups of Kubernetes and of scheduler-plugins, on a cluster that has them or not."""

from typing import Any

import pytest

from tests.crds import PLUGINS, VOLCANO, native_pod_group, pod_group, pod_group_definition
from topo_scheduler.kube.reading import pod_groups as directory

from . import objects
from .api import Json
from .cluster import Cluster, annotation, leaves_of, nodes_of, unschedulable
from .conftest import StartReplica
from .objects import POD_GROUP_LABEL
from .replica import Replica, configured

LEAF = "topology.scheduler/leaf"


def members(name: str, count: int, *, first: int = 0, gpus: int = 8, group: str = "", **spec: Any) -> list[Json]:
    """Bare pods of a PodGroup of Kubernetes."""
    named = {"podGroupName": group or name}
    return [objects.pod(f"{name}-{n}", gpus, schedulingGroup=named, **spec) for n in range(first, first + count)]


def labelled(item: Json, name: str) -> Json:
    """Put a pod, or a workload's pods, into a PodGroup of scheduler-plugins."""
    metadata = item["spec"]["template"]["metadata"] if "template" in item["spec"] else item["metadata"]
    metadata["labels"] = {**metadata.get("labels", {}), POD_GROUP_LABEL: name}
    return item


async def scheduled(cluster: Cluster, name: str, status: str, namespace: str = "default") -> Json:
    """Wait for the condition PodGroupScheduled; return it."""

    async def marked() -> Json | None:
        conditions = ((await cluster.api.get("podgroups", name, namespace)).get("status") or {}).get("conditions") or []
        return next((c for c in conditions if c["type"] == "PodGroupScheduled" and c["status"] == status), None)

    return await cluster.wait_until(marked, 15, f"PodGroupScheduled={status} on {name}")


async def test_a_native_group_is_placed_from_its_minimum_on(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.occupy("s1-l1-1")
    await cluster.api.create("podgroups", native_pod_group("crew", 3))
    await cluster.apply(*members("crew", 2))
    (pod, _) = await cluster.wait_pods("crew", 2)
    await cluster.wait_note(pod, "Gang crew is waiting for 1 of 3 pods")
    await cluster.apply(*members("crew", 1, first=2))
    pods = await cluster.wait_bound("crew", 3)
    (leaf,) = leaves_of(pods)
    assert {annotation(pod, "gang-id") for pod in pods} == {"default/podgroups.scheduling.k8s.io/crew"}
    assert sorted(annotation(pod, "rank") for pod in pods) == ["0", "1", "2"]
    assert (await scheduled(cluster, "crew", "True"))["reason"] == "Scheduled"
    await cluster.occupy("s1-l1-4" if leaf == "s1-l2" else "s1-l2-1")
    if leaf == "s1-l1":
        await cluster.apply(*members("crew", 1, first=3))
        (late,) = [pod for pod in await cluster.wait_pods("crew", 4) if pod["metadata"]["name"] == "crew-3"]
        await cluster.wait_note(late, "near the 3 members of this gang that run")
        await cluster.free("s1-l1-1")
    else:
        await cluster.apply(*members("crew", 1, first=3))
    assert leaves_of(await cluster.wait_bound("crew", 4)) == {leaf}, "the rest near the first"


async def test_pods_wait_for_a_native_group_that_does_not_exist(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(*members("crew", 2))
    for pod in await cluster.wait_pods("crew", 2):
        await cluster.wait_note(pod, "PodGroup default/crew of scheduling.k8s.io does not exist")
    assert not any(unschedulable(pod) for pod in await cluster.pods_of("crew"))
    await cluster.apply(objects.pod("other", 1))
    await cluster.wait_bound("other", 1)
    await cluster.api.create("podgroups", native_pod_group("crew", 2))
    await cluster.wait_bound("crew", 2)


async def test_a_native_group_says_whether_it_found_room(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [3]})
    await cluster.occupy("s1-l1-1")
    await cluster.api.create("podgroups", native_pod_group("crew", 3))
    await cluster.apply(*members("crew", 3))
    condition = await scheduled(cluster, "crew", "False")
    assert condition["reason"] == "Unschedulable"
    assert "0/3 nodes are available" in condition["message"]
    await cluster.free("s1-l1-1")
    await cluster.wait_bound("crew", 3)
    assert (await scheduled(cluster, "crew", "True"))["reason"] == "Scheduled"


async def test_a_native_group_keeps_to_one_domain_of_its_key(cluster: Cluster, start_replica: StartReplica) -> None:
    await start_replica(configured(enforcement="preferred"))
    await cluster.add_fabric({"s1": [2, 2], "s2": [3]})
    constraints = {"topology": [{"key": LEAF}]}
    await cluster.api.create("podgroups", native_pod_group("crew", 3, schedulingConstraints=constraints))
    await cluster.apply(*members("crew", 3))
    assert leaves_of(await cluster.wait_bound("crew", 3)) == {"s2-l1"}
    await cluster.api.create("podgroups", native_pod_group("wide", 4, schedulingConstraints=constraints))
    await cluster.apply(*members("wide", 4))
    (pod, *_) = await cluster.wait_pods("wide", 4)
    await cluster.wait_note(pod, "No leaf could hold the gang's 4 pods even if it were empty")
    hosts = {"topology": [{"key": "kubernetes.io/hostname"}]}
    await cluster.api.create("podgroups", native_pod_group("host", 2, schedulingConstraints=hosts))
    await cluster.apply(*members("host", 2, gpus=1))
    (pod, *_) = await cluster.wait_pods("host", 2)
    await cluster.wait_note(pod, "topology key kubernetes.io/hostname, which is the key of no level of the fabric")
    assert (await scheduled(cluster, "host", "False"))["reason"] == "SchedulerError"


async def test_a_definition_that_comes_later_is_noticed(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [8]})
    await cluster.apply(labelled(objects.pod("early", 8), "crew"))
    (early,) = await cluster.wait_bound("early", 1)
    await cluster.wait_note(early, "the pod is placed for itself", reason="GroupIgnored")
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("crew", 3))
    await cluster.apply(*(labelled(objects.pod(f"crew-{n}", 8), "crew") for n in range(2)))
    for pod in await cluster.wait_pods("crew", 2):
        await cluster.wait_note(pod, "Gang crew is waiting for 1 of 3 pods")
    assert not any(nodes_of(await cluster.pods_of("crew")))
    await cluster.apply(labelled(objects.pod("crew-2", 8), "crew"))
    pods = await cluster.wait_bound("crew", 3)
    assert {annotation(pod, "gang-id") for pod in pods} == {f"default/podgroups.{PLUGINS}/crew"}


async def test_a_launcher_and_workers_of_two_jobs_in_one_group(cluster: Cluster, daemon: Replica) -> None:
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.add_fabric({"s1": [3, 5]})
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("mpi", 5))
    role = {"training.kubeflow.org/job-role": "launcher"}
    launcher = labelled(objects.job("mpi-launcher", 1, 0, indexed=False), "mpi")
    launcher["spec"]["template"]["metadata"]["labels"] |= role
    await cluster.apply(labelled(objects.job("mpi-worker", 4), "mpi"))
    (worker, *_) = await cluster.wait_pods("mpi-worker", 4)
    await cluster.wait_note(worker, "Gang mpi is waiting for 1 of 5 pods")
    await cluster.apply(launcher)
    pods = await cluster.wait_bound("mpi", 5)
    assert leaves_of(pods) == {"s1-l2"}
    ranks = {pod["metadata"]["name"].rpartition("-")[0]: annotation(pod, "rank") for pod in pods}
    assert ranks["mpi-launcher"] == "0"
    workers = sorted((pod for pod in pods if "worker" in pod["metadata"]["name"]), key=lambda p: annotation(p, "rank"))
    assert [annotation(pod, "rank") for pod in workers] == ["1", "2", "3", "4"]
    assert nodes_of(workers) == sorted(nodes_of(workers)), "neighbouring ranks on neighbouring nodes"
    indexes = [pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"] for pod in workers]
    assert indexes == ["0", "1", "2", "3"]


async def test_a_restart_keeps_the_gangs_of_groups(cluster: Cluster, start_replica: StartReplica) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    first = await start_replica()
    await cluster.api.create("podgroups", native_pod_group("crew", 2))
    await cluster.apply(*members("crew", 2))
    before = await cluster.wait_bound("crew", 2)
    await first.stop()
    await cluster.apply(*members("crew", 1, first=2))
    await start_replica()
    pods = await cluster.wait_bound("crew", 3)
    assert leaves_of(pods) == leaves_of(before)
    assert sorted(annotation(pod, "rank") for pod in pods) == ["0", "1", "2"]


async def test_pods_and_groups_that_are_there_first_are_understood_at_once(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.add_fabric({"s1": [4]})
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("crew", 3))
    await cluster.apply(*(labelled(objects.pod(f"crew-{n}", 8), "crew") for n in range(3)))
    await cluster.apply(labelled(objects.pod("alone-0", 8), "alone"))
    await start_replica()
    pods = await cluster.wait_bound("crew", 3)
    (alone,) = await cluster.pods_of("alone")
    await cluster.wait_note(alone, f"PodGroup default/alone of {PLUGINS} does not exist")
    for pod in [*pods, alone]:
        assert not await cluster.notes(pod, "GroupIgnored")
    assert {annotation(pod, "gang-id") for pod in pods} == {f"default/podgroups.{PLUGINS}/crew"}


async def test_groups_that_make_no_sense_have_a_reason_and_the_queue_moves_on(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.define(pod_group_definition(VOLCANO))
    await cluster.add_namespace("e2e-other")
    await cluster.add_fabric({"s1": [4]})
    await cluster.api.create("podgroups", native_pod_group("theirs", 2, "e2e-other"))
    await cluster.api.create("podgroups", native_pod_group("many", 5))
    await cluster.api.create(f"podgroups.{VOLCANO}", pod_group("odd", -3, VOLCANO))
    named = "scheduling.k8s.io/group-name"
    crossing = objects.pod("crossing", 1, {named: "e2e-other/theirs"})
    bad = {
        "crossing": "a pod can only join one of its own namespace",
        "theirs": "PodGroup default/theirs of scheduling.k8s.io does not exist",
        "many": "Gang many is waiting for 3 of 5 pods",
        "odd": "spec.minMember: -3 is not a whole number",
    }
    await cluster.apply(crossing, *members("theirs", 1), *members("many", 2), objects.pod("odd", 1, {named: "odd"}))
    for name, text in bad.items():
        pod = (await cluster.wait_until(lambda name=name: cluster.pods_of(name), 5, name))[0]  # type: ignore[misc]
        await cluster.wait_note(pod, text)
    await cluster.apply(objects.pod("good", 8))
    await cluster.wait_bound("good", 1)
    for name in bad:
        assert not any(nodes_of(await cluster.pods_of(name)))


async def test_what_contradicts_is_reported_once(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    await cluster.api.create("podgroups", native_pod_group("crew", 4))
    said = {"gang-name": "crew", "gang-size": "2"}
    both = [objects.pod(f"crew-{n}", 8, said, schedulingGroup={"podGroupName": "crew"}) for n in range(2)]
    # The PodGroup's count is above what there will ever be: our own annotation holds.
    await cluster.apply(*both)
    pods = await cluster.wait_bound("crew", 2)
    for pod in pods:
        await cluster.wait_note(pod, "holds", reason="GroupConflict")
        (note,) = await cluster.notes(pod, "GroupConflict")
        assert "annotation topology.scheduler/gang-name (size 2) holds" in note
        assert "PodGroup default/crew of scheduling.k8s.io (size 4) says otherwise" in note


@pytest.mark.only("embedded")
async def test_pods_wait_for_an_api_that_goes_unless_they_name_no_group_any_more(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "ASK_SECONDS", 0.5)
    await start_replica()
    await cluster.add_fabric({"s1": [4]})
    await cluster.define(pod_group_definition(PLUGINS))
    await cluster.api.create(f"podgroups.{PLUGINS}", pod_group("crew", 3))
    await cluster.apply(labelled(objects.pod("crew-0", 8), "crew"))
    (pod,) = await cluster.wait_pods("crew", 1)
    await cluster.wait_note(pod, "waiting for 2 of 3 pods")
    await cluster.undefine(f"podgroups.{PLUGINS}")
    await cluster.wait_note(pod, "does not serve any more; install its CustomResourceDefinition again, or remove")
    assert nodes_of(await cluster.pods_of("crew")) == [""]
    await cluster.api.patch("pods", "crew-0", {"metadata": {"labels": {POD_GROUP_LABEL: None}}})
    await cluster.wait_bound("crew", 1)
