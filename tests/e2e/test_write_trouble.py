"""Whatever becomes of evictions, of status of Migrations and of renewals: each is written once, and work goes on."""

from typing import Final

import pytest

from topo_scheduler.simulation.apiserver import Disconnect, Refuse, Truncate
from topo_scheduler.simulation.apiserver.faults import Fault

from . import objects
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
from .recovery import migration, recovery_configuration, undeleted_pods, wait_for_migration
from .replica import CANDIDATE, LEASE

FAULTS: Final[dict[str, Fault]] = {
    "429": Refuse(429, retry_after=1),
    "500": Refuse(500),
    "lost before it was written": Disconnect(),
    "lost after it was written": Disconnect(applied=True),
    "answer truncated": Truncate(),
}


@pytest.mark.usefixtures("migrations")
@pytest.mark.parametrize("resource", ["pods/eviction", "migrations/status"])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_migration_is_carried_out_once(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, fault: Fault, resource: str
) -> None:
    replica = await start_replica(recovery_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("team", 3))
    before = await cluster.wait_bound("team", 3)
    rule = trouble.faults.add(fault, resource=resource, times=2)
    await cluster.api.create("migrations", migration("move", before[1]["metadata"]["name"]))
    done = await wait_for_migration(cluster, "Done", timeout=40)
    assert rule.struck, "an eviction that took effect without an answer is not asked for again"
    (move,) = done["status"]["moves"]
    assert (move["pod"], move["from"]) == (before[1]["metadata"]["name"], nodes_of(before)[1])
    now = await undeleted_pods(cluster, "team")
    stayed = {pod["metadata"]["uid"] for pod in before} & {pod["metadata"]["uid"] for pod in now}
    assert len(now) == 3 and len(stayed) == 2, "one pod was evicted, and no other"
    assert set(done["status"]["times"]) == {"Planned", "Reserving", "Evicting", "Placing", "Done"}
    assert replica.alive


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
async def test_a_leader_whose_renewals_fail_for_a_moment_stays_it(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, fault: Fault
) -> None:
    """Shorter than its lease: one that was written without an answer is known for its own when it is read again."""
    leader = await start_replica(CANDIDATE)
    await cluster.add_fabric({"s1": [4]})
    rule = trouble.faults.add(fault, verb="update", resource="leases", times=2)
    await cluster.wait_for(lambda: rule.struck == 2, 5, "two renewals struck")
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_bound("team", 4)
    lease = (await cluster.api.get(*LEASE))["spec"]
    assert lease["holderIdentity"] and lease.get("leaseTransitions", 0) == 0
    assert leader.daemon.leading.is_set()
