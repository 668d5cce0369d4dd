"""Nodes fail, and gangs are whole again: kopf watches, Migrations tell, the manifests' rights suffice."""

import asyncio
from contextlib import suppress

import pytest

from tests.crds import migration_definition
from topo_scheduler.api.timestamps import seconds_of
from topo_scheduler.recovery.controller import runner
from topo_scheduler.recovery.detection import interference
from topo_scheduler.simulation.apiserver.faults import BreakWatch, Refuse

from . import objects
from .api import ApiError, Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica
from .recovery import migration, recovery_configuration, undeleted_pods, wait_for_migration


async def test_a_lost_member_goes_to_the_seat_held_for_it(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    replica = await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_fabric({"s1": [4, 4, 4]})
    await cluster.apply(objects.gang("team", 3))
    pods = await cluster.wait_bound("team", 3)
    (leaf,) = leaves_of(pods)
    lost = nodes_of(pods)[1]
    await cluster.fail_node(lost)
    done = await wait_for_migration(cluster, "Done", timeout=30)
    (move,) = done["status"]["moves"]
    assert (move["pod"], move["from"]) == (pods[1]["metadata"]["name"], lost)
    assert lost in done["spec"]["cause"]
    now = await undeleted_pods(cluster, "team")
    assert len(now) == 3 and lost not in nodes_of(now)
    assert leaves_of(now) == {leaf}
    assert move["to"] in nodes_of(now)
    assert set(done["status"]["times"]) == {"Planned", "Reserving", "Evicting", "Placing", "Done"}
    assert await replica.metric("topology_recovery_duration_seconds_count", outcome="Done") == 1
    took = (seconds_of(done["status"]["times"]["Done"]) or 0.0) - (seconds_of(done["spec"]["since"]) or 0.0)
    assert await replica.metric("topology_recovery_duration_seconds_sum") == pytest.approx(took, abs=0.01)
    assert await replica.metric("topology_scheduler_recovery_duration_seconds_count", phase="Evicting") == 1
    assert await replica.metric("topology_scheduler_recovery_evictions_total", outcome="evicted") == 1
    assert await replica.metric("topology_scheduler_migrations") == 0
    status, text = await replica.get("/livez?verbose")
    assert status == 200 and "[+]recovery ok" in text
    for kind, item in (("nodes", move["to"]), ("migrations", done["metadata"]["name"])):
        resource = await cluster.api.get(kind, item)
        assert not resource["metadata"].get("finalizers")
        assert not any("kopf" in key for key in resource["metadata"].get("annotations") or {})


async def test_a_dry_run_plans_and_evicts_no_pod(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration(force_delete=True, dry_run=True))
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.fail_node(nodes_of(pods)[0])
    planned = await wait_for_migration(cluster, "Planned")
    assert planned["status"]["toNodes"]

    async def untouched() -> bool:
        now = await undeleted_pods(cluster, "team")
        return [pod["metadata"]["uid"] for pod in now] == [pod["metadata"]["uid"] for pod in pods]

    await cluster.holds_for(1.0, untouched, "no pod is evicted")


async def test_a_migration_that_a_user_makes_and_one_that_can_not_be(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.api.create("migrations", migration("bad", "missing"))
    failed = await wait_for_migration(cluster, "Failed")
    assert "no bound pod of namespace default is called 'missing'" in failed["status"]["message"]
    await cluster.wait_note(failed, "missing", reason="MigrationFailed")
    await cluster.api.create("migrations", migration("good", pods[0]["metadata"]["name"]))
    done = await wait_for_migration(cluster, "Done", timeout=30)
    assert done["metadata"]["name"] == "good"
    now = await undeleted_pods(cluster, "team")
    assert nodes_of(pods)[0] not in nodes_of(now) and len(leaves_of(now)) == 1


async def test_a_migration_that_a_user_deletes_while_its_node_is_failed_is_made_again(
    cluster: Cluster, migrations: None, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interference, "FIRST_PAUSE_SECONDS", 0.5)
    await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_fabric({"s1": [4, 4]})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "team"}}},
    }
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    # Not dead, but to be emptied: nothing is forced, so the budget keeps the Migration where it is.
    await cluster.apply(budget)
    await asyncio.sleep(1)
    lost = nodes_of(pods)[0]
    taint = {"key": "topology.scheduler/maintenance", "effect": "NoSchedule"}
    await cluster.api.patch("nodes", lost, {"spec": {"unschedulable": True, "taints": [taint]}})
    first = await wait_for_migration(cluster, "Evicting")
    await cluster.api.delete("migrations", first["metadata"]["name"])

    async def made_again() -> Json | None:
        listed = await cluster.api.list("migrations", None)
        return next((entry for entry in listed if entry["metadata"]["uid"] != first["metadata"]["uid"]), None)

    again = await cluster.wait_until(made_again, 20, "another Migration")
    assert again["spec"]["pods"] == first["spec"]["pods"]
    await cluster.api.delete("poddisruptionbudgets", "guard")
    await wait_for_migration(cluster, "Done", timeout=40)
    assert lost not in nodes_of(await undeleted_pods(cluster, "team"))


