"""Two replicas, one leader; it stops in time, hands over, and nothing is lost on the way."""

import asyncio
from collections.abc import Callable

import pytest

from topo_scheduler.api.annotations import GANG_COMPLETE
from topo_scheduler.api.process import LeaderElection
from topo_scheduler.simulation.apiserver import Delay, Refuse, RequestInfo

from . import objects
from .between import left_partially_bound
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
from .hanging import slow_bindings
from .replica import CANDIDATE, LEASE, SHORT_LEASE, Replica, configured

SOONER_THAN_A_CRASH_SECONDS = 15.0
"""From SIGTERM to the first bind of the successor; after a crash it is more than 15 s. It took 28 s."""


async def pair(start_replica: StartReplica) -> tuple[Replica, Replica]:
    """A leader and a standby."""
    leader = await start_replica(CANDIDATE)
    standby = await start_replica(CANDIDATE, wait=False)
    await standby.daemon.wait_served()
    return leader, standby


async def holder(cluster: Cluster) -> str:
    """The holder of the Lease."""
    lease = await cluster.api.find(*LEASE)
    return str((lease or {}).get("spec", {}).get("holderIdentity") or "")


async def test_one_of_two_leads_and_the_standby_is_ready(cluster: Cluster, start_replica: StartReplica) -> None:
    leader, standby = await pair(start_replica)

    async def ready() -> bool:
        return (await standby.get("/readyz"))[0] == 200

    await cluster.wait_until(ready, 10, "the standby ready")
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_bound("team", 4)
    assert await holder(cluster) == leader.daemon.identity
    assert not standby.daemon.leading.is_set()
    assert await leader.metric("topology_scheduler_leader") == 1
    assert await standby.metric("topology_scheduler_leader") == 0
    assert await standby.metric("topology_placement_decisions_total") == 0


async def test_slow_renewals_slow_down_explanations(
    cluster: Cluster, start_replica: StartReplica, trouble: Trouble
) -> None:
    """Also while nothing is bound: the API server may have no CPU to spare."""
    election = LeaderElection(lease_duration=8.0, renew_deadline=6.0, retry_period=0.5)
    term = (await start_replica(configured(election=election))).daemon.term
    assert term is not None
    trouble.faults.add(Delay(0.3), verb="update", resource="leases")
    await cluster.wait_for(lambda: term._cpu_pace._slow_until > term._clock(), 15, "explanations slowed down")


async def test_a_leader_that_ends_in_order_hands_over_at_once(cluster: Cluster, start_replica: StartReplica) -> None:
    leader, standby = await pair(start_replica)
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("before", 4))
    await cluster.wait_bound("before", 4)
    await leader.stop()
    assert await holder(cluster) in ("", standby.daemon.identity)
    await standby.wait_leading(10)
    await cluster.apply(objects.gang("after", 4))
    await cluster.wait_bound("after", 4)


async def test_a_leader_that_is_killed_is_replaced(cluster: Cluster, start_replica: StartReplica) -> None:
    """Its Lease runs out first: by then what it had on the wire has landed, or never will."""
    leader, standby = await pair(start_replica)
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(objects.gang("before", 4))
    await cluster.wait_bound("before", 4)
    await leader.kill()
    assert await holder(cluster) == leader.daemon.identity
    await cluster.apply(objects.gang("after", 4))
    await standby.wait_leading(20)
    await cluster.wait_bound("after", 4)
    assert await holder(cluster) == standby.daemon.identity


