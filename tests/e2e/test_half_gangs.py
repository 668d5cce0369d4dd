"""A gang that a leader left half bound is completed, or gives back what it holds: no third way lasts."""

from topo_scheduler.simulation.apiserver import Delay

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica
from .replica import configured

WHOLE_NODE = 8


async def half_bound(cluster: Cluster, start_replica: StartReplica, *items: Json, name: str) -> None:
    """Have a leader bind some of a gang of four and end; its successor finds them and nothing else."""
    first = await start_replica(configured(max_binds_in_flight=1))
    await cluster.apply(*items)
    await cluster.wait_for(lambda: bool(cluster.recorder.bound), 10, "the first member bound")
    await first.kill()
    pods = await cluster.pods_of(name)
    assert 0 < sum(map(bool, nodes_of(pods))) < 4, "some bound, not all"


async def none_bound(cluster: Cluster, name: str) -> bool:
    return not any(nodes_of(await cluster.pods_of(name)))


async def test_pods_without_owners_do_not_take_the_seats_of_a_half_bound_gang(
    cluster: Cluster, start_replica: StartReplica
) -> None:
    """They are understood at first sight, the gang's once its Job is listed: nothing is decided before."""
    await cluster.add_fabric({"s1": [4]})
    await half_bound(cluster, start_replica, objects.gang("team", 4), name="team")
    if cluster.embedded:
        cluster.server.faults.add(Delay(1.0), verb="list", resource="jobs")
    await cluster.apply(*(objects.pod(f"single{number}", WHOLE_NODE) for number in range(3)))
    await start_replica()
    await cluster.wait_bound("team", 4)
    for number in range(3):
        assert await none_bound(cluster, f"single{number}")
