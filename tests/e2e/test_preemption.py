"""Pods of higher priority are given room: nominated, their victims evicted and told why; budgets are respected."""

from collections.abc import Mapping

from . import objects
from .api import Json
from .cluster import Cluster, leaves_of, nodes_of
from .priority_classes import create_priority_classes
from .replica import Replica

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
    return next((one for one in conditions if one["type"] == "DisruptionTarget" and one["status"] == "True"), None)


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

    gone = await cluster.wait_until(going, 10, "two victims marked")
    assert {pod["spec"]["nodeName"] for pod in gone} == promised
    assert all(pod["metadata"].get("deletionTimestamp") for pod in gone)
    for pod in gone:
        condition = target(pod)
        assert condition is not None
        assert condition["message"].endswith(": preempting to accommodate a higher priority pod")
        event = await cluster.wait_note(
            pod, "Preempted by gang default/urgent, pod default/urgent-", reason="Preempted"
        )
        assert event["type"] == "Normal"
        assert event["note"].endswith(f"on node {pod['spec']['nodeName']}")
    # Meanwhile the room is nobody else's.
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
        found = await cluster.api.get("poddisruptionbudgets", "guard", "default")
        return bool((found.get("status") or {}).get("currentHealthy"))

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

    await cluster.holds_for(1.0, stays, "nobody is evicted for it")
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
