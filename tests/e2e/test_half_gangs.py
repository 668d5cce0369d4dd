"""A gang that a leader left partially bound is completed, or gives back what it holds: no third way lasts."""

import asyncio

import pytest

from topo_scheduler.simulation.apiserver import Delay, Refuse, RequestInfo

from . import objects
from .api import Json
from .between import left_partially_bound
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
from .hanging import slow_bindings
from .replica import configured

WHOLE_NODE = 8


def lasting(name: str, members: int) -> Json:
    """A gang whose Job makes evicted pods again and again."""
    job = objects.gang(name, members)
    job["spec"]["backoffLimit"] = 1_000
    return job


async def none_bound(cluster: Cluster, name: str) -> bool:
    return not any(nodes_of(await cluster.pods_of(name)))


async def test_pods_without_owners_do_not_take_the_seats_of_a_partially_bound_gang(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    """They are understood at first sight, the gang's once its Job is listed: nothing is decided before."""
    await cluster.add_fabric({"s1": [4]})
    await left_partially_bound(cluster, trouble, start_replica, objects.gang("team", 4))
    trouble.faults.add(Delay(1.0), verb="list", resource="jobs")
    await cluster.apply(*(objects.pod(f"single{number}", WHOLE_NODE) for number in range(3)))
    await start_replica()
    await cluster.wait_bound("team", 4)
    for number in range(3):
        assert await none_bound(cluster, f"single{number}")


async def test_a_partially_bound_gang_that_ran_complete_stays_though_the_scheduler_restarts(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """Some of its members bear a condition that says so; a gang without that is rolled back."""
    first = await start_replica()
    await cluster.add_fabric({"s1": [4]})
    await cluster.apply(objects.gang("team", 4))
    pods = await cluster.wait_bound("team", 4)

    async def marked() -> bool:
        return sum(map(_ran_complete, await cluster.pods_of("team"))) >= 3

    await cluster.wait_until(marked, 10, "three members marked")
    await first.stop()
    await cluster.api.delete("pods", pods[0]["metadata"]["name"], grace=0)
    await cluster.wait_until(lambda: _only(cluster, "team", 3), 10, "one member lost")
    lost = pods[0]["spec"]["nodeName"]
    await cluster.api.patch("nodes", lost, {"spec": {"unschedulable": True}})
    await start_replica()

    async def three() -> bool:
        return sum(map(bool, nodes_of(await cluster.pods_of("team")))) == 3

    await cluster.holds_for(8.0, three, "it ran complete: nothing is evicted")
    await cluster.api.patch("nodes", lost, {"spec": {"unschedulable": False}})
    await cluster.wait_bound("team", 4)


@pytest.mark.only("embedded")
@pytest.mark.parametrize("stands_back", [False, True], ids=["alone", "behind binds of others"])
async def test_a_leader_that_ends_in_order_marks_the_gangs_that_it_completed_before(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, stands_back: bool
) -> None:
    """A successor would roll back a gang that is not marked, and of which a member is gone by then."""
    leader = await start_replica()
    await cluster.add_fabric({"s1": [4], "s2": [4]})
    if stands_back:
        trouble.faults.add(
            Delay(1.5), verb="create", resource="pods/binding", where=lambda info: info.name.startswith("single")
        )
        await cluster.apply(objects.pod("single", WHOLE_NODE))
        await asyncio.sleep(0.3)
    await cluster.apply(objects.gang("team", 4))
    await cluster.wait_bound("team", 4)
    await leader.stop()
    assert sum(map(_ran_complete, await cluster.pods_of("team"))) == 3


@pytest.mark.only("embedded")
async def test_a_gang_whose_last_bind_ends_while_its_leader_ends_is_marked(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    leader = await start_replica()
    await cluster.add_fabric({"s1": [4]})
    async with slow_bindings(cluster, 1.5) as seen:
        await cluster.apply(objects.gang("team", 4))
        await cluster.wait_until(lambda: _length(seen, 4), 10, "all Bindings on their way")
        await leader.stop()
    pods = await cluster.pods_of("team")
    assert all(nodes_of(pods)) and sum(map(_ran_complete, pods)) == 3


async def _length(seen: list[str], count: int) -> bool:
    return len(set(seen)) >= count


def _ran_complete(pod: Json) -> bool:
    conditions = pod["status"].get("conditions") or []
    return any(
        condition["type"] == "topology.scheduler/GangComplete" and condition["status"] == "True"
        for condition in conditions
    )


async def _only(cluster: Cluster, name: str, count: int) -> bool:
    pods = await cluster.pods_of(name)
    return len(pods) == 4 and sum(map(bool, nodes_of(pods))) == count


async def test_a_partially_bound_gang_without_room_is_rolled_back_by_a_successor(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    await cluster.add_fabric({"s1": [4]})
    await left_partially_bound(cluster, trouble, start_replica, lasting("team", 4))
    free = {node["metadata"]["name"] for node in await cluster.api.list("nodes", None)}
    free -= set(nodes_of(await cluster.pods_of("team")))
    for node in free:
        await cluster.api.patch("nodes", node, {"spec": {"unschedulable": True}})
    await start_replica()
    await cluster.wait_until(lambda: _none(cluster, "team"), 20, "what is bound of it evicted")
    for node in free:
        await cluster.api.patch("nodes", node, {"spec": {"unschedulable": False}})
    await cluster.wait_bound("team", 4, 30)


async def test_a_partially_bound_gang_whose_other_pods_are_gone_gives_its_gpus_back(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    """No controller makes them again, so the successor never has a pod of it to place."""
    await cluster.add_fabric({"s1": [4]})
    said = {"gang-name": "crew", "gang-size": "4"}
    names = [f"crew-{number}" for number in range(4)]
    await left_partially_bound(
        cluster, trouble, start_replica, *(objects.pod(name, WHOLE_NODE, said) for name in names)
    )
    for pod in await cluster.pods_of("crew"):
        if not pod["spec"].get("nodeName"):
            await cluster.api.delete("pods", pod["metadata"]["name"], grace=0)
    assert len(await cluster.pods_of("crew")) == 1
    await start_replica()

    async def gone() -> bool:
        return not await cluster.pods_of("crew")

    await cluster.wait_until(gone, 20, "the bound member evicted")
    await cluster.apply(objects.pod("single", WHOLE_NODE))
    await cluster.wait_bound("single", 1)


async def _none(cluster: Cluster, name: str) -> bool:
    return len(await cluster.pods_of(name)) == 4 and await none_bound(cluster, name)


def budget(pods: int, labels: Json) -> Json:
    """Return a PodDisruptionBudget that allows to evict none of so many pods with these labels."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": pods, "selector": {"matchLabels": labels}},
    }


@pytest.mark.timeout(180)
@pytest.mark.parametrize("guarded", [1, 3])
async def test_the_rollback_of_a_partially_bound_gang_keeps_to_a_disruption_budget(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica, guarded: int
) -> None:
    """What the budget keeps stays bound, and the gang gets no further member; each later rollback tries again."""
    replica = await start_replica(configured(bind_timeout=5.0))
    replica.may_be_refused = True
    await cluster.add_fabric({"s1": [4]})
    attempts: list[str] = []
    trouble.faults.add(Delay(0.0), verb="create", resource="pods/eviction", where=lambda info: _noted(attempts, info))
    trouble.faults.add(
        Refuse(403, message="not this one"),
        verb="create",
        resource="pods/binding",
        where=lambda info: info.name.startswith("team-2-"),
    )
    whole, member = {"batch.kubernetes.io/job-name": "team"}, {"batch.kubernetes.io/job-completion-index": "0"}
    await cluster.apply(budget(guarded, whole if guarded == 3 else member), lasting("team", 4))
    await cluster.wait_until(lambda: _only(cluster, "team", 3), 15, "three of four bound")
    kept = [pod for pod in await cluster.pods_of("team") if pod["spec"].get("nodeName")]
    kept = [pod for pod in kept if guarded == 3 or pod["metadata"]["name"].startswith("team-0-")]
    names = {pod["metadata"]["name"] for pod in kept}
    assert len(kept) == guarded

    async def stay() -> bool:
        bound = [pod for pod in await cluster.pods_of("team") if pod["spec"].get("nodeName")]
        return _identities(bound) == _identities(kept)

    await cluster.wait_until(stay, 20, "only what the budget keeps is bound")
    for pod in kept:
        await cluster.wait_note(pod, "violate the pod's disruption budget", reason="GangRolledBack")
    (missing,) = [pod for pod in await cluster.pods_of("team") if pod["metadata"]["name"].startswith("team-2-")]
    await cluster.wait_note(missing, "is tried again in", reason="FailedScheduling")
    before = len(attempts)
    await cluster.wait_for(lambda: set(attempts[before:]) >= names, 30, "the next rollback tries again")
    await cluster.holds_for(3.0, stay, "they stay, and the gang gets no further member")
    for pod in kept:
        assert not (await cluster.fresh(pod))["metadata"].get("deletionTimestamp")
    await cluster.api.delete("poddisruptionbudgets", "guard")
    await cluster.wait_until(lambda: _none(cluster, "team"), 50, "what is bound of it evicted")


def _noted(names: list[str], info: RequestInfo) -> bool:
    names.append(info.name)
    return False


def _identities(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods if not pod["metadata"].get("deletionTimestamp")}


@pytest.mark.only("embedded")
@pytest.mark.parametrize("fault", [Refuse(403, message="not this one"), Refuse(500), Delay(60.0)], ids=str)
async def test_a_member_that_admission_refuses_or_does_not_answer_holds_nothing(
    cluster: Cluster, start_replica: StartReplica, fault: Refuse | Delay
) -> None:
    """And the pod that would take its node while the gang is still to be completed does not get it."""
    replica = await start_replica(configured(bind_timeout=5.0))
    replica.may_be_refused = True
    await cluster.add_fabric({"s1": [4]})
    rule = cluster.server.faults.add(
        fault, verb="create", resource="pods/binding", where=lambda info: info.name.startswith("team-2-")
    )
    await cluster.apply(lasting("team", 4))
    await cluster.wait_for(lambda: len(cluster.recorder.bound) == 3, 10, "three of four bound")
    await cluster.apply(objects.pod("single", WHOLE_NODE))
    await cluster.wait_note((await cluster.pods_of("single"))[0], "nodes are available")
    assert await none_bound(cluster, "single"), "the node is reserved for the member"
    await cluster.wait_until(lambda: _none(cluster, "team"), 20, "the three evicted")
    await cluster.api.delete("pods", "single", grace=0)
    cluster.server.faults.remove(rule)
    await cluster.wait_bound("team", 4, 60)


async def test_a_member_whose_bind_is_answered_with_a_long_pause_does_not_cost_the_others_their_places(
    cluster: Cluster, trouble: Trouble, start_replica: StartReplica
) -> None:
    """As by a load balancer whose backend is back in a second."""
    replica = await start_replica(configured(bind_timeout=10.0))
    replica.may_be_refused = True
    await cluster.add_fabric({"s1": [4]})
    trouble.faults.add(
        Refuse(503, retry_after=30),
        verb="create",
        resource="pods/binding",
        where=lambda info: info.name.startswith("team-2-"),
        times=1,
    )
    await cluster.apply(objects.gang("team", 4))
    made = {pod["metadata"]["uid"] for pod in await cluster.wait_pods("team", 4)}
    bound = await cluster.wait_bound("team", 4)
    assert {pod["metadata"]["uid"] for pod in bound} == made
