"""Two schedulers in one cluster: each carries out the Migrations of its own pods, and leaves all others alone."""

import asyncio
from typing import Any, Final

import pytest

from topo_scheduler.api.config import Configuration
from topo_scheduler.recovery.controller import runner

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .objects import SCHEDULER
from .recovery import migration, recovery_configuration, undeleted_pods
from .replica import Replica

OTHER: Final = "other"
MAINTENANCE: Final = {"key": "topology.scheduler/maintenance", "effect": "NoSchedule"}


@pytest.fixture(autouse=True)
def answers_come_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scheduler without recovery looks for Migrations several times a second."""
    monkeypatch.setattr(runner, "ANSWER_SECONDS", 0.2)


def other_configuration(**spec: Any) -> Configuration:
    """Return the configuration of the second scheduler, which has another name."""
    configuration = recovery_configuration(**spec)
    scheduler = configuration.scheduler.model_copy(update={"scheduler_name": OTHER})
    return Configuration(scheduler, configuration.topology)


async def run_gang(cluster: Cluster, name: str, scheduler: str = SCHEDULER) -> list[Json]:
    """Run a gang of two pods, and return them."""
    await cluster.apply(objects.gang(name, 2, scheduler=scheduler))
    return await cluster.wait_bound(name, 2)


async def wait_for_phase(cluster: Cluster, name: str, *phases: str) -> Json:
    """Wait until a Migration is in one of these phases, and return it."""

    async def reached() -> Json | None:
        current = await cluster.api.get("migrations", name)
        return current if (current.get("status") or {}).get("phase") in phases else None

    return await cluster.wait_until(reached, 30, f"Migration {name} in phase {' or '.join(phases)}")


async def wait_for_reason(cluster: Cluster, name: str, reason: str) -> Json:
    """Wait until a condition of a Migration has a reason, and return the Migration."""

    async def answered() -> Json | None:
        current = await cluster.api.get("migrations", name)
        return current if reason in reasons_of(current) else None

    return await cluster.wait_until(answered, 20, f"Migration {name} with the reason {reason}")


def reasons_of(item: Json) -> list[str]:
    """Return the reasons of the conditions of a Migration."""
    return [condition["reason"] for condition in (item.get("status") or {}).get("conditions") or []]


async def reporters_on(cluster: Cluster, item: Json) -> set[str]:
    """Return the schedulers that posted events on an object."""
    events = await cluster.api.list("events", "default")
    on_it = [event for event in events if event.get("regarding", {}).get("uid") == item["metadata"]["uid"]]
    return {event["reportingController"] for event in on_it}


async def evictions(replica: Replica) -> float:
    """Return how many evictions a scheduler has requested for Migrations."""
    return await replica.metric("topology_scheduler_recovery_evictions_total")


async def test_each_scheduler_carries_out_the_migrations_of_its_own_pods(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    first = await start_replica(recovery_configuration())
    second = await start_replica(other_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    for name, scheduler in (("mine", SCHEDULER), ("theirs", OTHER)):
        pods = await run_gang(cluster, name, scheduler)
        for number, pod in enumerate(pods):
            moved = await cluster.api.create("migrations", migration(f"{name}-{number}", pod["metadata"]["name"]))
            done = await wait_for_phase(cluster, moved["metadata"]["name"], "Done", "Failed", "Cancelled")
            assert (done["status"]["phase"], done["status"].get("schedulerName")) == ("Done", scheduler), done["status"]
            assert await reporters_on(cluster, done) <= {scheduler}
        assert len(await undeleted_pods(cluster, name)) == 2
    assert (await evictions(first), await evictions(second)) == (2, 2)


async def test_a_migration_that_no_scheduler_can_carry_out_is_refused_by_one(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    await start_replica(recovery_configuration())
    await start_replica(other_configuration())
    await cluster.add_fabric({"s1": [4, 4]})
    pods = await run_gang(cluster, "theirs", OTHER)
    await cluster.occupy("s1-l2-4")
    for name, refused_by, named in (
        ("nobody", SCHEDULER, ["nobody"]),
        ("another", "", ["held-s1-l2-4"]),
        ("mixed", OTHER, [pods[0]["metadata"]["name"], "held-s1-l2-4"]),
        ("claimed", SCHEDULER, [pods[0]["metadata"]["name"]]),
    ):
        wanted = migration(name, *named)
        if name == "claimed":
            wanted["spec"]["schedulerName"] = SCHEDULER
        created = await cluster.api.create("migrations", wanted)
        if refused_by:
            failed = await wait_for_phase(cluster, name, "Failed")
            assert failed["status"]["schedulerName"] == refused_by
            assert await reporters_on(cluster, created) <= {refused_by}
    assert "NotOurs" in reasons_of(await cluster.api.get("migrations", "claimed"))
    assert not (await cluster.api.get("migrations", "another")).get("status"), "it awaits the scheduler of its pod"
    assert nodes_of(await undeleted_pods(cluster, "theirs")) == nodes_of(pods)


@pytest.mark.parametrize("enabled", [True, False])
async def test_a_plan_of_one_scheduler_is_left_alone_by_the_other(
    cluster: Cluster, migrations: None, start_replica: StartReplica, *, enabled: bool
) -> None:
    await start_replica(recovery_configuration(dry_run=True))
    second = await start_replica(other_configuration(enabled=enabled))
    await cluster.add_fabric({"s1": [4, 4]})
    mine, theirs = await run_gang(cluster, "mine"), await run_gang(cluster, "theirs", OTHER)
    taints = {"spec": {"unschedulable": True, "taints": [MAINTENANCE]}}
    await cluster.api.patch("nodes", nodes_of(mine)[0], taints)

    async def made() -> list[Json]:
        return await cluster.api.list("migrations", None)

    (planned,) = await cluster.wait_until(made, 20, "a Migration for the node")
    assert planned["spec"]["schedulerName"] == SCHEDULER
    name = planned["metadata"]["name"]
    await wait_for_reason(cluster, name, "DryRun")

    async def unchanged() -> bool:
        (current,) = await cluster.api.list("migrations", None)
        return bool(current["status"]["phase"] == "Planned" and reasons_of(current) == ["DryRun"])

    await cluster.holds_for(2.0, unchanged, "the other scheduler leaves the plan alone")
    assert await reporters_on(cluster, planned) <= {SCHEDULER}
    # The same for a Migration that a user makes, which names no scheduler.
    await cluster.api.create("migrations", migration("asked", mine[1]["metadata"]["name"]))
    await wait_for_reason(cluster, "asked", "DryRun")
    await asyncio.sleep(1.0)
    assert reasons_of(await cluster.api.get("migrations", "asked")) == ["DryRun"]
    # The second one still answers for its own pods.
    await cluster.api.create("migrations", migration("moved", theirs[0]["metadata"]["name"]))
    if enabled:
        answered = await wait_for_phase(cluster, "moved", "Done")
    else:
        answered = await wait_for_reason(cluster, "moved", "RecoveryDisabled")
    assert answered["status"]["schedulerName"] == OTHER
    assert await evictions(second) == float(enabled)
