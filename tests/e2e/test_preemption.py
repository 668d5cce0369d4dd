"""Pods of higher priority are given room: nominated, their victims evicted and told why; budgets are respected."""

import asyncio
from collections.abc import Mapping

import pytest

from topo_scheduler.simulation.apiserver import Delay, Refuse

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .conftest import StartReplica, Trouble
from .priority_classes import create_priority_classes
from .replica import Replica, configured

ENDING = 3.0
"""Seconds a victim takes to end."""


def low(name: str, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> Json:
    """A pod of low priority on a whole node that has its time to end."""
    item = objects.pod(name, 8, annotations, priorityClassName="e2e-low", terminationGracePeriodSeconds=int(ENDING))
    item["metadata"]["labels"] = dict(labels or {})
    return item


async def fill(cluster: Cluster, count: int, labels: Mapping[str, str] | None = None) -> list[Json]:
    """Fill nodes with pods of low priority; return them bound, in order of name."""
    slowly = cluster.let_pods_end_slowly(ENDING)
    await cluster.apply(*(low(f"low-{n}", slowly, labels) for n in range(count)))
    return await cluster.wait_bound("low", count)


def target(pod: Json) -> Json | None:
    """The condition DisruptionTarget of a pod."""
    conditions = pod["status"].get("conditions") or []
    return next(
        (
            condition
            for condition in conditions
            if condition["type"] == "DisruptionTarget" and condition["status"] == "True"
        ),
        None,
    )


async def test_a_gang_of_high_priority_clears_one_leaf(cluster: Cluster, daemon: Replica) -> None:
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [2, 2]})
    victims = await fill(cluster, 4)
    await cluster.apply(objects.gang("urgent", 2, 8, priorityClassName="e2e-high"))
    members = await cluster.wait_pods("urgent", 2)

    async def nominated() -> list[Json]:
        pods = [await cluster.fresh(pod) for pod in members]
        return pods if all(pod["status"].get("nominatedNodeName") for pod in pods) else []

    promised = {pod["status"]["nominatedNodeName"] for pod in await cluster.wait_until(nominated, 10, "both nominated")}
    assert len(promised) == 2
    assert len({node.rsplit("-", 1)[0] for node in promised}) == 1, "one leaf"

    async def going() -> list[Json]:
        pods = [await cluster.fresh(pod) for pod in victims]
        marked = [pod for pod in pods if (target(pod) or {}).get("reason") == "PreemptionByScheduler"]
        return marked if len(marked) == 2 else []

    evicted = await cluster.wait_until(going, 10, "two victims marked")
    assert {pod["spec"]["nodeName"] for pod in evicted} == promised
    assert all(pod["metadata"].get("deletionTimestamp") for pod in evicted)
    for pod in evicted:
        condition = target(pod)
        assert condition is not None
        assert condition["message"].endswith(": preempting to accommodate a higher priority pod")
        event = await cluster.wait_note(
            pod, "Preempted by gang default/urgent, pod default/urgent-", reason="Preempted"
        )
        assert event["type"] == "Normal"
        assert event["note"].endswith(f"on node {pod['spec']['nodeName']}")
    # Meanwhile no other pod may use the room.
    await cluster.apply(low("thief"))
    (thief,) = await cluster.wait_pods("thief", 1)
    await cluster.wait_unschedulable(thief)
    bound = await cluster.wait_bound("urgent", 2, 20)
    assert set(nodes_of(bound)) == promised
    assert len(leaves_of(bound)) == 1
    stayed = [pod for pod in await cluster.pods_of("low") if not pod["metadata"].get("deletionTimestamp")]
    assert len(stayed) == 2
    assert not any(target(pod) for pod in stayed)

    async def cleared() -> bool:
        pods = [await cluster.fresh(pod) for pod in bound]
        return not any(pod["status"].get("nominatedNodeName") for pod in pods)

    await cluster.wait_until(cleared, 5, "no nomination left on what is bound")
    assert await daemon.metric("topology_scheduler_preemption_victims_total", outcome="evicted") == 2
    assert await daemon.metric("topology_scheduler_preemption_victims_total", outcome="failed") == 0


async def test_a_budget_is_respected_and_named(cluster: Cluster, daemon: Replica) -> None:
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [1]})
    (guarded,) = await fill(cluster, 1, {"app": "guarded"})
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guard", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    }
    await cluster.apply(budget)

    async def looked_at() -> bool:
        guard = await cluster.api.get("poddisruptionbudgets", "guard", "default")
        return bool((guard.get("status") or {}).get("currentHealthy"))

    await cluster.wait_until(looked_at, 20, "the budget has a status")
    await cluster.apply(objects.pod("urgent", 8, priorityClassName="e2e-high"))
    (urgent,) = await cluster.wait_pods("urgent", 1)
    await cluster.wait_note(
        urgent, "may not be evicted now: PodDisruptionBudget default/guard", reason="FailedScheduling"
    )
    fresh = await cluster.fresh(guarded)
    assert not fresh["metadata"].get("deletionTimestamp")
    assert not target(fresh)
    # Others are not held up by it.
    await cluster.add_nodes([objects.node("more", spine="s1", leaf="l1", gpus=2, model="H100")])
    await cluster.apply(objects.pod("small", 1))
    await cluster.wait_bound("small", 1)
    await cluster.api.delete("poddisruptionbudgets", "guard")
    await cluster.wait_bound("urgent", 1)