async def test_a_successor_completes_what_was_partially_bound(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    """It learns from the bound members where the gang stands."""
    await cluster.add_fabric({"s1": [4, 4, 4]})
    await left_partially_bound(cluster, trouble, start_replica, objects.gang("team", 4))
    await start_replica()
    pods = await cluster.wait_bound("team", 4)
    assert len({pod["spec"]["nodeName"].rpartition("-")[0] for pod in pods}) == 1


@pytest.mark.only("embedded")
async def test_sigterm_lets_binds_in_flight_finish_and_gives_the_lease_back(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    leader = await start_replica(configured(election=SHORT_LEASE, bind_timeout=2.0))
    await cluster.add_fabric({"s1": [4]})
    rule = cluster.server.faults.add(Delay(0.7), verb="create", resource="pods/binding")
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_for(lambda: rule.struck == 4, 10, "four binds in flight")
    await leader.stop()
    pods = await cluster.pods_of("team")
    assert all(pod["spec"].get("nodeName") for pod in pods), "bound by the time the process ended"
    for pod in pods:
        assert await cluster.notes(pod, "Scheduled"), "told by the time the process ended"
    assert await holder(cluster) == ""


async def test_binds_that_hang_keep_no_successor_from_scheduling_for_others(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """With the defaults the leader is replaced sooner than after a crash, and what hung then can no longer land."""
    defaults = configured(election=LeaderElection(), bind_timeout=20.0)
    leader = await start_replica(defaults)
    await cluster.add_fabric({"s1": [4]})
    async with slow_bindings(cluster, 9.0, prefix="half-1-") as seen:
        await cluster.apply(objects.gang("half", 2))
        await cluster.wait_for(lambda: any(name.startswith("half-1-") for name in seen), 10, "a bind that hangs")
        standby = await start_replica(defaults, wait=False)
        await standby.daemon.wait_served()
        stopping = asyncio.create_task(leader.stop())
        await cluster.apply(objects.pod("other", 1))
        try:
            await cluster.wait_bound("other", 1, SOONER_THAN_A_CRASH_SECONDS)
        finally:
            await stopping
        assert standby.daemon.leading.is_set()
        assert sum(map(bool, nodes_of(await cluster.pods_of("half")))) <= 1, "after its deadline it is not written"
    await cluster.wait_bound("half", 2, 60)


@pytest.mark.only("embedded")
async def test_a_gang_that_completes_while_binds_of_another_hang_is_marked_before_these_are_given_up(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    leader = await start_replica(configured(election=LeaderElection(), bind_timeout=20.0))
    await cluster.add_fabric({"s1": [4]})

    def of(name: str) -> Callable[[RequestInfo], bool]:
        return lambda info: info.name == name

    slow = {"stuck": 60.0, "quick-0": 0.5, "quick-1": 0.5}
    faults = [
        cluster.server.faults.add(Delay(seconds), verb="create", resource="pods/binding", where=of(name))
        for name, seconds in slow.items()
    ]
    gang = {"gang-name": "quick", "gang-size": "2"}
    await cluster.apply(objects.pod("stuck", 1), *(objects.pod(f"quick-{number}", 1, gang) for number in range(2)))
    await cluster.wait_for(lambda: all(rule.struck for rule in faults), 10, "three binds in flight")
    stopping = asyncio.create_task(leader.stop())

    async def marked() -> bool:
        pods = [await cluster.api.get("pods", f"quick-{number}") for number in range(2)]
        return any(
            condition["type"] == GANG_COMPLETE for pod in pods for condition in pod["status"].get("conditions", [])
        )

    try:
        await cluster.wait_until(marked, 4, "the gang marked")
        assert not stopping.done()
    finally:
        await stopping
    assert await holder(cluster) == ""


@pytest.mark.only("embedded")
async def test_a_leader_that_cannot_renew_stops_before_its_lease_ends(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    leader = await start_replica(CANDIDATE)
    await cluster.add_fabric({"s1": [4]})
    rule = cluster.server.faults.add(Refuse(503), verb="update", resource="leases")
    await cluster.wait_for(lambda: not leader.daemon.leading.is_set(), 5, "it stops leading")
    renewed = (await cluster.api.get(*LEASE))["spec"]["renewTime"]
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_pods("team", 4)

    async def none_bound() -> bool:
        return not any(pod["spec"].get("nodeName") for pod in await cluster.pods_of("team"))

    await cluster.holds_for(1.0, none_bound, "a replica that does not lead does not bind")
    assert (await cluster.api.get(*LEASE))["spec"]["renewTime"] == renewed
    cluster.server.faults.remove(rule)
    await leader.wait_leading(20)
    await cluster.wait_bound("team", 4)


async def test_replicas_that_come_and_go_under_load_lose_nothing(cluster: Cluster, start_replica: StartReplica) -> None:
    await cluster.add_fabric({"s1": [4, 4, 4, 4], "s2": [4, 4, 4, 4]})
    replica, standby = await pair(start_replica)
    for number in range(6):
        await cluster.apply(objects.gang(f"gang{number}", 4, run=0.3))
        await cluster.apply(*(objects.pod(f"single{number}{n}", 1, run=0.3) for n in range(4)))
        if number in (1, 3):
            await asyncio.sleep(0.05)
            await replica.stop()
            replica, standby = standby, await start_replica(CANDIDATE, wait=False)
    for number in range(6):
        await cluster.wait_job_done(f"gang{number}", 60)
    assert replica.alive and standby.alive


async def test_a_lease_that_the_role_does_not_list_is_logged_with_the_rule(
    cluster: Cluster, start_replica: StartReplica, caplog: pytest.LogCaptureFixture
) -> None:
    election = SHORT_LEASE.model_copy(update={"resource_name": "another"})
    replica = await start_replica(configured(election=election), wait=False)
    replica.may_be_refused = True

    def line() -> str:
        return next((text for text in caplog.messages if "cannot contend for the lease" in text), "")

    await cluster.wait_for(line, 20, "the complaint about the lease")
    assert 'cannot get resource "leases"' in line()
    assert "grant create on leases.coordination.k8s.io in namespace kube-system, and get and update on the" in line()
    assert "one called another" in line()
    assert not replica.daemon.leading.is_set()
