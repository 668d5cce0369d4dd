"""The condition that a gang ran complete is written behind the binds, and before long."""

import asyncio
from typing import Any, cast

import pytest

from tests.kube.virtual import virtual_time
from tests.scheduling.driver import Driver, fabric
from topo_scheduler.executor import MARK_DELAY_SECONDS, MARK_PATIENCE_SECONDS, Executor, Writers
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.scheduling.instructions import Bind, MarkComplete, PodRef


class Statuses:
    """Notes when marks are written."""

    def __init__(self) -> None:
        self.written: list[float] = []

    async def mark_complete(self, *_: object) -> None:
        self.written.append(asyncio.get_running_loop().time())


@pytest.mark.parametrize(
    ("binds_end", "written"),
    [(0.0, MARK_DELAY_SECONDS), (5.0, 5.0), (60.0, MARK_DELAY_SECONDS + MARK_PATIENCE_SECONDS)],
)
@virtual_time
async def test_marks_stand_back_behind_binds_for_some_seconds(binds_end: float, written: float) -> None:
    statuses, tasks = Statuses(), []
    found = (None, None, None, None, statuses, *3 * (None,))
    writers = Writers(*cast("tuple[Any, Any, Any, Any, Any, Any, Any, Any]", found))

    async def confirm(_: object) -> str:
        return ""

    executor = Executor(
        Driver(fabric({"s/l": 1})).engine,
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        clock=lambda: 0.0,
        wall=lambda: 0.0,
        start=lambda work, name: tasks.append(asyncio.create_task(work, name=name)),
        changed=lambda: None,
        confirm=confirm,
    )
    began = asyncio.get_running_loop().time()
    pod = PodRef("default", "p", "uid-p")
    executor.carry_out(Bind(pod, "node-1", {}, 0.0, 0.0))
    executor.carry_out(MarkComplete(pod))
    work = await executor._binds.take()
    await asyncio.sleep(binds_end)
    executor._binds.done(work, binds_end)
    await asyncio.gather(*tasks)
    assert [at - began for at in statuses.written] == [written]