async def test_migrations_without_recovery_say_so_and_go_on_once_it_is_on(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    replica = await start_replica(recovery_configuration(enabled=False))
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))

    async def answered() -> Json | None:
        (current,) = await cluster.api.list("migrations", None)
        return current if (current.get("status") or {}).get("conditions") else None

    reported = await cluster.wait_until(answered, 20, "a Migration with a status")
    (condition,) = reported["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == ("Reserved", "False", "RecoveryDisabled")
    assert not reported["status"].get("phase") and "recovery is off" in reported["status"]["message"]
    await cluster.wait_note(reported, "recovery is off", reason="RecoveryDisabled")
    assert nodes_of(await cluster.pods_of("team")) == nodes_of(pods)
    assert replica.daemon.term is not None
    replica.daemon.term.configure(recovery_configuration())
    done = await wait_for_migration(cluster, "Done", timeout=30)
    reasons = [condition["reason"] for condition in done["status"]["conditions"]]
    assert "RecoveryDisabled" not in reasons


async def test_a_migration_that_fails_as_recovery_is_turned_on_moves_no_pod(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """It ends before recovery has listed the nodes. That its node is not known yet does not mean that it is gone."""
    replica = await start_replica(recovery_configuration(enabled=False))
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    wrong = migration("move", pods[0]["metadata"]["name"], "stranger")
    wrong["spec"]["pods"][0]["uid"] = pods[0]["metadata"]["uid"]
    await cluster.api.create("migrations", wrong)
    assert replica.daemon.term is not None
    replica.daemon.term.configure(recovery_configuration())
    await wait_for_migration(cluster, "Failed", timeout=30)
    await asyncio.sleep(2)
    assert len(await cluster.api.list("migrations", None)) == 1
    assert nodes_of(await cluster.pods_of("team")) == nodes_of(pods)


async def test_without_the_definition_it_says_that_recovery_is_off(
    cluster: Cluster, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [2]})
    await cluster.apply(objects.gang("team", 2))
    await cluster.wait_bound("team", 2)
    assert "recovery is off: the definition migrations.topology.scheduler is not installed" in caplog.text
    assert (await replica.get("/livez"))[0] == 200


async def test_a_definition_that_is_deleted_turns_recovery_off_and_one_that_comes_again_on(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "DEFINITION_CHECK_SECONDS", 0.5)
    definition = migration_definition()
    await cluster.define(definition)
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.undefine(definition["metadata"]["name"])
    await cluster.define(definition)
    await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))
    await wait_for_migration(cluster, "Done")
    assert (await replica.get("/livez"))[0] == 200
    await cluster.undefine(definition["metadata"]["name"])


