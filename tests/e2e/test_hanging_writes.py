"""A webhook that hangs on every write of a few namespaces delays no other namespace, and no renewal of the Lease."""

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
PODS_OF_NAMESPACE = 16
ATTACK_SECONDS = 12.0
DELAY_SECONDS = 5.0
"""Far more than a bind takes on a busy machine, far less than a bind that hangs: 20 s."""


def about_them(info: RequestInfo) -> bool:
    """Whether a request is a write about them that the scheduler may send; the test itself creates pods."""
    return info.namespace in NAMESPACES and info.verb not in ("get", "list", "watch") and info.full_resource != "pods"


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
    trouble.faults.add(Delay(60.0), resource=resource, where=about_them)
    for number in range(PODS_OF_NAMESPACE):
        for name in NAMESPACES:
            await cluster.apply(objects.pod(f"stuck-{number}", 1 if number % 2 else 64, namespace=name))
    delays: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < ATTACK_SECONDS:
        name, applied = f"victim-{len(delays)}", time.monotonic()
        await cluster.apply(objects.pod(name, 0))
        await cluster.wait_bound(name, 1, 40)
        delays.append(time.monotonic() - applied)
        await asyncio.sleep(0.5)
    trouble.faults.clear()
    lease = (await cluster.api.get("leases", "topology-scheduler", "kube-system"))["spec"]
    assert max(delays) < DELAY_SECONDS, delays
    assert lease.get("leaseTransitions") == transitions
