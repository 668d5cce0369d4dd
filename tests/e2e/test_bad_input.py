"""Wrong input ends in a clear message, with the daemon up and all other pods placed."""

import asyncio

import pytest

from topo_scheduler.simulation.apiserver import Delay

from . import objects
from .between import caught_between, crew
from .cluster import Cluster, annotation, leaves_of, nodes_of
from .conftest import StartReplica
from .replica import Replica, configured

MALFORMED = {
    "gpu-count": ("many", "is not a whole number"),
    "network-bandwidth": ("fast", "is not a bandwidth such as 100Gb"),
    "gpu-model": (" , ", "the list of models is empty"),
    "latency-sensitive": ("maybe", 'neither "true" nor "false"'),
    "placement-strategy": ("tight", "is not one of consolidated, distributed, balanced"),
    "preferred-domain": ("s1//l1", "is not a domain such as leaf-1 or spine-1/leaf-1"),
    "placement": ("perhaps", "is not one of required, preferred"),
    "gang": ("perhaps", 'neither "true" nor "false"'),
    "gang-size": ("0", "is not between 1 and"),
}


async def test_malformed_annotations_are_refused_with_the_remedy(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    jobs = {name: f"bad{number}" for number, name in enumerate(MALFORMED)}
    for name, (value, _) in MALFORMED.items():
        await cluster.apply(objects.job(jobs[name], 1, 1, {name: value}))
    for name, (_, text) in MALFORMED.items():
        (pod,) = await cluster.wait_pods(jobs[name], 1)
        event = await cluster.wait_note(pod, text)
        assert event["type"] == "Warning"
        assert f"annotation topology.scheduler/{name} on Job default/{jobs[name]}" in event["note"]
    await cluster.apply(objects.pod("good", 1))
    await cluster.wait_bound("good", 1)
    assert not any([any(nodes_of(await cluster.pods_of(job))) for job in jobs.values()])


async def test_a_remainder_is_refused_until_the_job_is_mended(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.job("odd", 4, 2, {"gpu-count": "10"}))
    (pod, *_) = await cluster.wait_pods("odd", 4)
    await cluster.wait_note(pod, "10 GPUs do not divide by its parallelism of 4; write a multiple of 4")
    await cluster.api.patch("jobs", "odd", {"metadata": {"annotations": objects.ours({"gpu-count": "8"})}})
    await cluster.wait_bound("odd", 4)


async def test_unknown_and_ambiguous_domains_are_reported_and_ignored(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2], "s2": [2]})
    await cluster.apply(objects.pod("lost", 1, {"preferred-domain": "leaf-9"}))
    await cluster.apply(objects.pod("torn", 1, {"preferred-domain": "l1"}))
    await cluster.apply(objects.pod("exact", 1, {"preferred-domain": "s2/l1"}))
    (lost,), (torn,) = await cluster.wait_bound("lost", 1), await cluster.wait_bound("torn", 1)
    await cluster.wait_note(lost, "no domain is called leaf-9", reason="PreferredDomainUnknown")
    await cluster.wait_note(torn, "l1 may mean s1/l1, s2/l1", reason="PreferredDomainUnknown")
    assert leaves_of(await cluster.wait_bound("exact", 1)) == {"s2-l1"}


async def test_a_wrong_prefix_is_named(cluster: Cluster, daemon: Replica) -> None:
    """The pod runs without what its annotation asks for: an event must report it to the user."""
    await cluster.add_fabric({"s1": [1]})
    job, pod = objects.job("job", 1, 1), objects.pod("pod", 1)
    job["metadata"]["annotations"] = {"topology-scheduler/required-level": "leaf"}
    pod["metadata"]["annotations"] = {"topology-scheduler/gpu-model": "A100"}
    await cluster.apply(job, pod)
    for name, written, right in (("job", "Job default/job", "required-level"), ("pod", "Pod default/pod", "gpu-model")):
        (item,) = await cluster.wait_bound(name, 1)
        event = await cluster.wait_note(item, f"write topology.scheduler/{right}", reason="AnnotationIgnored")
        assert f"annotation topology-scheduler/{right} on {written}" in event["note"]


