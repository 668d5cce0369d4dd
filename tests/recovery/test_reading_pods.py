"""Pods that an earlier process placed, one of which can't be read: those of other namespaces are read all the same."""

import asyncio
import gc
from collections.abc import Sequence
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.kube.owner_objects import create_ray_cluster
from tests.kube.virtual import virtual_time
from tests.kube.world import World, world
from tests.recovery.runners import runner_of
from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.reading.pods import READ_SECONDS, read_pod
from topo_scheduler.recovery.controller.pod_reader import (
    CONCURRENT_READS,
    LARGE_AGAIN_SECONDS,
    LARGE_PODS_OF_NAMESPACE,
    READ_AGAIN_SECONDS,
)
from topo_scheduler.recovery.controller.runner import RecoveryRunner
from topo_scheduler.recovery.model.instructions import LearnPods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Delay, Refuse


class Machine:
    """Records which pods were read, and which could not be."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.unread_pods: list[str] = []
        self.pods_read: list[str] = []
        self.ignored: set[str] = set()
        """Uids of pods for which nothing waits."""
        self.ended: set[str] = set()
        """Uids of pods that hold no resources any more."""
        self.migrations = self
        """The part of the machine that is told which pods could not be read."""

    def learned(self, uids: Sequence[str]) -> None:
        self.read += uids

    def unread(self, pod: PodRef, reason: str, at: float) -> None:
        self.unread_pods.append(pod.name)

    def awaits(self, pod: PodRef) -> bool:
        return pod.uid not in self.ignored

    def holds_resources(self, uid: str) -> bool:
        return uid not in self.ended

    def pods_told(self, pods: Sequence[Pod], at: float) -> None:
        self.pods_read += [pod.metadata.name for pod in pods]


def reading(w: World, tasks: list[asyncio.Task[Any]]) -> tuple[RecoveryRunner, Machine]:
    machine = Machine()
    runner = runner_of(
        w, machine, lambda work, name: tasks.append(asyncio.create_task(work, name=name)), control=machine
    )
    return runner, machine


@virtual_time
async def test_other_pods_are_read_although_one_can_not_be(caplog: pytest.LogCaptureFixture) -> None:
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
        assert sorted(machine.pods_read) == ["fine", "mine"], "the engine gets each at once"
        assert machine.read == [mine.metadata.uid]
        await asyncio.sleep(READ_SECONDS)
        assert machine.read[1:] == [fine.metadata.uid]
        assert machine.unread_pods == ["hostile"]
        (warning,) = [record for record in caplog.records if "can't be moved" in record.message]
        assert warning.__dict__["namespace"] == "hostile", "the budget of the log is one of each namespace"
        started = len(tasks)
        for _ in range(100):
            runner._executor.carry_out(LearnPods(pods[:1]))
        assert len(tasks) == started, "it is being read already"
        w.server.faults.remove(rule)
        await asyncio.sleep(READ_AGAIN_SECONDS + 1)
        assert machine.pods_read[2:] == ["hostile"] and machine.read[2:] == [hostile.metadata.uid]
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


@virtual_time
async def test_pods_are_read_a_few_at_a_time_and_each_is_given_to_the_engine_at_once() -> None:
    """Their author decides how large they are."""
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        pods = [w.create_pod(f"pod-{number}") for number in range(12)]
        w.server.faults.add(Delay(1.0), resource="pods")
        runner._executor.carry_out(
            LearnPods(tuple(PodRef("default", pod.metadata.name, pod.metadata.uid) for pod in pods))
        )
        at_once = CONCURRENT_READS - reserved_of(CONCURRENT_READS)
        for second in range(4):
            assert len(machine.pods_read) == second * at_once and not machine.read
            await asyncio.sleep(1.05)
        assert len(machine.pods_read) == 12 and len(machine.read) == 12


@virtual_time
async def test_a_pod_is_not_kept_while_its_owners_are_read() -> None:
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        create_ray_cluster(w, "whole")
        owner = w.server.store.get("rayclusters.ray.io", "whole", "default").obj
        reference: dict[str, Any] = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "name": "whole",
            "controller": True,
        }
        reference["uid"] = owner["metadata"]["uid"]
        uid = w.create_pod("pod", ownerReferences=[reference]).metadata.uid
        w.server.faults.add(Delay(3.0), where=lambda info: "/rayclusters/" in info.path)
        count = 0

        async def counted(*arguments: Any) -> Pod | None:
            nonlocal count
            count += 1
            return await read_pod(*arguments)

        def kept() -> bool:
            return any(isinstance(item, Pod) and item.metadata.uid == uid for item in gc.get_objects())

        with patch("topo_scheduler.recovery.controller.pod_reader.read_pod", counted):
            runner._executor.carry_out(LearnPods((PodRef("default", "pod", uid),)))
            await asyncio.sleep(1)
            assert count == 1 and not kept() and not machine.pods_read
            await asyncio.sleep(5)
        assert count == 2 and machine.pods_read == ["pod"] and machine.read == [uid]


@virtual_time
async def test_a_pod_that_is_too_large_is_read_again_after_a_minute_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        container = {"name": "main", "image": "train", "env": [{"name": "E", "value": "x" * 10_000}]}
        w.server.store.create("pods", {"metadata": {"name": "large"}, "spec": {"containers": [container]}}, "default")
        large, small = w.pod("large").metadata, w.create_pod("small").metadata
        monkeypatch.setattr("topo_scheduler.kube.reading.pods.MAX_POD_BYTES", 8_000)
        runner._executor.carry_out(LearnPods(tuple(PodRef("default", pod.name, pod.uid) for pod in (large, small))))
        await asyncio.sleep(LARGE_AGAIN_SECONDS - 1)
        assert machine.read == [small.uid] and machine.unread_pods == ["large"]
        assert runner._executor.reader.reading == {large.uid}
        w.remove_pod("large")
        await asyncio.sleep(2)
        assert machine.read == [small.uid, large.uid] and not runner._executor.reader.reading
        assert all(task.done() for task in tasks)


def create_large(w: World, count: int) -> list[PodRef]:
    """Create pods of more than 8,000 bytes, which the tests below take as too large."""
    container = {"name": "main", "image": "train", "env": [{"name": "E", "value": "x" * 10_000}]}
    for number in range(count):
        pod = {"metadata": {"name": f"large-{number}"}, "spec": {"containers": [container]}}
        w.server.store.create("pods", pod, "default")
    return [PodRef("default", f"large-{number}", w.pod(f"large-{number}").metadata.uid) for number in range(count)]


@virtual_time
async def test_pods_that_are_too_large_are_read_only_while_a_migration_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their Migrations may be gone, or their resources free: any user can have a large pod read."""
    monkeypatch.setattr("topo_scheduler.kube.reading.pods.MAX_POD_BYTES", 8_000)
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        awaited, ignored, ended = create_large(w, 3)
        runner._executor.carry_out(LearnPods((awaited, ignored, ended)))
        await asyncio.sleep(LARGE_AGAIN_SECONDS - 1)
        assert machine.unread_pods == ["large-0", "large-1", "large-2"]
        machine.ignored.add(ignored.uid)
        machine.ended.add(ended.uid)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert machine.unread_pods[3:] == ["large-0"]
        assert machine.read == [ended.uid], "it is gone"
        assert runner._executor.reader.reading == {awaited.uid}
        machine.ignored.add(awaited.uid)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert all(task.done() for task in tasks)
        assert not runner._executor.reader.reading and not runner._executor.reader._large