async def test_a_pod_that_may_not_preempt_waits(cluster: Cluster, daemon: Replica) -> None:
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [1]})
    (victim,) = await fill(cluster, 1)
    await cluster.apply(objects.pod("patient", 8, priorityClassName="e2e-patient"))
    (patient,) = await cluster.wait_pods("patient", 1)
    await cluster.wait_unschedulable(patient)

    async def stays() -> bool:
        fresh = await cluster.fresh(victim)
        waiting = await cluster.fresh(patient)
        return not fresh["metadata"].get("deletionTimestamp") and not waiting["status"].get("nominatedNodeName")

    await cluster.holds_for(1.0, stays, "no pod is evicted for it")
    await cluster.api.delete("pods", "low-0", grace=0)
    await cluster.wait_bound("patient", 1)


async def test_a_nomination_of_another_scheduler_is_respected(cluster: Cluster, daemon: Replica) -> None:
    await create_priority_classes(cluster)
    await cluster.add_fabric({"s1": [1]})
    await cluster.apply(objects.pod("theirs", 8, scheduler="another", priorityClassName="e2e-high"))
    await cluster.api.patch("pods", "theirs", {"status": {"nominatedNodeName": "s1-l1-1"}}, subresource="status")
    await cluster.apply(low("mine"))
    (mine,) = await cluster.wait_pods("mine", 1)
    await cluster.wait_unschedulable(mine)
    await cluster.api.delete("pods", "theirs", grace=0)
    await cluster.wait_bound("mine", 1)


async def test_gangs_of_rising_priority_all_get_their_room(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica
) -> None:
    """More victims than may be evicted at once: the next gang plans while evictions for the one before still wait."""
    ranks, size = 5, 16
    daemon = await start_replica()
    await create_priority_classes(cluster, ranks)
    await cluster.add_fabric({"s1": [size] * (ranks + 1)})
    await fill(cluster, size * (ranks + 1))
    trouble.faults.add(Delay(0.1), verb="create", resource="pods/eviction")
    for rank in range(ranks):
        await asyncio.sleep(0.15)
        await cluster.apply(objects.gang(f"rank-{rank}", size, 8, priorityClassName=f"e2e-rank-{rank}"))
    for rank in range(ranks):
        assert len(leaves_of(await cluster.wait_bound(f"rank-{rank}", size, 60))) == 1
    stayed = [pod for pod in await cluster.pods_of("low") if not pod["metadata"].get("deletionTimestamp")]
    assert len(stayed) == size
    # One whose first answer came too late is gone when it is requested again.
    outcomes = [
        await daemon.metric("topology_scheduler_preemption_victims_total", outcome=outcome)
        for outcome in ("evicted", "gone")
    ]
    assert sum(outcomes) == ranks * size


@pytest.mark.parametrize("how", ["hang", "refuse"])
async def test_a_namespace_whose_evictions_fail_does_not_keep_others_from_being_evicted(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica, how: str
) -> None:
    replica = await start_replica()
    replica.may_be_refused = True
    await create_priority_classes(cluster)
    await cluster.add_namespace("e2e-evil")
    await cluster.add_fabric({"s1": [8]})
    await fill(cluster, 1)
    await asyncio.sleep(2)  # of equal pods the one that ran shortest goes first
    for number in range(7):
        await cluster.apply(objects.pod(f"evil-{number}", 8, namespace="e2e-evil", priorityClassName="e2e-low"))
    await cluster.wait_bound("evil", 7, namespace="e2e-evil")
    fault = Delay(60.0) if how == "hang" else Refuse(403, message="no")
    trouble.faults.add(fault, verb="create", resource="pods/eviction", where=lambda info: info.namespace == "e2e-evil")
    await cluster.apply(objects.pod("urgent", 8, priorityClassName="e2e-high"))
    await cluster.wait_bound("urgent", 1, 20)
    trouble.faults.clear()
    assert len(await cluster.pods_of("evil", "e2e-evil")) == 7


async def test_binds_that_hang_yield_to_pods_of_higher_priority(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica
) -> None:
    replica = await start_replica(configured(bind_timeout=5.0))
    replica.may_be_refused = True
    await create_priority_classes(cluster)
    await cluster.add_namespace("e2e-evil")
    await cluster.add_fabric({"s1": [4]})
    trouble.faults.add(
        Delay(60.0), verb="create", resource="pods/binding", where=lambda info: info.namespace == "e2e-evil"
    )
    for number in range(4):
        await cluster.apply(objects.pod(f"evil-{number}", 8, namespace="e2e-evil", priorityClassName="e2e-low"))

    async def sent() -> bool:
        return await replica.metric("topology_scheduler_binds_in_flight") >= 4

    await cluster.wait_until(sent, 10, "their binds are under way")
    await cluster.apply(objects.pod("urgent", 8, priorityClassName="e2e-high"))
    await cluster.wait_bound("urgent", 1, 30)
    trouble.faults.clear()
