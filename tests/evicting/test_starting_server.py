"""The API server starts again during a preemption: no victim is given up, and no other is evicted in its place."""

import asyncio

import pytest

from tests.evicting.eviction_scenes import eviction_scene
from tests.kube.owner_objects import POD_TEMPLATE, create_object
from tests.kube.virtual import virtual_time
from tests.kube.world import world
from topo_scheduler.api.reasons import Reason
from topo_scheduler.simulation.apiserver import Refuse

SIZE = 8
LEAVES = 4
REFUSAL = 'pods "p" is forbidden: User "topo" cannot create resource "pods/eviction" in API group ""'


@pytest.mark.parametrize("seconds", [1.0, 3.5])
@virtual_time
async def test_no_more_pods_are_evicted_than_needed(seconds: float) -> None:
    async with world() as w:
        job = create_object(w, "jobs.batch", "train", spec={"template": POD_TEMPLATE})
        async with eviction_scene(w, job, SIZE, nodes=SIZE * LEAVES) as e:
            # Three pods are evicted; then the server answers all requests without roles.
            refusal = Refuse(403, message=REFUSAL)
            starting = w.server.faults.add(refusal, where=lambda _: e.running <= SIZE * LEAVES - 3)
            asyncio.get_running_loop().call_later(seconds, w.server.faults.remove, starting)
            for _ in range(8):
                e.decide()
                await asyncio.sleep(1)
            await e.settled()
            assert starting.struck
            assert e.running == SIZE * (LEAVES - 1)
            assert e.events.reasons == [Reason.PREEMPTED] * SIZE
            assert e.counted() == {"evicted": SIZE}
