"""Pending pods of which the engine has a reference only are read from the API server."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

from tests.kube.virtual import virtual_time
from tests.kube.world import World, world
from topo_scheduler.api.objects import Pod
from topo_scheduler.runtime.pending_pod_reader import PendingPodReader
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Refuse


class _Scene:
    """A reader, and the engine that wants pods."""

    def __init__(self, w: World) -> None:
        self.wanted: set[str] = set()
        self.came: list[Pod] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.later: list[str] = []
        outside = SimpleNamespace(is_being_read=self.wanted.__contains__, read_later=self._read_later)
        engine = SimpleNamespace(arrivals=SimpleNamespace(outside=outside), pods_applied=self._applied)
        self.reader = PendingPodReader(cast("Any", engine), w.client, lambda: 0.0, self._start, lambda: None)

    def _applied(self, pods: list[Pod], now: float) -> None:
        self.came += pods
        self.wanted.difference_update(pod.metadata.uid for pod in pods)

    def _read_later(self, uid: str) -> None:
        self.wanted.discard(uid)
        self.later.append(uid)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def refused_once(self, w: World) -> str:
        """Let the API server refuse the first read of a pod, and then no more; return the uid of the pod."""
        uid = w.create_pod("pod").metadata.uid
        rule = w.server.faults.add(Refuse(403))
        await self.read(uid)
        assert not self.came
        w.server.faults.remove(rule)
        return uid

    async def read(self, uid: str, name: str = "pod") -> None:
        self.wanted.add(uid)
        self.reader.read(PodRef("default", name, uid))
        await asyncio.sleep(1)


@virtual_time
async def test_a_pod_is_read_again_until_the_api_server_answers() -> None:
    async with world() as w:
        scene = _Scene(w)
        uid = await scene.refused_once(w)
        await asyncio.gather(*scene.tasks)
        assert [pod.metadata.uid for pod in scene.came] == [uid]


@virtual_time
async def test_a_pod_that_the_watch_reported_meanwhile_is_not_passed_on() -> None:
    async with world() as w:
        scene = _Scene(w)
        scene.wanted.discard(await scene.refused_once(w))
        await asyncio.gather(*scene.tasks)
        assert not scene.came


@virtual_time
async def test_a_pod_that_is_gone_or_another_one_of_its_name_is_not_passed_on() -> None:
    async with world() as w:
        scene = _Scene(w)
        w.create_pod("pod")
        await scene.read("another")
        await scene.read("uid", "absent")
        await asyncio.gather(*scene.tasks)
        assert not scene.came
        assert scene.later == ["another", "uid"], "unless the watch reports their deletion"


@virtual_time
async def test_a_pod_that_can_not_be_read_lets_the_others_go_first() -> None:
    async with world() as w:
        uid, scene = w.create_pod("pod").metadata.uid, _Scene(w)
        w.server.faults.add(Refuse(403))
        await scene.read(uid)
        await asyncio.gather(*scene.tasks)
        assert scene.later == [uid]
        assert not scene.came
