"""Evictions of partially bound gangs: few at once, and those of one namespace don't keep others' waiting."""

import asyncio
from collections import Counter
from typing import Any, cast

from tests.kube.virtual import virtual_time
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.retrying import Slot
from topo_scheduler.kube.writing.evictions import EvictionResult, EvictionStatus
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.runtime.evicting import ROLLBACKS_IN_FLIGHT, ROLLBACKS_OF_NAMESPACE
from topo_scheduler.runtime.executor import Executor, Writers
from topo_scheduler.scheduling.instructions import Evict, PodRef


class SlowEvictor:
    """Takes almost a second for each eviction, too short to count as hanging."""

    def __init__(self) -> None:
        self.flying: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.order: list[str] = []

    async def evict(self, namespace: str, name: str, uid: str, *, slot: Slot) -> EvictionResult:
        async with slot():
            return await self._evict(namespace)

    async def _evict(self, namespace: str) -> EvictionResult:
        self.order.append(namespace)
        self.flying[namespace] += 1
        self.most[namespace] = max(self.most[namespace], self.flying[namespace])
        self.most["all"] = max(self.most["all"], self.flying.total())
        await asyncio.sleep(0.9)
        self.flying[namespace] -= 1
        return EvictionResult(EvictionStatus.EVICTED)


@virtual_time
async def test_rollbacks_of_one_namespace_leave_slots_to_others() -> None:
    evictor, tasks = SlowEvictor(), []
    fields = (*4 * (None,), evictor, *4 * (None,))
    writers = Writers(*cast("tuple[Any, Any, Any, Any, Any, Any, Any, Any, Any]", fields))

    async def confirm(_: object) -> str:
        return ""

    executor = Executor(
        Driver(fabric({"s/l": 1})).engine,
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        workers=48,
        clock=lambda: 0.0,
        wall=lambda: 0.0,
        start=lambda work, name: tasks.append(asyncio.create_task(work, name=name)),
        changed=lambda: None,
        confirm=confirm,
    )
    for namespace, count in (("evil", 200), ("worse", 200), ("victim", 2)):
        for number in range(count):
            executor.carry_out(Evict(PodRef(namespace, f"p{number}", f"{namespace}-{number}"), "no room"))
    await asyncio.gather(*tasks)
    assert evictor.most["evil"] == ROLLBACKS_OF_NAMESPACE
    not_reserved = ROLLBACKS_IN_FLIGHT - reserved_of(ROLLBACKS_IN_FLIGHT)
    assert evictor.most["worse"] >= not_reserved - ROLLBACKS_OF_NAMESPACE
    assert evictor.most["all"] == not_reserved + 1, "the victim has one of the reserve"
    assert max(n for n, namespace in enumerate(evictor.order) if namespace == "victim") < 3 * ROLLBACKS_IN_FLIGHT