async def test_a_daemon_killed_in_mid_migration_is_followed_by_one_that_goes_on(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    first = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    waits = cluster.let_pods_end_slowly(3.0)
    await cluster.apply(objects.gang("team", 3, pod_annotations=waits, terminationGracePeriodSeconds=5))
    pods = await cluster.wait_bound("team", 3)
    name = pods[1]["metadata"]["name"]
    await cluster.api.create("migrations", migration("move", name))
    evicting = await wait_for_migration(cluster, "Evicting")
    await first.kill()
    seat = evicting["status"]["toNodes"]
    await start_replica(recovery_configuration())
    done = await wait_for_migration(cluster, "Done", timeout=30)
    assert done["status"]["toNodes"] == seat
    now = await undeleted_pods(cluster, "team")
    assert len(now) == 3 and seat in nodes_of(now)


async def test_on_a_dead_kubelet_it_waits_until_the_machine_is_reported_off(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """Evictions there take longer than any client waits."""
    await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [3]})
    waits = cluster.let_pods_end_slowly(300.0)
    await cluster.apply(objects.gang("team", 2, pod_annotations=waits, terminationGracePeriodSeconds=300))
    pods = await cluster.wait_bound("team", 2)
    lost = pods[0]
    node_name = nodes_of(pods)[0]
    (free,) = {"s1-l1-1", "s1-l1-2", "s1-l1-3"} - set(nodes_of(pods))
    await cluster.fail_node(node_name)

    async def told() -> bool:
        (migration,) = await cluster.api.list("migrations", None)
        conditions = migration["status"].get("conditions") or []
        return any(condition.get("reason") == "KubeletDead" for condition in conditions)

    await wait_for_migration(cluster, "Evicting")
    await cluster.wait_until(told, 20, "the condition says what is awaited")
    fresh = await cluster.api.find("pods", lost["metadata"]["name"])
    assert fresh is not None and fresh["metadata"].get("deletionTimestamp")
    taint = {"key": "node.kubernetes.io/out-of-service", "effect": "NoExecute"}
    node = await cluster.api.get("nodes", node_name)
    taints = [*(node["spec"].get("taints") or []), taint]
    await cluster.api.patch("nodes", node_name, {"spec": {"taints": taints}})

    async def gone() -> bool:
        pod = await cluster.api.find("pods", lost["metadata"]["name"])
        return pod is None or pod["metadata"]["uid"] != lost["metadata"]["uid"]

    await cluster.wait_until(gone, 20, "the pod deleted")
    done = await wait_for_migration(cluster, "Done")
    assert done["status"]["toNodes"] == free


