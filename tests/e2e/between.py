"""Moments held open: between a decision and its bind (on the embedded server only), and a gang left partially bound."""

from collections.abc import Mapping, Sequence

from topo_scheduler.simulation.apiserver import Delay, RequestInfo

from . import objects
from .api import Json
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
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


async def left_partially_bound(cluster: Cluster, trouble: Trouble, start_replica: StartReplica, *gang: Json) -> None:
    """Have a leader bind one member of a gang (a Job, or its pods), and be killed before it binds the others.

    These never take effect: what a successor finds is one bound member.
    """
    passed: list[str] = []

    def later(info: RequestInfo) -> bool:
        passed.append(info.name)
        return info.name != passed[0]

    rule = trouble.faults.add(Delay(600.0), verb="create", resource="pods/binding", where=later)
    first = await start_replica(configured(max_binds_in_flight=1))
    await cluster.apply(*gang)
    await cluster.wait_for(lambda: rule.struck > 0, 10, "a second bind on its way")
    await first.kill()
    trouble.faults.remove(rule)
    pods = [pod for job in gang for pod in await cluster.pods_of(job["metadata"]["name"])]
    assert sum(map(bool, nodes_of(pods))) == 1, "one bound, not all"
