"""Pods that recovery reads before it moves them."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from tests.kube.virtual import virtual_time
from tests.kube.world import world
from topo_scheduler.recovery.controller.pod_reader import PodReader
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Refuse


@virtual_time
async def test_a_pod_is_read_again_while_a_load_balancer_answers_404() -> None:
    async with world() as w:
        uid = w.create_pod("pod").metadata.uid
        runner = cast(Any, SimpleNamespace(client=w.client))
        rule = w.server.faults.add(Refuse(404))
        reading = asyncio.create_task(PodReader.read(runner, PodRef("default", "pod", uid)))
        await asyncio.sleep(2)
        w.server.faults.remove(rule)
        pod = await reading
        assert pod is not None and pod.metadata.uid == uid
        w.remove_pod("pod")
        assert await PodReader.read(runner, PodRef("default", "pod", uid)) is None
