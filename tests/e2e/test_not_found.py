"""A 404 does not prove that a pod or its owner is gone: webhooks and load balancers without a backend answer so."""

import asyncio

from topo_scheduler.simulation.apiserver import Refuse, RequestInfo

from . import objects
from .cluster import Cluster, leaves_of
from .conftest import StartReplica, Trouble
from .priority_classes import create_priority_classes
from .replica import Replica

STORM_SECONDS = 4.0


async def test_pods_whose_binds_are_answered_404_for_a_while_are_bound_then(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [8]})
    rule = trouble.faults.add(Refuse(404), verb="create", resource="pods/binding")
    await cluster.apply(objects.pod("single", 8), objects.gang("train", 4))
    await cluster.wait_for(lambda: rule.struck >= 2, 10, "binds are answered 404")
    await asyncio.sleep(STORM_SECONDS)
    assert rule.struck < 40
    trouble.faults.remove(rule)
    await cluster.wait_bound("single", 1, 20)
    assert len(leaves_of(await cluster.wait_bound("train", 4, 20))) == 1
    assert daemon.alive


async def test_a_gang_is_completed_although_a_webhook_answers_404_for_a_member(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [4]})
    trouble.faults.add(
        Refuse(404, message="no such tenant"),
        verb="create",
        resource="pods/binding",
        where=lambda info: info.name.startswith("train-3-"),
        times=1,
    )
    await cluster.apply(objects.gang("train", 4))
    before = await cluster.wait_pods("train", 4)
    after = await cluster.wait_bound("train", 4, 20)
    assert {pod["metadata"]["uid"] for pod in before} == {pod["metadata"]["uid"] for pod in after}, "none is evicted"
    (refused,) = [pod for pod in after if pod["metadata"]["name"].startswith("train-3-")]
    await cluster.wait_note(refused, "no such tenant", reason="BindFailed")


async def test_a_rollback_that_a_webhook_answers_with_404_is_repeated(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    daemon.may_be_refused = True
    await cluster.add_fabric({"s1": [4]})
    binds = trouble.faults.add(
        Refuse(403, message="not this one"),
        verb="create",
        resource="pods/binding",
        where=lambda info: info.name.startswith("team-1-"),
    )
    evictions = trouble.faults.add(Refuse(404, message="no such tenant"), verb="create", resource="pods/eviction")
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_pods("team", 2)
    await cluster.wait_note(pods[0], "can't be evicted yet: no such tenant", reason="GangRolledBack", timeout=30)
    trouble.faults.remove(evictions)

    async def evicted() -> bool:
        return not any(pod["metadata"]["uid"] == pods[0]["metadata"]["uid"] for pod in await cluster.pods_of("team"))

    await cluster.wait_until(evicted, 30, "the bound member evicted")
    trouble.faults.remove(binds)
    await cluster.wait_bound("team", 2, 40)


async def test_a_preemptor_takes_other_victims_where_an_eviction_is_answered_404(
    cluster: Cluster, trouble: Trouble, daemon: Replica
) -> None:
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [2]})
    trouble.faults.add(Refuse(404), verb="create", resource="pods/eviction", times=1)
    await cluster.apply(*(objects.pod(f"low-{n}", 8, priorityClassName="e2e-low") for n in range(2)))
    await cluster.wait_bound("low", 2)
    await cluster.apply(objects.pod("urgent", 8, priorityClassName="e2e-high"))
    await cluster.wait_bound("urgent", 1, 15)
    assert len(await cluster.pods_of("low")) == 1


async def test_404_for_all_that_the_scheduler_reads_and_writes_loses_no_pod(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    """Only watches, lists and the Lease work, so that the scheduler goes on and believes what it can."""
    daemon = await start_replica()
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [2], "s2": [4]})
    slowly = cluster.let_pods_end_slowly(0.5)
    low = [
        objects.pod(f"low-{n}", 8, slowly, priorityClassName="e2e-low", terminationGracePeriodSeconds=1)
        for n in range(6)
    ]
    await cluster.apply(*low)
    await cluster.wait_bound("low", 6)
    made = asyncio.Event()

    def is_hit(info: RequestInfo) -> bool:
        if not made.is_set() or info.resource == "leases" or info.verb in ("list", "watch"):
            return False
        return info.verb == "get" or info.subresource in ("binding", "eviction", "status")

    rule = trouble.faults.add(Refuse(404), where=is_hit)
    await cluster.apply(objects.gang("urgent", 2, priorityClassName="e2e-high"))
    made.set()
    await asyncio.sleep(2 * STORM_SECONDS)
    struck = rule.struck
    trouble.faults.remove(rule)
    assert 0 < struck < 200
    await cluster.wait_bound("urgent", 2, 60)
    assert daemon.alive
