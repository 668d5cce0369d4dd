"""Pods that an earlier process placed, one of which can't be read: those of other namespaces are read all the same."""

import asyncio
import gc
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import patch

import pytest

from tests.kube.owner_objects import create_ray_cluster
from tests.kube.virtual import virtual_time
from tests.kube.world import World, world
from tests.recovery.runners import runner_of
from topo_scheduler.api.objects import ObjectMeta, Pod
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.reading.pods import READ_SECONDS, read_pod
from topo_scheduler.recovery.controller.pod_reader import (
    CONCURRENT_READS,
    LARGE_AGAIN_SECONDS,
    LARGE_PODS_OF_NAMESPACE,
    READ_AGAIN_SECONDS,
)
from topo_scheduler.recovery.model.instructions import LearnPods
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.simulation.apiserver import Delay, Refuse


class Machine:
    """Records which pods were read, and which could not be."""

    def __init__(self) -> None:
        self.read: list[str] = []
        self.unread_pods: list[str] = []
        self.reasons: list[tuple[str, str]] = []
        """The Migrations that learn on their own that a pod can't be read, with the reason."""
        self.pods_read: list[str] = []
        self.ignored: set[str] = set()
        """Uids of pods for which nothing waits."""
        self.ended: set[str] = set()
        """Uids of pods that hold no resources any more."""
        self.migrations = self
        """The part of the machine that learns which pods could not be read."""

    def learned(self, uids: Sequence[str]) -> None:
        self.read += uids

    def unread(self, pod: PodRef, reason: str, at: float, migration: str = "") -> None:
        if migration:
            self.reasons.append((migration, reason))
        else:
            self.unread_pods.append(pod.name)

    def awaits(self, pod: PodRef) -> bool:
        return pod.uid not in self.ignored

    def holds_resources(self, uid: str) -> bool:
        return uid not in self.ended

    def pods_reported(self, pods: Sequence[Pod], at: float) -> None:
        self.pods_read += [pod.metadata.name for pod in pods]


class Reader:
    """A runner of recovery in a world, with the tasks that it starts.

    Args:
        w: an API server.
    """

    def __init__(self, w: World) -> None:
        self.w = w
        self.machine = Machine()
        self.tasks: list[asyncio.Task[Any]] = []
        self.runner = runner_of(w, self.machine, self._start, control=self.machine)

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    def learn(self, *pods: ObjectMeta, migration: str = "") -> None:
        """Recovery asks for pods, for a Migration or none."""
        references = (PodRef(pod.namespace, pod.name, pod.uid) for pod in pods)
        self.runner._executor.carry_out(LearnPods(tuple(references), migration))

    @property
    def idle(self) -> bool:
        """Whether nothing is read, and nothing will be."""
        reader = self.runner._executor.reader
        return all(task.done() for task in self.tasks) and not reader.reading and not reader._large

    def create_large(self, count: int) -> list[ObjectMeta]:
        """Create pods of more than 8,000 bytes."""
        container = {"name": "main", "image": "train", "env": [{"name": "E", "value": "x" * 10_000}]}
        for number in range(count):
            pod = {"metadata": {"name": f"large-{number}"}, "spec": {"containers": [container]}}
            self.w.server.store.create("pods", pod, "default")
        return [self.w.pod(f"large-{number}").metadata for number in range(count)]


