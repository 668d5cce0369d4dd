"""Nodes are deleted while no daemon watches them, or before recovery has seen them: their gangs are whole again."""

import asyncio

import pytest

from tests.crds import migration_definition
from topo_scheduler.api.config import Configuration
from topo_scheduler.recovery.controller import runner
from topo_scheduler.recovery.detection.absent_nodes import LISTED_SECONDS
from topo_scheduler.simulation.apiserver.faults import BreakWatch, Refuse
from topo_scheduler.simulation.controllers import nodes as nodes_controller

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .recovery import recovery_configuration, undeleted_pods, wait_for_migration

HEALED_SECONDS = 25.0
"""The garbage collector of the real control plane takes 40 s at least until it removes a pod of a deleted node."""


@pytest.fixture(autouse=True)
def no_garbage_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of deleted nodes stay on the embedded server, whose node controller would remove them at once."""
    monkeypatch.setattr(nodes_controller, "_remove", lambda *_: None)


def _configuration(**spec: object) -> Configuration:
    return recovery_configuration(force_delete=True, **spec)


async def _run_team(cluster: Cluster) -> list[Json]:
    await cluster.add_fabric({"s1": [6]})
    await cluster.apply(objects.gang("team", 4))
    return await cluster.wait_bound("team", 4)


async def _delete(cluster: Cluster, *names: str) -> None:
    for name in names:
        await cluster.kill_kubelet(name)
        await cluster.api.delete("nodes", name)


async def _wait_healed(cluster: Cluster, lost: set[str]) -> None:
    done = await wait_for_migration(cluster, "Done", timeout=HEALED_SECONDS)
    assert done["spec"]["reason"] == "NodeDeleted"
    assert {move["from"] for move in done["status"]["moves"]} == lost
    assert len(await cluster.api.list("migrations", None)) == 1
    healed = await undeleted_pods(cluster, "team")
    assert len(healed) == 4
    assert lost.isdisjoint(nodes_of(healed))


@pytest.mark.parametrize("seconds_after_start", [None, 0.0, 0.5])
async def test_nodes_deleted_without_a_leader_or_in_its_first_seconds(
    cluster: Cluster, migrations: None, start_replica: StartReplica, seconds_after_start: float | None
) -> None:
    first = await start_replica(_configuration())
    lost = nodes_of(await _run_team(cluster))[:2]
    await first.kill()
    if seconds_after_start is None:
        await _delete(cluster, *lost)
        await start_replica(_configuration())
    else:
        await start_replica(_configuration())
        await asyncio.sleep(seconds_after_start)
        await _delete(cluster, *lost)
    await _wait_healed(cluster, set(lost))


async def test_nodes_deleted_before_recovery_is_turned_on(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    replica = await start_replica(_configuration(enabled=False))
    lost = nodes_of(await _run_team(cluster))[:2]
    await _delete(cluster, *lost)
    await asyncio.sleep(1)
    assert replica.daemon.term is not None
    replica.daemon.term.configure(_configuration())
    await _wait_healed(cluster, set(lost))


async def test_nodes_deleted_while_migrations_are_not_defined(
    cluster: Cluster, start_replica: StartReplica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "DEFINITION_CHECK_SECONDS", 0.5)
    definition = migration_definition()
    await cluster.define(definition)
    replica = await start_replica(_configuration())
    lost = nodes_of(await _run_team(cluster))[:2]
    assert replica.daemon.term is not None
    recovery = replica.daemon.term.recovery
    machine = recovery._machine
    assert machine is not None
    await cluster.wait_for(lambda: len(machine.detection.names()) == 6, 20, "recovery sees the nodes")
    await cluster.undefine(definition["metadata"]["name"])
    if cluster.embedded:  # the real server ends the watch itself
        cluster.server.break_watches(BreakWatch("end"), definition["metadata"]["name"])
    await cluster.wait_for(lambda: recovery._machine is None, 45, "recovery is off")
    await _delete(cluster, *lost)
    await cluster.define(definition)
    await _wait_healed(cluster, set(lost))
    await cluster.undefine(definition["metadata"]["name"])


@pytest.mark.only("embedded")
async def test_no_pod_moves_before_the_api_server_has_confirmed_that_its_node_does_not_exist(
    cluster: Cluster, migrations: None, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    first = await start_replica(_configuration())
    lost = nodes_of(await _run_team(cluster))[:2]
    await first.stop()
    await _delete(cluster, *lost)
    rule = cluster.server.faults.add(Refuse(503), verb="get", resource="nodes")
    await start_replica(_configuration())
    await cluster.wait_for(lambda: rule.struck, 10, "the API server is asked for the nodes")

    async def no_migration() -> bool:
        return not await cluster.api.list("migrations", None)

    await cluster.holds_for(LISTED_SECONDS + 1.0, no_migration, "no Migration")
    cluster.server.faults.remove(rule)
    await _wait_healed(cluster, set(lost))
    assert caplog.text.count("recovery can't find out whether node") == 1
