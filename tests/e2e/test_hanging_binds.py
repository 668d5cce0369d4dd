"""Binds that hang in one namespace, as behind a webhook that does not answer, hold up nobody else's."""

import asyncio

import pytest

from topo_scheduler.simulation.apiserver import Delay

from . import objects
from .cluster import Cluster, nodes_of
from .conftest import StartReplica, Trouble
from .replica import configured

pytestmark = pytest.mark.timeout(300)

HANGING = 200
PROMPT_SECONDS = 10.0
"""Until the pods of others are bound; it took a minute and more when all binds shared one queue."""


async def test_two_hundred_binds_that_hang_hold_up_no_other_namespace(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.add_fabric({"s1": [16, 16]})
    await cluster.add_namespace("e2e-tenant")
    trouble.faults.add(
        Delay(60.0), verb="create", resource="pods/binding", where=lambda info: info.name.startswith("stuck-")
    )
    replica = await start_replica(configured(bind_timeout=10.0))
    replica.may_be_refused = True
    for number in range(HANGING):
        await cluster.apply(objects.pod(f"stuck-{number}", 1, namespace="e2e-tenant"))
    await asyncio.sleep(4)
    for round_ in range(3):
        async with asyncio.timeout(PROMPT_SECONDS):
            await cluster.apply(objects.gang(f"gang-{round_}", 8, 1))
            await cluster.apply(objects.pod(f"single-{round_}", 0))
            await cluster.wait_bound(f"single-{round_}", 1)
            await cluster.wait_bound(f"gang-{round_}", 8)
    assert not any(nodes_of(await cluster.pods_of("stuck", "e2e-tenant")))
    trouble.faults.clear()