@asynccontextmanager
async def reading() -> AsyncIterator[Reader]:
    """Give a reader in a world of its own, and end that."""
    async with world() as w:
        yield Reader(w)


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods of more than 8,000 bytes are too large."""
    monkeypatch.setattr("topo_scheduler.kube.reading.pods.MAX_POD_BYTES", 8_000)


@virtual_time
async def test_other_pods_are_read_although_one_can_not_be(caplog: pytest.LogCaptureFixture) -> None:
    async with reading() as r:
        r.w.server.store.create("namespaces", {"metadata": {"name": "hostile"}}, "")
        hostile, fine = (r.w.create_pod(name, "hostile").metadata for name in ("hostile", "fine"))
        mine = r.w.create_pod("mine").metadata
        rule = r.w.server.faults.add(Refuse(503), where=lambda info: info.name == "hostile" and info.resource == "pods")
        r.learn(hostile, fine, mine)
        await asyncio.sleep(1)
        assert sorted(r.machine.pods_read) == ["fine", "mine"], "the engine gets each at once"
        assert r.machine.read == [mine.uid]
        await asyncio.sleep(READ_SECONDS)
        assert r.machine.read[1:] == [fine.uid]
        assert r.machine.unread_pods == ["hostile"]
        (warning,) = [record for record in caplog.records if "can't be moved" in record.message]
        assert warning.__dict__["namespace"] == "hostile", "the budget of the log is one of each namespace"
        started = len(r.tasks)
        for _ in range(100):
            r.learn(hostile)
        assert len(r.tasks) == started, "it is being read already"
        r.w.server.faults.remove(rule)
        await asyncio.sleep(READ_AGAIN_SECONDS + 1)
        assert r.machine.pods_read[2:] == ["hostile"] and r.machine.read[2:] == [hostile.uid]
        assert r.idle


@virtual_time
async def test_pods_are_not_read_any_more_once_recovery_is_off() -> None:
    async with reading() as r:
        pod = r.w.create_pod("pod").metadata
        r.w.server.faults.add(Refuse(503), resource="pods")
        r.learn(pod)
        await asyncio.sleep(2 * READ_SECONDS)
        assert r.machine.unread_pods
        cast("Any", r.runner)._machine = None
        await asyncio.sleep(2 * (READ_SECONDS + READ_AGAIN_SECONDS))
        assert r.idle


@virtual_time
async def test_pods_are_read_a_few_at_a_time_and_each_is_given_to_the_engine_at_once() -> None:
    """Their author decides how large they are."""
    async with reading() as r:
        pods = [r.w.create_pod(f"pod-{number}").metadata for number in range(12)]
        r.w.server.faults.add(Delay(1.0), resource="pods")
        r.learn(*pods)
        at_once = CONCURRENT_READS - reserved_of(CONCURRENT_READS)
        for second in range(4):
            assert len(r.machine.pods_read) == second * at_once and not r.machine.read
            await asyncio.sleep(1.05)
        assert len(r.machine.pods_read) == 12 and len(r.machine.read) == 12


@virtual_time
async def test_a_pod_is_not_kept_while_its_owners_are_read() -> None:
    async with reading() as r:
        create_ray_cluster(r.w, "whole")
        owner = r.w.server.store.get("rayclusters.ray.io", "whole", "default").obj
        reference: dict[str, Any] = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "name": "whole",
            "controller": True,
        }
        reference["uid"] = owner["metadata"]["uid"]
        pod = r.w.create_pod("pod", ownerReferences=[reference]).metadata
        r.w.server.faults.add(Delay(3.0), where=lambda info: "/rayclusters/" in info.path)
        count = 0

        async def counted(*arguments: Any) -> Pod | None:
            nonlocal count
            count += 1
            return await read_pod(*arguments)

        def kept() -> bool:
            return any(isinstance(item, Pod) and item.metadata.uid == pod.uid for item in gc.get_objects())

        with patch("topo_scheduler.recovery.controller.pod_reader.read_pod", counted):
            r.learn(pod)
            await asyncio.sleep(1)
            assert count == 1 and not kept() and not r.machine.pods_read
            await asyncio.sleep(5)
        assert count == 2 and r.machine.pods_read == ["pod"] and r.machine.read == [pod.uid]


@pytest.mark.usefixtures("small_limit")
@virtual_time
async def test_a_pod_that_is_too_large_is_read_again_after_a_minute_only() -> None:
    async with reading() as r:
        (large,), small = r.create_large(1), r.w.create_pod("small").metadata
        r.learn(large, small)
        await asyncio.sleep(LARGE_AGAIN_SECONDS - 1)
        assert r.machine.read == [small.uid] and r.machine.unread_pods == ["large-0"]
        assert r.runner._executor.reader.reading.keys() == {large.uid}
        r.w.remove_pod("large-0")
        await asyncio.sleep(2)
        assert r.machine.read == [small.uid, large.uid] and r.idle


@pytest.mark.usefixtures("small_limit")
@virtual_time
async def test_pods_that_are_too_large_are_read_only_while_a_migration_waits() -> None:
    """Their Migrations may be gone, or their resources free: any user can have a large pod read."""
    async with reading() as r:
        awaited, ignored, ended = r.create_large(3)
        r.learn(awaited, ignored, ended)
        await asyncio.sleep(LARGE_AGAIN_SECONDS - 1)
        assert r.machine.unread_pods == ["large-0", "large-1", "large-2"]
        r.machine.ignored.add(ignored.uid)
        r.machine.ended.add(ended.uid)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert r.machine.unread_pods[3:] == ["large-0"]
        assert r.machine.read == [ended.uid], "it is gone"
        assert r.runner._executor.reader.reading.keys() == {awaited.uid}
        r.machine.ignored.add(awaited.uid)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert r.idle


@virtual_time
async def test_a_pod_that_is_gone_is_not_read_again() -> None:
    async with reading() as r:
        pod = r.w.create_pod("pod").metadata
        r.w.server.faults.add(Refuse(503), resource="pods")
        r.learn(pod)
        await asyncio.sleep(READ_SECONDS + 1)
        r.machine.ended.add(pod.uid)
        await asyncio.sleep(READ_AGAIN_SECONDS)
        assert r.machine.unread_pods == ["pod"] and r.machine.read == [pod.uid]
        assert r.idle


@pytest.mark.usefixtures("small_limit")
@virtual_time
async def test_few_pods_that_are_too_large_are_read_again_at_once() -> None:
    async with reading() as r:
        pods = r.create_large(LARGE_PODS_OF_NAMESPACE + 4)
        for pod in pods:
            r.learn(pod)
        for minute in range(4):
            await asyncio.sleep(LARGE_AGAIN_SECONDS if minute else 1)
            assert len(r.machine.unread_pods) == len(pods) + minute * LARGE_PODS_OF_NAMESPACE
        assert all(r.machine.unread_pods.count(pod.name) == 3 for pod in pods), "in turn"
        r.machine.ended.update(pod.uid for pod in pods)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert r.idle


@pytest.mark.usefixtures("small_limit")
@virtual_time
async def test_a_second_migration_gets_the_reason_of_a_pod_that_is_too_large_at_once() -> None:
    """Otherwise it waits for the next read, a minute or more: users decide how many of their pods come first."""
    async with reading() as r:
        pods = r.create_large(LARGE_PODS_OF_NAMESPACE + 4)
        r.learn(*pods, migration="hostile/first")
        r.learn(*pods, migration="default/early")
        assert not r.machine.reasons, "they are being read, and may be readable"
        await asyncio.sleep(1)
        assert len(r.machine.unread_pods) == len(pods) and not r.machine.reasons, "all that wait get this answer"
        started = len(r.tasks)
        r.learn(*pods, migration="default/second")
        assert [migration for migration, _ in r.machine.reasons] == ["default/second"] * len(pods)
        assert all("it has more than" in reason for _, reason in r.machine.reasons)
        r.learn(*pods)
        assert len(r.machine.reasons) == len(pods) and len(r.tasks) == started
        r.machine.ended.update(pod.uid for pod in pods)
        await asyncio.sleep(LARGE_AGAIN_SECONDS)
        assert r.idle, "the reasons go with the pods"


@virtual_time
async def test_a_second_migration_gets_the_reason_of_a_failed_read_at_once() -> None:
    async with reading() as r:
        pod = r.w.create_pod("pod").metadata
        rule = r.w.server.faults.add(Refuse(503), resource="pods")
        r.learn(pod, migration="hostile/first")
        await asyncio.sleep(READ_SECONDS + READ_AGAIN_SECONDS / 2)
        assert r.machine.unread_pods == ["pod"]
        r.learn(pod, migration="default/second")
        ((migration, reason),) = r.machine.reasons
        assert migration == "default/second" and "503" in reason
        await asyncio.sleep(READ_AGAIN_SECONDS)
        r.learn(pod, migration="default/third")
        assert r.machine.reasons[1:] == [("default/third", reason)], "it is being read, as often before in vain"
        r.w.server.faults.remove(rule)
        await asyncio.sleep(READ_SECONDS + READ_AGAIN_SECONDS)
        assert r.machine.read == [pod.uid] and r.idle
