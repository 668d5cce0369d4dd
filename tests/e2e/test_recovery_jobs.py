"""Recovery beside what others do: Job controllers that count failures, kubelets that refuse, monitors of the daemon."""

import json
from pathlib import Path
from typing import Any

import kopf
import pytest

from topo_scheduler.api.config import Configuration
from topo_scheduler.api.recording import AuditLog
from topo_scheduler.api.spares import SparesSpec
from topo_scheduler.recovery.controller import runner
from topo_scheduler.recovery.model import retention

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .recovery import migration, recovery_configuration, undeleted_pods, wait_for_migration

IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]}


def _restarting(limit: int | None, policy: Json | None) -> Json:
    item = objects.gang("team", 3, annotations={"on-failure": "restart-gang"})
    if limit is not None:
        item["spec"]["backoffLimit"] = limit
    if policy is not None:
        item["spec"]["podFailurePolicy"] = policy
    return item


async def _restarted(cluster: Cluster, item: Json) -> list[Json]:
    """Submit a gang and ask for one of its pods to be moved; return the pods before."""
    await cluster.apply(item)
    pods = await cluster.wait_bound("team", 3)
    await cluster.api.create("migrations", migration("move", pods[1]["metadata"]["name"]))
    return pods


async def test_a_job_that_ignores_disruptions_counts_no_failure_when_its_gang_restarts(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    before = await _restarted(cluster, _restarting(0, IGNORES))
    done = await wait_for_migration(cluster, "Done")
    assert done["status"]["policy"] == "restart-gang" and len(done["status"]["moves"]) == 3
    now = await cluster.wait_bound("team", 3)
    assert {pod["metadata"]["uid"] for pod in now}.isdisjoint(pod["metadata"]["uid"] for pod in before)
    assert len(leaves_of(now)) == 1
    job = await cluster.api.get("jobs", "team")
    assert not job["status"].get("failed")
    assert not [
        condition
        for condition in job["status"].get("conditions") or []
        if condition["type"] in ("Failed", "FailureTarget")
    ]


async def test_without_such_a_policy_each_pod_counts_as_a_failure(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    await _restarted(cluster, _restarting(None, None))
    await wait_for_migration(cluster, "Done")

    async def counted() -> bool:
        return bool((await cluster.api.get("jobs", "team"))["status"].get("failed") == 3)

    await cluster.wait_until(counted, 20, "three failures of at most six")


async def test_where_that_is_more_than_its_backoff_limit_the_job_fails_and_the_migration_says_so(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration(reservation_timeout=5.0))
    await cluster.add_fabric({"s1": [4, 4]})
    await _restarted(cluster, _restarting(0, None))
    failed = await wait_for_migration(cluster, "Failed")
    assert "its controller made none, or none was bound" in failed["status"]["message"]
    job = await cluster.api.get("jobs", "team")
    (condition,) = [entry for entry in job["status"]["conditions"] if entry["type"] == "Failed"]
    assert condition["reason"] == "BackoffLimitExceeded"


async def test_livez_fails_when_the_thread_of_kopf_is_dead(
    cluster: Cluster, migrations: None, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def spawn_tasks(**_: Any) -> None:
        raise RuntimeError("a fault of its own")

    monkeypatch.setattr(kopf, "spawn_tasks", spawn_tasks)
    monkeypatch.setattr(runner, "MAX_DEATHS", 0)
    replica = await start_replica(recovery_configuration())

    async def failing() -> str:
        status, text = await replica.get("/livez?verbose")
        return text if status == 500 else ""

    text = await cluster.wait_until(failing, 20, "/livez fails")
    assert "the thread that watches nodes and Migrations has ended: RuntimeError: a fault of its own" in text
    assert (await replica.get("/readyz"))[0] == 200
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("team", 2))
    await cluster.wait_bound("team", 2)  # until the kubelet starts it again, it schedules on


async def test_the_audit_log_records_which_pod_runs_in_place_of_which(
    cluster: Cluster, migrations: None, start_replica: StartReplica, tmp_path: Path
) -> None:
    base, audit = recovery_configuration(), tmp_path / "audit.jsonl"
    changes = {"audit_log": AuditLog(path=str(audit))}
    replica = await start_replica(Configuration(base.scheduler.model_copy(update=changes), base.topology))
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    left = pods[0]
    await cluster.api.create("migrations", migration("move", left["metadata"]["name"]))
    done = await wait_for_migration(cluster, "Done")
    await replica.stop()
    (move,) = done["status"]["moves"]
    (line,) = [json.loads(text) for text in audit.read_text().splitlines() if '"kind":"moved"' in text]
    (pod,) = line["pods"]
    assert (pod["name"], pod["uid"], line["node"]) == (move["replacementName"], move["replacement"], move["to"])
    assert line["workload"] == "team"
    uid, node = left["metadata"]["uid"], left["spec"]["nodeName"]
    assert line["reason"] == f"Migration default/move: in place of the pod {uid} on node {node}"


async def test_a_lost_member_goes_to_the_spare_and_the_pod_that_borrowed_it_leaves(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    base = recovery_configuration(force_delete=True)
    kept = base.topology.spec.model_copy(update={"spares": SparesSpec(per_leaf=1)})
    topology = base.topology.model_copy(update={"spec": kept})
    replica = await start_replica(Configuration(base.scheduler, topology))
    await cluster.add_fabric({"s1": [3]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.apply(objects.pod("more", 8))
    (waits,) = await cluster.wait_pods("more", 1)
    await cluster.wait_note(waits, "1 node(s) are kept as spares")
    assert await replica.metric("topology_scheduler_spare_nodes", domain="s1/l1", state="free") == 1
    low = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "e2e-borrows"}}
    if await cluster.api.find("priorityclasses", "e2e-borrows") is None:
        await cluster.api.create("priorityclasses", {**low, "value": -10})
    await cluster.apply(objects.gang("cheap", 1, priorityClassName="e2e-borrows"))
    (cheap,) = await cluster.wait_bound("cheap", 1)
    assert await replica.metric("topology_scheduler_spare_nodes", domain="s1/l1", state="lent") == 1
    lost = nodes_of(pods)[0]
    await cluster.fail_node(lost)

    async def whole() -> list[Json]:
        now = [pod for pod in await undeleted_pods(cluster, "team") if pod["spec"].get("nodeName") not in (None, lost)]
        return now if len(now) == 2 else []

    now = await cluster.wait_until(whole, 40, "the gang is whole")
    assert cheap["spec"]["nodeName"] in nodes_of(now)


async def test_a_node_that_refuses_pods_of_several_workloads_is_left(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration(pod_failures={"workloads": 2, "namespaces": 1}))
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 2, 4))
    pods = await cluster.wait_bound("team", 2)
    bad = nodes_of(pods)[0]
    for name in ("one", "two"):
        await cluster.apply(objects.pod(name, 0, nodeSelector={"kubernetes.io/hostname": bad}))
        (pod,) = await cluster.wait_bound(name, 1)

        async def runs(name: str = name) -> bool:
            return bool((await cluster.api.get("pods", name))["status"].get("phase") == "Running")

        await cluster.wait_until(runs, 15, f"{name} runs, so that its kubelet has nothing more to write")
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}
        await cluster.api.patch("pods", pod["metadata"]["name"], {"status": status}, subresource="status")
    done = await wait_for_migration(cluster, "Done")
    assert done["spec"]["reason"] == "PodsRefused"
    assert f"node {bad} refused 2 pods within 10m: default/one (UnexpectedAdmissionError)" in done["spec"]["cause"]
    assert bad not in nodes_of(await undeleted_pods(cluster, "team"))


async def test_a_migration_that_is_over_is_deleted_and_one_under_way_is_not(
    cluster: Cluster, migrations: None, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what the manifests grant."""
    monkeypatch.setattr(retention, "LEAST_SECONDS", 1.0)
    await start_replica(recovery_configuration(keep_finished={"time": 1.0}, limits={"cooldown": 1.0}))
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.api.create("migrations", migration("waits", pods[0]["metadata"]["name"]))  # there is no room
    await cluster.api.create("migrations", migration("bad", "nobody"))

    async def left() -> bool:
        listed = await cluster.api.list("migrations", None)
        return [entry["metadata"]["name"] for entry in listed] == ["waits"]

    await wait_for_migration(cluster, "Planned")
    await cluster.wait_until(left, 20, "what has failed is deleted")
    await cluster.holds_for(2.0, left, "what waits is not")
