"""A gang that cannot be completed gives back what it holds."""

import pytest

from topo_scheduler.simulation.apiserver import Refuse

from . import objects
from .api import Json
from .between import caught_between, crew
from .cluster import Cluster, nodes_of
from .conftest import StartReplica

pytestmark = pytest.mark.only("embedded")  # only there can a bind be held up at will


async def _the_bound_one(cluster: Cluster, name: str) -> Json:
    async def one() -> Json | None:
        return next((pod for pod in await cluster.pods_of(name) if pod["spec"].get("nodeName")), None)

    return await cluster.wait_until(one, 10, "one of two bound")


async def test_members_of_a_gang_that_has_no_room_any_more_are_evicted(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    _, node = await caught_between(cluster, start_replica, {"s1": [2]}, objects.gang("team", 2))
    await cluster.api.delete("nodes", node)
    bound = await _the_bound_one(cluster, "team")
    await cluster.wait_note(bound, "could not be completed: 1 of 2 members were bound", reason="GangRolledBack")

    async def none_bound() -> bool:
        pods = await cluster.pods_of("team")
        return len(pods) == 2 and not any(nodes_of(pods))

    await cluster.wait_until(none_bound, 15, "the bound member evicted, and made again by its Job")
    await cluster.add_nodes([objects.node("late", spine="s1", leaf="l1", model="H100")])
    await cluster.wait_bound("team", 2)


async def test_bare_members_are_evicted_too_and_say_so(cluster: Cluster, start_replica: StartReplica) -> None:
    _, node = await caught_between(cluster, start_replica, {"s1": [2]}, *crew())
    await cluster.api.delete("nodes", node)
    bound = await _the_bound_one(cluster, "crew")
    await cluster.wait_note(bound, "This pod has no controller: create it again", reason="GangRolledBack")

    async def gone() -> bool:
        return not any(nodes_of(await cluster.pods_of("crew")))

    await cluster.wait_until(gone, 10, "the bound member evicted: half a gang holds its room to no purpose")
    await cluster.add_nodes([objects.node("late", spine="s1", leaf="l1", model="H100")])
    (again,) = [pod for pod in crew() if pod["metadata"]["name"] == bound["metadata"]["name"]]
    await cluster.apply(again)
    await cluster.wait_bound("crew", 2, 30)


async def test_members_whose_gang_is_refused_for_good_are_evicted(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """Admission refuses one member whatever node it is to have: the other must not hold its GPUs for ever."""
    replica = await start_replica()
    replica.may_be_refused = True
    await cluster.add_fabric({"s1": [4]})
    refusing = cluster.server.faults.add(
        Refuse(403, message="not this one"),
        verb="create",
        resource="pods/binding",
        where=lambda info: info.name.startswith("team-1-"),
    )
    await cluster.apply(objects.gang("team", 2))
    pods = await cluster.wait_pods("team", 2)
    await cluster.wait_note(pods[1], "not this one", reason="BindFailed")
    await cluster.wait_note(pods[0], "could not be completed: 1 of 2 members were bound", reason="GangRolledBack")

    async def evicted() -> bool:
        return not any(pod["metadata"]["uid"] == pods[0]["metadata"]["uid"] for pod in await cluster.pods_of("team"))

    await cluster.wait_until(evicted, 10, "the bound member evicted")
    cluster.server.faults.remove(refusing)
    assert len(set(nodes_of(await cluster.wait_bound("team", 2, 40)))) == 2
