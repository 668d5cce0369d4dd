"""The API server goes away for a minute while everything runs: nothing is lost, nothing double, and we are up."""

import asyncio
import json

import pytest

from topo_scheduler.api.objects import Pod
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.leading.lease import LeaderElector
from topo_scheduler.kube.writing.binder import Binder, BindRequest, BindResult, BindStatus
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.simulation.apiserver import BreakWatch, Disconnect, Refuse, Truncate

from .virtual import now, virtual_time
from .world import View, World, eventually, running, world

PODS_AT_ONCE = 30


class Daemon:
    """As small as one can be: binds what is pending while it leads, and tells about it."""

    def __init__(self, w: World) -> None:
        self.view: View[Pod] = View()
        self.reflector = w.reflector(PODS, self.view, page_size=10)
        self.elector = LeaderElector(w.client, "kube-system", "topo", "daemon", clock=now)
        self.client = w.client.fenced(self.elector.fence)
        self.binder = Binder(self.client, concurrency=8, clock=now)
        busy = lambda: self.binder.in_flight > 0  # noqa: E731
        self.events = EventRecorder(w.client, "topo-scheduler", "daemon", busy=busy, clock=now)
        self.conditions = ConditionWriter(self.client, busy=busy, clock=now)
        self.results: list[tuple[str, BindResult]] = []

    async def lead(self) -> None:
        await self.reflector.relist()
        if (seconds := self.elector.quiet_seconds()) > 0:
            await asyncio.sleep(seconds)
            await self.reflector.relist()
        while True:
            pending = [pod for pod in self.view.objects.values() if not pod.spec.node_name]
            for pod in pending:
                self.conditions.set_unschedulable(pod, "its turn has not come")
            await asyncio.gather(*[self.place(pod) for pod in pending[:5]])
            await asyncio.sleep(0.5)

    async def place(self, pod: Pod) -> None:
        meta = pod.metadata
        result = await self.binder.bind(BindRequest(meta.namespace, meta.name, meta.uid, "node-1"))
        self.results.append((meta.name, result))
        if result.outcome is BindStatus.BOUND:
            self.conditions.forget(meta.uid)
            about = ObjectReference("v1", "Pod", meta.namespace, meta.name, meta.uid)
            self.events.record(about, "Normal", "Scheduled", f"Successfully assigned {pod.key} to node-1", "Binding")

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for work in (self.reflector, self.events, self.conditions):
                group.create_task(work.run())
            group.create_task(self.elector.run(self.lead))


async def trouble(w: World) -> None:
    """A minute without a server, and what often comes with its return."""
    await w.server.go_away()
    await asyncio.sleep(60)
    w.server.faults.add(Refuse(429, retry_after=1), times=6)
    w.server.faults.add(Refuse(500), times=6)
    w.server.faults.add(Truncate(), verb="list", times=2)
    w.server.faults.add(Disconnect(applied=True), verb="create", resource="pods/binding", times=3)
    w.server.faults.add(Refuse(409), verb="create", resource="pods/binding", times=3)
    w.server.faults.add(BreakWatch("expire", 3), times=2)
    await w.server.come_back()


@virtual_time
async def test_a_minute_without_an_api_server(caplog: pytest.LogCaptureFixture) -> None:
    async with world() as w:
        daemon = Daemon(w)
        async with running(daemon.run()):
            for number in range(PODS_AT_ONCE):
                w.create_pod(f"early-{number}")
            await eventually(lambda: len(daemon.results) > 8, within=30)
            w.create_pod("vanishes")
            await asyncio.sleep(0.1)
            stop = asyncio.create_task(trouble(w))
            await asyncio.sleep(1)
            w.remove_pod("vanishes")
            w.server.store.compact()
            for number in range(PODS_AT_ONCE):
                w.create_pod(f"late-{number}")
            await asyncio.sleep(30)
            assert not daemon.elector.holds(), "a replica that cannot renew does not lead"
            assert daemon.reflector.staleness(now()) > 29
            await stop
            await eventually(lambda: all(w.pod(name).spec.node_name for name in w.versions()), within=120)
            await eventually(lambda: daemon.view.versions == w.versions())
            assert await daemon.events.flush(30)
            assert await daemon.conditions.flush(30)
        await check(w, daemon)
        assert all(record.levelname != "ERROR" for record in caplog.records if record.name.startswith("topo_scheduler"))


async def check(w: World, daemon: Daemon) -> None:
    names = set(w.versions())
    assert len(names) == 2 * PODS_AT_ONCE
    assert daemon.elector.holds() is False, "the lease was given up at the end"
    bound = [name for name, result in daemon.results if result.outcome is BindStatus.BOUND]
    assert len(bound) == len(set(bound)), "no pod was reported as bound twice"
    answer = await w.client.request("GET", "/apis/events.k8s.io/v1/events", timeout=5)
    named = [event["regarding"]["name"] for event in json.loads(answer)["items"]]
    assert sorted(named) == sorted(bound), "one event for each bind, and none lost"
    assert (daemon.events.dropped, daemon.events.failed) == (0, 0)
    for name in names:
        conditions = {condition.type: condition.status for condition in w.pod(name).status.conditions}
        assert conditions.get("PodScheduled", "True") == "True", "a bound pod is not marked as unschedulable"
