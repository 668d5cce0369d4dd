"""A webhook that hangs on every write about a few namespaces takes no connection that the Lease or others need."""

import asyncio
import time

import pytest

from topo_scheduler.api.process import LeaderElection
from topo_scheduler.simulation.apiserver import Delay
from topo_scheduler.simulation.apiserver.requests import RequestInfo

from . import objects
from .cluster import Cluster
from .conftest import StartReplica, Trouble
from .replica import configured

pytestmark = pytest.mark.timeout(300)

NAMESPACES = [f"e2e-t{number}" for number in range(16)]
EACH = 16


def about_them(info: RequestInfo) -> bool:
    return info.namespace in NAMESPACES and info.verb not in ("get", "list", "watch")


@pytest.mark.parametrize("resource", ["pods/binding", None], ids=["binds", "all"])
async def test_writes_of_some_namespaces_hang(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica, resource: str | None
) -> None:
    await cluster.add_fabric({"s1": [16, 16]})
    for name in NAMESPACES:
        await cluster.add_namespace(name)
    replica = await start_replica(configured(election=LeaderElection(), bind_timeout=20.0))
    replica.may_be_refused = True
    transitions = (await cluster.api.get("leases", "topology-scheduler", "kube-system"))["spec"].get("leaseTransitions")
    hang = trouble.faults.add(Delay(60.0), resource=resource, where=about_them)
    for number in range(EACH):
        for name in NAMESPACES:
            await cluster.apply(objects.pod(f"stuck-{number}", 1 if number % 2 else 64, namespace=name))
    took = []
    most = waiters = 0
    renewals = []
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < 30:
        name = f"victim-{number}"
        number += 1
        at = time.monotonic()
        await cluster.apply(objects.pod(name, 0))
        await cluster.wait_bound(name, 1, 40)
        took.append(round(time.monotonic() - at, 2))
        lease = (await cluster.api.get("leases", "topology-scheduler", "kube-system"))["spec"]
        renewals.append(lease["renewTime"])
        connector = replica.client._transport.session.connector
        most = max(most, len(connector._acquired))
        waiters = max(waiters, sum(map(len, connector._waiters.values())))
        await asyncio.sleep(0.5)
    connections = replica.client._transport.session.connector
    print("struck", hang.struck, "took", took, "distinct renewals", len(set(renewals)))
    print("acquired", len(connections._acquired), "limit", connections.limit, "most", most, "waiters", waiters)
    assert lease.get("leaseTransitions") == transitions
    trouble.faults.clear()
    assert sorted(took)[int(len(took) * 0.95)] < 2.0, took
