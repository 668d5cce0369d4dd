"""One tenant's workload does not stop the rest: the daemon stays up, and the others are bound."""

import pytest

from topo_scheduler.scheduling import barrier

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .replica import Replica

DIGITS = "9" * 5000


def many_kinds(name: str, size: int) -> list[Json]:
    """A gang of bare pods none of which asks what another does."""
    annotations = {"gang-name": name, "gang-size": str(size)}
    pods = []
    for number in range(size):
        pod = objects.pod(f"{name}-{number}", 0, annotations, cpu=f"{10 + number}m")
        pod["metadata"]["labels"] = {"job-name": name}
        pods.append(pod)
    return pods


def comparing(name: str, operator: str, value: str) -> Json:
    """A pod whose preferred node affinity compares a label with a value of any length."""
    pod = objects.pod(name, 1)
    expression = {"key": "size", "operator": operator, "values": [value]}
    preferred = {"weight": 1, "preference": {"matchExpressions": [expression]}}
    pod["spec"]["affinity"] = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [preferred]},
    }
    return pod


async def test_numbers_of_any_length_and_gangs_of_many_kinds_stop_no_other_pod(
    cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(comparing("gt", "Gt", DIGITS), comparing("lt", "Lt", f"-{DIGITS}"))
    await cluster.apply(*many_kinds("many", 140))
    await cluster.apply(objects.gang("victim", 2))
    await cluster.wait_bound("victim", 2, 30)
    await cluster.wait_bound("gt", 1)
    await cluster.wait_bound("lt", 1)
    assert daemon.alive


@pytest.fixture
def small_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what is too much be reached by few pods."""
    monkeypatch.setattr(barrier, "ATTEMPT_OPERATIONS", 400)


async def test_a_search_that_costs_too_much_ends_with_an_event_and_a_metric(
    small_budgets: None, cluster: Cluster, daemon: Replica
) -> None:
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.apply(*many_kinds("many", 24))
    pods = await cluster.wait_pods("many", 24)
    event = await cluster.wait_note(pods[0], "The scheduler retries in", reason="SearchTooExpensive")
    assert "more than 400 operations" in event["note"]
    await cluster.wait_unschedulable(pods[0])
    await cluster.apply(objects.pod("victim", 8))
    await cluster.wait_bound("victim", 1)
    assert not any(nodes_of(await cluster.pods_of("many")))
    name = "topology_scheduler_workload_failures_total"
    assert await daemon.metric(name, phase="decision", kind="operations") >= 1
    assert await daemon.metric(name, kind="fault") == 0
