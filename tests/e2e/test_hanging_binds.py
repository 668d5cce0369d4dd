"""Binds that hang in one namespace, as behind a webhook that does not answer, hold up those of no other namespace."""

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


WAVES = [[f"e2e-w{wave}{name}" for name in "abc"] for wave in range(2)]
PODS_OF_NAMESPACE = 45
WAVE_SECONDS = 4.0
"""From one wave to the next: by then the binds of the first one are known to hang, and have stand-ins."""
VICTIMS = 12
DELAY_SECONDS = 5.0
"""Far more than a bind takes on a busy machine, far less than a bind that hangs: 20 s."""


async def test_two_waves_of_three_namespaces_whose_binds_hang_hold_up_no_other_namespace(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.add_fabric({"s1": [16, 16]})
    names = [name for wave in WAVES for name in wave]
    for name in names:
        await cluster.add_namespace(name)
    trouble.faults.add(Delay(60.0), verb="create", resource="pods/binding", where=lambda info: info.namespace in names)
    replica = await start_replica(configured(bind_timeout=20.0))
    replica.may_be_refused = True
    await cluster.apply(objects.pod("first", 0))
    await cluster.wait_bound("first", 1)
    for wave in WAVES:
        for name in wave:
            pods = (objects.pod(f"stuck-{number}", 0, namespace=name) for number in range(PODS_OF_NAMESPACE))
            await asyncio.gather(*map(cluster.apply, pods))
        await asyncio.sleep(WAVE_SECONDS)
    for number in range(VICTIMS):
        async with asyncio.timeout(DELAY_SECONDS):
            await cluster.apply(objects.pod(f"victim-{number}", 0))
            await cluster.wait_bound(f"victim-{number}", 1)
        await asyncio.sleep(0.5)
    trouble.faults.clear()


MEMBERS, LET_THROUGH = 80, 10
HALF_SECONDS = 9.0
"""A gang is half for 5 s at most, by the scheduler's clock, until it is rolled back; it took more than a minute."""


async def test_a_gang_whose_members_wait_behind_hanging_binds_is_rolled_back_in_time(
    trouble: Trouble, cluster: Cluster, start_replica: StartReplica
) -> None:
    await cluster.add_fabric({"s1": [16]})
    hanging = {f"train-{number}-" for number in range(LET_THROUGH, MEMBERS)}

    def hangs(name: str) -> bool:
        return any(name.startswith(prefix) for prefix in hanging)

    trouble.faults.add(Delay(60.0), verb="create", resource="pods/binding", where=lambda info: hangs(info.name))
    replica = await start_replica(configured(bind_timeout=10.0))
    replica.may_be_refused = True
    await cluster.apply(objects.gang("train", MEMBERS, 1))
    pods = await cluster.wait_pods("train", MEMBERS, 60)
    uids = {pod["metadata"]["uid"] for pod in pods}

    async def bound() -> int:
        alive = [
            pod
            for pod in await cluster.pods_of("train")
            if pod["metadata"]["uid"] in uids and not pod["metadata"].get("deletionTimestamp")
        ]
        return sum(map(bool, nodes_of(alive)))

    async def is_half() -> bool:
        return await bound() >= LET_THROUGH

    async def is_gone() -> bool:
        return not await bound()

    await cluster.wait_until(is_half, 30, "members are bound")
    began = asyncio.get_running_loop().time()
    await cluster.wait_until(is_gone, 60, "they are evicted")
    took = asyncio.get_running_loop().time() - began
    assert took < HALF_SECONDS
    trouble.faults.clear()
