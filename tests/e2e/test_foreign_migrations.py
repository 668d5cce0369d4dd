"""A user's Migration that names pods of another namespace fails: they keep running, and no node is reserved."""

from collections.abc import Awaitable, Callable

import pytest

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .recovery import migration, recovery_configuration

HOSTILE = "e2e-hostile"
NAMES = ("with-its-name", "with-another-name", "beside-own")


def users_migration(name: str, *pods: tuple[str, str]) -> Json:
    """Return a Migration in the user's namespace of pods with these names and uids."""
    wanted = migration(name)
    wanted["metadata"]["namespace"] = HOSTILE
    wanted["spec"]["pods"] = [{"name": pod, "uid": uid} for pod, uid in pods]
    return wanted


def name_and_uid(pod: Json) -> tuple[str, str]:
    return pod["metadata"]["name"], pod["metadata"]["uid"]


@pytest.mark.timeout(120)
async def test_a_migration_that_names_the_uid_of_a_foreign_pod_fails_and_reserves_nothing(
    cluster: Cluster, migrations: None, start_replica: StartReplica
) -> None:
    replica = await start_replica(recovery_configuration(force_delete=True))
    await cluster.add_fabric({"s1": [4, 4]})
    await cluster.add_namespace(HOSTILE)
    await cluster.apply(objects.gang("team", 2), objects.gang("own", 2, namespace=HOSTILE))
    team, own = await cluster.wait_bound("team", 2), await cluster.wait_bound("own", 2, namespace=HOSTILE)
    name, uid = name_and_uid(team[0])
    for wanted in (
        users_migration(NAMES[0], (name, uid)),
        users_migration(NAMES[1], (name_and_uid(own[0])[0], uid)),
        users_migration(NAMES[2], name_and_uid(own[0]), (name, uid)),
    ):
        await cluster.api.create("migrations", wanted)
    refused = await cluster.wait_until(ended(cluster), 30, "the three Migrations ended")
    for item in refused:
        assert item["status"]["phase"] == "Failed"
        (condition,) = item["status"]["conditions"]
        assert (condition["status"], condition["reason"]) == ("False", "UnknownPod")
        assert not item["status"].get("moves")
        await cluster.wait_note(item, "is in another namespace than the Migration", reason="MigrationFailed")

    async def untouched() -> bool:
        now = await cluster.pods_of("team") + await cluster.pods_of("own", HOSTILE)
        kept = [name_and_uid(pod) for pod in now] == [name_and_uid(pod) for pod in (*team, *own)]
        return kept and not any(pod["metadata"].get("deletionTimestamp") for pod in now)

    await cluster.holds_for(2.0, untouched, "no pod is evicted")
    assert await replica.metric("topology_scheduler_recovery_evictions_total") == 0
    # No node is reserved: two gangs take the four that are left.
    await cluster.apply(objects.gang("next", 2), objects.gang("last", 2))
    for gang in ("next", "last"):
        assert not set(nodes_of(await cluster.wait_bound(gang, 2))) & set(nodes_of([*team, *own]))


def ended(cluster: Cluster) -> Callable[[], Awaitable[list[Json] | None]]:
    """Return a function that returns the user's Migrations once all of them have ended."""

    async def look() -> list[Json] | None:
        listed = await cluster.api.list("migrations", HOSTILE)
        over = [item for item in listed if (item.get("status") or {}).get("phase") in ("Done", "Failed", "Cancelled")]
        return over if len(over) == len(NAMES) else None

    return look
