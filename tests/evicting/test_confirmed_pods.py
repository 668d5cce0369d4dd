"""Confirmations of pods before evictions for others: few at once, whatever their metadata has."""

import asyncio

from tests.kube.virtual import now, virtual_time
from tests.kube.world import world
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.resources import POD_METADATA
from topo_scheduler.runtime.owner_confirmation import CONCURRENT_READS, Existence
from topo_scheduler.simulation.apiserver import Delay
from topo_scheduler.simulation.apiserver.requests import RequestInfo


@virtual_time
async def test_few_pods_are_confirmed_at_once() -> None:
    async with world() as w:
        began: list[float] = []

        def note(info: RequestInfo) -> bool:
            began.append(now())
            return True

        pods = [w.create_pod(f"pod-{number}").metadata for number in range(40)]
        w.server.faults.add(Delay(1.0), where=note)
        existing = Existence(w.client, POD_METADATA, now)
        reasons = await asyncio.gather(*(existing.refusal("default", pod.name, pod.uid) for pod in pods))
        assert reasons == 40 * [""]
        at_once = max(sum(at <= other < at + 0.9 for other in began) for at in began)
        assert at_once == CONCURRENT_READS - reserved_of(CONCURRENT_READS)
