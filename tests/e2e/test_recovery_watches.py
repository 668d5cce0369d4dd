"""Recovery while its watch of Migrations is refused or breaks: it goes on, and reports what it does not see."""

import asyncio

import pytest

from topo_scheduler.recovery.controller import runner
from topo_scheduler.runtime.term import Term
from topo_scheduler.simulation.apiserver.faults import BreakWatch, Refuse

from . import objects
from .cluster import Cluster
from .conftest import StartReplica
from .recovery import migration, recovery_configuration, wait_for_migration
from .replica import Replica

pytestmark = pytest.mark.only("embedded")
KIND = "migrations.topology.scheduler"


def leading(replica: Replica) -> Term:
    assert replica.daemon.term is not None
    return replica.daemon.term


def watches(cluster: Cluster) -> bool:
    return any(stream.encoder.kind.id == KIND for stream in cluster.server.streams)


async def test_a_migration_that_is_deleted_while_no_watch_is_open_gives_its_seats_back(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    """The thread of kopf lists again after a 410, and does not report what that list lacks."""
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4]})
    slowly = cluster.let_pods_end_slowly(300.0)
    await cluster.apply(objects.gang("team", 2, pod_annotations=slowly, terminationGracePeriodSeconds=300))
    pods = await cluster.wait_bound("team", 2)
    async with cluster.without_controllers():  # no pod takes the seat
        await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))
        await wait_for_migration(cluster, "Evicting")
        await asyncio.sleep(2.0)  # its status is not written any more
        recovery, engine = leading(replica).recovery, leading(replica).engine
        away = [cluster.server.faults.add(Refuse(503), verb=verb, resource="migrations") for verb in ("list", "watch")]
        cluster.server.break_watches(BreakWatch("drop"), KIND)
        await cluster.api.delete("migrations", "move")
        cluster.server.store.compact()
        assert recovery.under_way and engine.preempting.replacements
        for rule in away:
            cluster.server.faults.remove(rule)
        await cluster.wait_for(lambda: not recovery.under_way, 15, "the Migration is known to be gone")
        assert not engine.preempting.replacements


async def test_a_refused_watch_of_migrations_is_reported_with_the_missing_right(
    cluster: Cluster, migrations: None, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [2]})
    await cluster.wait_for(lambda: watches(cluster), 10, "the watch is open")
    rule = cluster.server.faults.add(Refuse(403, message="no rule allows it"), verb="watch", resource="migrations")
    cluster.server.break_watches(BreakWatch("end"), KIND)

    def warnings(text: str) -> list[str]:
        return [record.message for record in caplog.records if text in record.message]

    def reports() -> list[str]:
        return warnings("recovery does not see")

    await cluster.wait_for(reports, 10, "the refusal is reported")
    assert reports() == [
        f"recovery does not see changes of {KIND}: 403 no rule allows it"
        f" (grant get, list and watch on {KIND} in the cluster)"
    ]
    await cluster.wait_for(lambda: rule.struck >= 4, 20, "kopf has asked again several times")
    assert len(reports()) == 1, "it is not repeated with each attempt"
    stale = "topology_scheduler_watch_staleness_seconds"
    assert await replica.metric(stale, resource=KIND) > 1.5
    assert (await replica.get("/livez"))[0] == 200, "a restart would not help"
    cluster.server.faults.remove(rule)
    await cluster.wait_for(lambda: warnings(f"recovery sees changes of {KIND} again after"), 15, "the end is reported")
    assert await replica.metric(stale, resource=KIND) < 1.5


async def test_errors_in_the_watch_of_migrations_do_not_end_recovery(
    cluster: Cluster,
    migrations: None,
    start_replica: StartReplica,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "MAX_DEATHS", 0)
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_bound("team", 2)
    recovery = leading(replica).recovery
    watcher = recovery._watcher
    await cluster.wait_for(lambda: watches(cluster), 10, "the watch is open")
    rule = cluster.server.faults.add(BreakWatch("fail"), resource="migrations")
    cluster.server.break_watches(BreakWatch("fail"), KIND)
    await cluster.wait_for(lambda: rule.struck >= 3, 15, "the watch has failed several times")
    assert f"recovery does not see changes of {KIND}: 500 injected fault" in caplog.text
    cluster.server.faults.remove(rule)
    await cluster.api.create("migrations", migration("move", pods[0]["metadata"]["name"]))
    await wait_for_migration(cluster, "Done")
    assert recovery._watcher is watcher, "its thread has lived on"
    assert recovery.wrong() == ""
