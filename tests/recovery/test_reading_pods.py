"""Pods that an earlier process placed, one of which can't be read: those of other namespaces are read all the same."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from tests.kube.virtual import virtual_time
from tests.kube.world import World, world
from tests.recovery.runners import runner_of
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.reading.pods import READ_SECONDS
from topo_scheduler.recovery.controller.pod_reader import READ_AGAIN_SECONDS
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.recovery.model.instructions import LearnPods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Refuse


class Machine:
    """Records which pods were read, and which could not be."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.unread_pods: list[str] = []
        self.pods_read: list[str] = []
        self.migrations = self
        """The part of the machine that is told which pods could not be read."""

    def learned(self, uids: Sequence[str]) -> None:
        self.read += uids

    def unread(self, pod: PodRef, reason: str, at: float) -> None:
        self.unread_pods.append(pod.name)

    def pods_told(self, pods: Sequence[Pod], at: float) -> None:
        self.pods_read += [pod.metadata.name for pod in pods]


def reading(w: World, tasks: list[asyncio.Task[Any]]) -> tuple[RecoveryRunner, Machine]:
    machine = Machine()
    runner = runner_of(
        w, machine, lambda work, name: tasks.append(asyncio.create_task(work, name=name)), control=machine
    )
    return runner, machine


@virtual_time
async def test_other_pods_are_read_although_one_can_not_be() -> None:
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}}, "")
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        hostile, fine = w.create_pod("hostile", "hostile"), w.create_pod("fine", "hostile")
        mine = w.create_pod("mine")
        pods = tuple(
            PodRef(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid) for pod in (hostile, fine, mine)
        )
        rule = w.server.faults.add(Refuse(503), where=lambda info: info.name == "hostile" and info.resource == "pods")
        runner._executor.carry_out(LearnPods(pods))
        await asyncio.sleep(1)
        assert (machine.pods_read, machine.read) == (["mine"], [mine.metadata.uid])
        await asyncio.sleep(READ_SECONDS)
        assert machine.pods_read == ["mine", "fine"] and machine.read[1:] == [fine.metadata.uid]
        assert machine.unread_pods == ["hostile"]
        started = len(tasks)
        for _ in range(100):
            runner._executor.carry_out(LearnPods(pods[:1]))
        assert len(tasks) == started, "it is being read already"
        w.server.faults.remove(rule)
        await asyncio.sleep(READ_AGAIN_SECONDS + 1)
        assert machine.pods_read == ["mine", "fine", "hostile"] and machine.read[2:] == [hostile.metadata.uid]
        assert all(task.done() for task in tasks) and not runner._executor.reader.reading


@virtual_time
async def test_pods_are_not_read_any_more_once_recovery_is_off() -> None:
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        pod = w.create_pod("pod")
        w.server.faults.add(Refuse(503), resource="pods")
        runner._executor.carry_out(LearnPods((PodRef("default", "pod", pod.metadata.uid),)))
        await asyncio.sleep(2 * READ_SECONDS)
        assert machine.unread_pods
        cast("Any", runner)._machine = None
        await asyncio.sleep(2 * (READ_SECONDS + READ_AGAIN_SECONDS))
        assert all(task.done() for task in tasks) and not runner._executor.reader.reading