async def test_limits_are_the_truth_where_annotation_and_limits_differ(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("torn", 2, {"gpu-count": "4"}), objects.pod("rest", 6))
    (pod,) = await cluster.wait_bound("torn", 1)
    event = await cluster.wait_note(pod, "asks for 4 GPUs per pod, its limits for 2", reason="GPUCountMismatch")
    assert event["type"] == "Warning"
    await cluster.wait_bound("rest", 1)


async def test_gpus_without_limits_are_charged_and_survive_a_restart(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    first = await start_replica(configured(gpus_by_annotation=("default",)))
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("bare", 0, {"gpu-count": "5"}))
    (pod,) = await cluster.wait_bound("bare", 1)
    assert annotation(pod, "charged-gpus") == "5"
    event = await cluster.wait_note(pod, "no GPU limits", reason="GPUsWithoutLimits")
    assert event["type"] == "Warning"
    await first.stop()
    await start_replica(configured(gpus_by_annotation=("default",)))
    await cluster.apply(objects.pod("four", 4))
    (four,) = await cluster.wait_pods("four", 1)
    await cluster.wait_note(four, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    await cluster.apply(objects.pod("three", 3))
    await cluster.wait_bound("three", 1)


async def test_annotations_of_the_scheduler_itself_are_not_for_users(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("sly", 8, {"charged-gpus": "0", "rank": "7"}))
    (pod,) = await cluster.wait_pods("sly", 1)
    await cluster.wait_note(pod, "is written by the scheduler itself; remove it")


async def test_an_owner_of_a_kind_that_is_not_served_does_not_delay_its_pod(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]})
    orphan = objects.pod("orphan", 1)
    orphan["metadata"]["ownerReferences"] = [
        {"apiVersion": "example.com/v1", "kind": "Widget", "name": "gone", "uid": "no-such-uid", "controller": True}
    ]
    await cluster.apply(orphan)
    await cluster.wait_bound("orphan", 1)


async def test_an_owner_that_may_not_be_read_is_reported(cluster: Cluster, daemon: Replica) -> None:
    """The role names the built-in kinds; the message says what is missing."""
    daemon.may_be_refused = True
    await cluster.add_fabric({"s1": [1]})
    owner = await cluster.api.create(
        "secrets", {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "owner"}, "type": "Opaque"}
    )
    owned = objects.pod("owned", 1)
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Secret", "name": "owner", "uid": owner["metadata"]["uid"], "controller": True}
    ]
    try:
        await cluster.apply(owned)
        (pod,) = await cluster.wait_bound("owned", 1)
        event = await cluster.wait_note(pod, "ecret", reason="OwnerUnreadable")
        assert event["type"] == "Warning"
    finally:
        await cluster.api.delete("secrets", "owner")


async def test_a_job_deleted_while_its_gang_waits(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("doomed", 4))
    (pod, *_) = await cluster.wait_pods("doomed", 4)
    await cluster.wait_note(pod, "0/2 nodes are available")
    await cluster.api.delete("jobs", "doomed")

    async def gone() -> bool:
        return not await cluster.pods_of("doomed")

    await cluster.wait_until(gone, 20, "pods of the deleted Job gone")
    await cluster.apply(objects.gang("next", 2))
    await cluster.wait_bound("next", 2)


