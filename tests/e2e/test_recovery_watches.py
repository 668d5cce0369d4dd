"""Recovery while its watch of Migrations is refused or breaks: it goes on, and reports what it does not see."""

import asyncio

import pytest

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
