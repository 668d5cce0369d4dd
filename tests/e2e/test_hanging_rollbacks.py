"""Partially bound gangs whose evictions hang, in five namespaces, keep no gang of another one partially bound."""

import asyncio
import time

import pytest

from topo_scheduler.simulation.apiserver import Delay, Refuse

from . import objects
from .cluster import Cluster
from .conftest import StartReplica, Trouble
from .replica import configured

pytestmark = pytest.mark.timeout(300)

EVIL = [f"e2e-evil-{name}" for name in "abcde"]
HALF_SECONDS = 9.0
"""A gang is half for 5 s at most, by the scheduler's clock, until it is rolled back."""


async def test_rollbacks_that_hang(trouble: Trouble, cluster: Cluster, start_replica: StartReplica) -> None:
    await cluster.add_fabric({"s1": [16, 16]})
    for name in EVIL:
        await cluster.add_namespace(name)
    replica = await start_replica(configured(bind_timeout=5.0))
    replica.may_be_refused = True
    trouble.faults.add(
        Refuse(403, message="no"), verb="create", resource="pods/binding", where=lambda info: "-11-" in info.name
    )
    trouble.faults.add(
        Refuse(403, message="no"), verb="create", resource="pods/binding", where=lambda info: "victim-3-" in info.name
    )
    trouble.faults.add(Delay(60.0), verb="create", resource="pods/eviction", where=lambda i: i.namespace in EVIL)
    for name in EVIL:
        await cluster.apply(objects.gang("evil", 12, 1, namespace=name))

    async def bound(name: str, namespace: str) -> int:
        pods = await cluster.pods_of(name, namespace)
        return sum(bool(p["spec"].get("nodeName")) and not p["metadata"].get("deletionTimestamp") for p in pods)

    async def evil_half() -> bool:
        return all([await bound("evil", name) >= 8 for name in EVIL])

    await cluster.wait_until(evil_half, 30, "the evil gangs are partially bound")
    await asyncio.sleep(7)
    await cluster.apply(objects.gang("victim", 4, 1))

    async def half() -> bool:
        return await bound("victim", "default") >= 1

    async def gone() -> bool:
        return not await bound("victim", "default")

    await cluster.wait_until(half, 20, "the victim is partially bound")
    began = time.monotonic()
    await cluster.wait_until(gone, 60, "it is rolled back")
    took = time.monotonic() - began
    trouble.faults.clear()
    assert took < HALF_SECONDS
