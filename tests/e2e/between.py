"""The moment between a decision and its bind, held open: on the embedded server only."""

from collections.abc import Mapping, Sequence

from topo_scheduler.simulation.apiserver import Delay, RequestInfo

from . import objects
from .api import Json
from .cluster import Cluster
from .conftest import StartReplica
from .replica import configured


def crew() -> list[Json]:
    """Two bare pods that are a gang, of a node each."""
    said = {"gang-name": "crew", "gang-size": "2"}
    return [objects.pod(f"crew-{number}", 8, said) for number in range(2)]


async def caught_between(
    cluster: Cluster, start_replica: StartReplica, shape: Mapping[str, Sequence[int]], *items: Json
) -> tuple[str, str]:
    """Have a gang of two of which the first bind is slow and the second waits for it: its pod, and its node.

    Only one bind at a time is written.
    """
    replica = await start_replica(configured(max_binds_in_flight=1))
    await cluster.add_fabric(shape)
    written: list[str] = []

    def first(info: RequestInfo) -> bool:
        written.append(info.name)
        return True

    cluster.server.faults.add(Delay(0.5), verb="create", resource="pods/binding", where=first, times=1)
    await cluster.apply(*items)
    await cluster.wait_for(lambda: written, 10, "the first bind on its way")
    term = replica.daemon.term
    assert term is not None
    seats = {m.name: m.node for workload in term.engine.workloads for m in workload.members.values()}
    (second,) = seats.keys() - set(written)
    return second, seats[second]