async def test_a_malformed_label_of_a_node_is_logged_and_the_node_used(
    cluster: Cluster, daemon: Replica, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add_nodes([objects.node("odd", spine="s1", leaf="l1", bandwidth="fast")])
    await cluster.apply(objects.pod("single", 1))
    await cluster.wait_bound("single", 1)
    assert any("node odd: " in message and "'fast'" in message for message in caplog.messages)


async def test_nodes_whose_labels_give_no_position_are_used_counted_and_warned_of(
    cluster: Cluster, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add_nodes(
        [objects.node("placed", spine="s1", leaf="l1", gpus=0), objects.node("half", spine="s1"), objects.node("plain")]
    )
    replica = await start_replica()
    (warning,) = [record for record in caplog.records if "position in the fabric" in record.getMessage()]
    assert warning.levelname == "WARNING" and warning.name.startswith("topo_scheduler")
    assert warning.getMessage().startswith("2 of 3 nodes have no labels for their position in the fabric: ")
    assert warning.__dict__["examples"] == ["half", "plain"]
    await cluster.apply(objects.gang("pair", 2))
    (pod, *_) = await cluster.wait_bound("pair", 2)
    event = await cluster.wait_note(pod, "whose labels do not give their position", reason="Scheduled")
    assert "needed" not in event["note"]
    assert await replica.metric("topology_scheduler_unlabelled_nodes") == 2
    assert await replica.metric("topology_scheduler_unlabelled_gpu_nodes") == 2


async def test_of_a_labelled_fabric_nothing_is_warned(
    cluster: Cluster, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    await cluster.add_fabric({"s1": [2]})
    replica = await start_replica()
    assert not any("position in the fabric" in message for message in caplog.messages)
    assert await replica.metric("topology_scheduler_unlabelled_nodes") == 0


# ------------------------------------------------------------------ nodes that change


async def test_a_node_relabelled_at_run_time_changes_what_fits(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [4, 1]})
    await cluster.occupy("s1-l1-1")
    await cluster.apply(objects.gang("whole", 4), objects.pod("choosy", 1, {"gpu-model": "H300"}))
    (first, *_) = await cluster.wait_pods("whole", 4)
    await cluster.wait_note(first, "0/5 nodes are available")
    (choosy,) = await cluster.wait_pods("choosy", 1)
    await cluster.wait_note(choosy, "5 node(s) had another GPU model")
    await cluster.label_node("s1-l2-1", {"topology.scheduler/leaf": "l1"})
    pods = await cluster.wait_bound("whole", 4)
    assert "s1-l2-1" in nodes_of(pods)
    assert {annotation(pod, "address").rpartition(".")[0] for pod in pods} == {"s1.l1"}
    await cluster.free("s1-l1-1")
    await cluster.label_node("s1-l1-1", {objects.MODEL: "H300"})
    assert nodes_of(await cluster.wait_bound("choosy", 1)) == ["s1-l1-1"]


async def test_a_node_made_again_under_its_name_is_another_node(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [1]}, gpus=8)
    await cluster.apply(objects.pod("first", 8))
    await cluster.wait_bound("first", 1)
    await cluster.api.delete("pods", "first", grace=0)
    await cluster.api.delete("nodes", "s1-l1-1")
    await cluster.add_nodes([objects.node("s1-l1-1", spine="s7", leaf="l9", gpus=4)])
    await cluster.apply(objects.pod("big", 8), objects.pod("small", 4))
    (small,) = await cluster.wait_bound("small", 1)
    assert annotation(small, "address") == "s7.l9.s1-l1-1"
    (big,) = await cluster.wait_pods("big", 1)
    await cluster.wait_note(big, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")


@pytest.mark.only("real")
async def test_what_was_bound_to_a_node_counts_when_it_is_made_again(cluster: Cluster, daemon: Replica) -> None:
    """Pods of a deleted node are collected a minute later; meanwhile they hold what they held."""
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("old", 6))
    await cluster.wait_bound("old", 1)
    await cluster.api.delete("nodes", "s1-l1-1")
    await cluster.add_nodes([objects.node("s1-l1-1", spine="s7", leaf="l9")])
    await cluster.apply(objects.pod("small", 2))
    await cluster.wait_bound("small", 1)
    await cluster.apply(objects.pod("big", 8))
    (big,) = await cluster.wait_pods("big", 1)
    await cluster.wait_note(big, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")
    for name in ("old", "small"):
        await cluster.api.delete("pods", name, grace=0)
    await cluster.wait_bound("big", 1)


async def test_broken_cordoned_and_tainted_nodes_are_passed_over(cluster: Cluster, daemon: Replica) -> None:
    await cluster.add_fabric({"s1": [3]})
    taint = {"key": "maintenance", "value": "soon", "effect": "NoSchedule"}
    await cluster.api.patch("nodes", "s1-l1-1", {"spec": {"unschedulable": True}})
    await cluster.api.patch("nodes", "s1-l1-2", {"spec": {"taints": [taint]}})
    await cluster.apply(objects.pod("first", 8))
    assert nodes_of(await cluster.wait_bound("first", 1)) == ["s1-l1-3"]
    await cluster.apply(objects.pod("second", 8))
    (second,) = await cluster.wait_pods("second", 1)
    event = await cluster.wait_note(second, "0/3 nodes are available")
    assert "1 node(s) were unschedulable" in event["note"] and "1 node(s) had untolerated taint(s)" in event["note"]
    await cluster.apply(objects.pod("tolerant", 8, tolerations=[{"key": "maintenance", "operator": "Exists"}]))
    assert nodes_of(await cluster.wait_bound("tolerant", 1)) == ["s1-l1-2"]
    await cluster.api.patch("nodes", "s1-l1-1", {"spec": {"unschedulable": None}})
    assert nodes_of(await cluster.wait_bound("second", 1)) == ["s1-l1-1"]


# ------------------------------------------------------------------ between decision and bind


@pytest.mark.only("embedded")
async def test_a_node_deleted_between_decision_and_bind(cluster: Cluster, start_replica: StartReplica) -> None:
    name, node = await caught_between(cluster, start_replica, {"s1": [3]}, *crew())
    await cluster.api.delete("nodes", node)
    pods = await cluster.wait_bound("crew", 2)
    assert node not in nodes_of(pods)
    (second,) = [pod for pod in pods if pod["metadata"]["name"] == name]
    await cluster.wait_note(second, f"Binding to {node} failed: node {node} was deleted", reason="BindFailed")


@pytest.mark.only("embedded")
async def test_room_taken_between_decision_and_bind(cluster: Cluster, start_replica: StartReplica) -> None:
    """Another scheduler is faster: the bind is not written, the pod goes elsewhere, and an event reports it."""
    name, node = await caught_between(cluster, start_replica, {"s1": [3]}, *crew())
    await cluster.occupy(node)
    pods = await cluster.wait_bound("crew", 2)
    assert node not in nodes_of(pods)
    (second,) = [pod for pod in pods if pod["metadata"]["name"] == name]
    await cluster.wait_note(second, f"of node {node} at the same moment", reason="BindFailed")


@pytest.mark.only("embedded")
async def test_an_oversubscribed_node_is_reported(cluster: Cluster, daemon: Replica) -> None:
    """Two schedulers bind to one node at the same moment: neither can prevent it, but the log reports it."""
    await cluster.add_fabric({"s1": [1]})
    cluster.overbooked_by_others.add("s1-l1-1")
    rule = cluster.server.faults.add(Delay(0.5), verb="create", resource="pods/binding", times=1)
    await cluster.apply(objects.pod("ours", 8))
    await cluster.wait_for(lambda: rule.struck == 1, 10, "our bind on its way")
    await cluster.occupy("s1-l1-1")
    (ours,) = await cluster.wait_pods("ours", 1)
    event = await cluster.wait_note(ours, "node s1-l1-1 has less", reason="NodeOversubscribed")
    assert "held-s1-l1-1 (scheduler 'another')" in event["note"]
    assert (
        await daemon.metric("topology_scheduler_oversubscribed_nodes") == 1
        or (await cluster.fresh(ours))["status"]["phase"] == "Failed"
    )


async def test_a_pending_pod_that_another_client_binds_counts_where_it_is(cluster: Cluster, daemon: Replica) -> None:
    """An administrator may bind by hand what waits: it is theirs no more to place, and takes room."""
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("waits", 4, {"gpu-model": "H300"}))
    (waits,) = await cluster.wait_pods("waits", 1)
    await cluster.wait_note(waits, "1 node(s) had another GPU model")
    await cluster.api.bind("waits", "s1-l1-1")
    await cluster.apply(objects.pod("big", 8), objects.pod("small", 4))
    await cluster.wait_bound("small", 1)
    (big,) = await cluster.wait_pods("big", 1)
    await cluster.wait_note(big, "0/1 nodes are available: 1 Insufficient nvidia.com/gpu")


async def test_two_schedulers_on_the_same_nodes_at_once(cluster: Cluster, daemon: Replica) -> None:
    """Nodes may be overbooked for a moment, which no scheduler can prevent; no pod of ours is lost or bound twice."""
    names = await cluster.add_fabric({"s1": [4, 4]})
    cluster.overbooked_by_others.update(names)
    ours = [objects.pod(f"ours-{n}", 4) for n in range(8)]
    theirs = [objects.pod(f"theirs-{n}", 4, scheduler="another") for n in range(8)]
    await cluster.apply(*theirs)
    await asyncio.gather(
        *(cluster.apply(item) for item in ours),
        *(cluster.api.bind(f"theirs-{n}", name) for n, name in enumerate(names)),
    )

    async def settled() -> bool:
        pods = await cluster.pods_of("ours")
        return len(pods) == 8 and all(pod["spec"].get("nodeName") for pod in pods)

    await cluster.wait_until(settled, 20, "all of ours bound, for there is room for all")