async def test_a_job_that_waits_for_the_end_of_its_pods_goes_on_where_a_dead_kubelet_will_never_report_it(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """With ``podFailurePolicy`` a Job replaces a pod when it has failed, not when it is deleted."""
    await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_fabric({"s1": [3]})
    job = objects.gang("team", 2)
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
    job["spec"] |= {"backoffLimit": 0, "podFailurePolicy": {"rules": [ignore]}}
    await cluster.apply(job)
    pods = await cluster.wait_bound("team", 2)
    lost = nodes_of(pods)[0]
    await cluster.kill_kubelet(lost)
    await cluster.give_up_node(lost)
    done = await wait_for_migration(cluster, "Done", timeout=30)
    now = await undeleted_pods(cluster, "team")
    assert sorted(nodes_of(now)) == sorted([done["status"]["toNodes"], nodes_of(pods)[1]])
    assert not (await cluster.api.get("jobs", "team"))["status"].get("failed")


async def test_an_api_server_that_is_away_in_mid_migration(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """On the real control plane the server is killed and started again; on the embedded one it refuses everything."""
    replica = await start_replica(recovery_configuration())
    replica.may_be_refused = True  # a server that has just started answers 403 for a moment, to every client
    await cluster.add_fabric({"s1": [4, 4]})
    waits = cluster.let_pods_end_slowly(3.0)
    await cluster.apply(objects.gang("team", 3, pod_annotations=waits, terminationGracePeriodSeconds=5))
    pods = await cluster.wait_bound("team", 3)
    await cluster.api.create("migrations", migration("move", pods[1]["metadata"]["name"]))
    evicting = await wait_for_migration(cluster, "Evicting")
    if cluster.embedded:
        faults = cluster.server.faults
        rules = [
            faults.add(Refuse(503), verb=verb, resource=resource)
            for resource in ("migrations", "migrations/status", "pods/eviction", "pods/binding", "nodes")
            for verb in ("get", "list", "watch", "create", "update")
        ]
        await asyncio.sleep(4.0)
        for rule in rules:
            faults.remove(rule)
    else:
        await asyncio.to_thread(cluster.plane.restart, "kube-apiserver", grace=0)
    assert (await replica.get("/livez"))[0] == 200
    done = await wait_for_migration(cluster, "Done")
    assert done["status"]["toNodes"] == evicting["status"]["toNodes"]
    now = await undeleted_pods(cluster, "team")
    assert len(now) == 3 and done["status"]["toNodes"] in nodes_of(now)


@pytest.mark.only("embedded")
async def test_a_later_leader_ends_a_migration_whose_pods_have_gone_when_their_job_is_deleted(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """No pod is left from which it could learn for which replacement the node is reserved."""
    first = await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_fabric({"s1": [3]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    async with cluster.without_controllers():  # no pod is made in the place of the lost one
        await cluster.fail_node(nodes_of(pods)[0])
        await wait_for_migration(cluster, "Placing")
        await first.stop()
        for pod in await cluster.pods_of("team"):
            await cluster.api.patch("pods", pod["metadata"]["name"], {"metadata": {"finalizers": None}})
            with suppress(ApiError):
                await cluster.api.delete("pods", pod["metadata"]["name"], grace=0)
        await start_replica(recovery_configuration(force_delete=True))
        await cluster.api.delete("jobs", "team", propagation="Background")
    ended = await wait_for_migration(cluster, "Cancelled", timeout=15)
    assert "Job team" in ended["status"]["message"]
    await cluster.apply(objects.gang("other", 2))
    await cluster.wait_bound("other", 2)


async def test_a_migration_ends_when_the_job_that_it_moves_is_deleted(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"maxUnavailable": 0, "selector": {"matchLabels": {"batch.kubernetes.io/job-name": "team"}}},
    }
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    await cluster.apply(budget)
    await asyncio.sleep(1)
    await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))
    held = await wait_for_migration(cluster, "Evicting")
    seat = held["status"]["moves"][0]["to"]
    assert seat and seat not in nodes_of(pods)
    await cluster.api.delete("jobs", "team", propagation="Background")
    ended = await wait_for_migration(cluster, "Cancelled")
    (placed,) = [condition for condition in ended["status"]["conditions"] if condition["type"] == "Placed"]
    assert placed["reason"] == "OwnerDeleted" and "Job team" in ended["status"]["message"]
    # The seat is free: a gang takes all eight nodes.
    await cluster.apply(objects.gang("next", 8))
    await cluster.wait_bound("next", 8)


@pytest.mark.only("embedded")
async def test_a_node_that_is_deleted_while_no_watch_is_open_is_not_healthy(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """The thread of kopf lists again after a 410, and does not report what that list lacks."""
    replica = await start_replica(recovery_configuration())
    assert replica.daemon.term is not None
    machine = replica.daemon.term.recovery._machine
    assert machine is not None
    await cluster.add_fabric({"s1": [4]})
    await cluster.wait_for(lambda: len(machine.detection.names()) == 4, 10, "recovery has seen the nodes")
    away = [cluster.server.faults.add(Refuse(503), verb=verb, resource="nodes") for verb in ("list", "watch")]
    cluster.server.break_watches(BreakWatch("drop"), "nodes")
    await cluster.api.delete("nodes", "s1-l1-2")
    cluster.server.store.compact()
    for rule in away:
        cluster.server.faults.remove(rule)
    await cluster.wait_for(lambda: not machine.detection.is_healthy("s1-l1-2"), 10, "the node is known to be gone")
    assert machine.detection.names() == {"s1-l1-1", "s1-l1-3", "s1-l1-4"}