@virtual_time
async def test_a_pod_that_is_gone_is_not_read_again() -> None:
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        pod = w.create_pod("pod").metadata
        w.server.faults.add(Refuse(503), resource="pods")
        runner._executor.carry_out(LearnPods((PodRef("default", "pod", pod.uid),)))
        await asyncio.sleep(READ_SECONDS + 1)
        machine.ended.add(pod.uid)
        await asyncio.sleep(READ_AGAIN_SECONDS)
        assert machine.unread_pods == ["pod"] and machine.read == [pod.uid]
        assert all(task.done() for task in tasks) and not runner._executor.reader.reading


@virtual_time
async def test_few_pods_that_are_too_large_are_read_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topo_scheduler.kube.reading.pods.MAX_POD_BYTES", 8_000)
    async with world() as w:
        tasks: list[asyncio.Task[Any]] = []
        runner, machine = reading(w, tasks)
        pods = create_large(w, LARGE_PODS_OF_NAMESPACE + 4)
        for pod in pods:
            runner._executor.carry_out(LearnPods((pod,)))
        for minute in range(4):
            await asyncio.sleep(LARGE_AGAIN_SECONDS if minute else 1)
            assert len(machine.unread_pods) == len(pods) + minute * LARGE_PODS_OF_NAMESPACE
        assert all(machine.unread_pods.count(pod.name) == 3 for pod in pods), "in turn"
        machine.ended.update(pod.uid for pod in pods)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert all(task.done() for task in tasks)
