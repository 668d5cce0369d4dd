"""Writes of one namespace whose webhooks hang hold up no write of another, whatever is written."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.crds import native_pod_group
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.simulation.apiserver import Delay
from topo_scheduler.state.storage.claim_annotations import SELECTED_NODE
from topo_scheduler.state.storage.storage_objects import SelectNode

from .virtual import now, virtual_time
from .world import World, eventually, running, world

HANGING = 100
PROMPT_SECONDS = 3.0
GROUPS = "podgroups.scheduling.k8s.io"


@asynccontextmanager
async def hostile(resource: str) -> AsyncIterator[World]:
    """A world in which writes of a resource in namespace ``hostile`` are not answered."""
    async with world() as w:
        w.server.store.create("namespaces", {"metadata": {"name": "hostile"}})
        hangs = Delay(600.0)
        w.server.faults.add(hangs, resource=resource, verb="patch", where=lambda info: info.namespace == "hostile")
        w.server.faults.add(hangs, resource=resource, verb="create", where=lambda info: info.namespace == "hostile")
        yield w


@virtual_time
async def test_events() -> None:
    async with hostile("events") as w:
        recorder = EventRecorder(w.client, "topo-scheduler", "topo-scheduler-0", clock=now, wall=now)
        async with running(recorder.run()):
            for namespace, count in (("hostile", HANGING), ("default", 1)):
                for number in range(count):
                    pod = ObjectReference("v1", "Pod", namespace, f"p{number}", f"{namespace}-{number}")
                    recorder.record(pod, "Normal", "Scheduled", "assigned", "Binding")
                await asyncio.sleep(1)
            await eventually(lambda: recorder.posted == 1, within=PROMPT_SECONDS)


@virtual_time
async def test_conditions_of_pods() -> None:
    async with hostile("pods/status") as w:
        writer = ConditionWriter(w.client, clock=now, wall=now)
        async with running(writer.run()):
            for number in range(HANGING):
                writer.set_unschedulable(w.create_pod(f"p{number}", "hostile"), "no room")
            await asyncio.sleep(1)
            writer.set_unschedulable(w.create_pod("p"), "no room")
            await eventually(lambda: bool(w.pod("p").status.conditions), within=PROMPT_SECONDS)


@virtual_time
async def test_conditions_of_groups() -> None:
    async with hostile("podgroups/status") as w:
        writer = GroupConditionWriter(w.client, clock=now, wall=now)

        def mark(name: str, namespace: str) -> None:
            made = w.server.store.create(GROUPS, {**native_pod_group(name, 4), "metadata": {"name": name}}, namespace)
            uid = made["metadata"]["uid"]
            writer.set(GroupMark(namespace, name, uid, "v1alpha2", False, "Unschedulable", "no room"))

        async with running(writer.run()):
            for number in range(HANGING):
                mark(f"g{number}", "hostile")
            await asyncio.sleep(1)
            mark("g", "default")
            await eventually(lambda: writer.written == 1, within=PROMPT_SECONDS)


@virtual_time
async def test_status_of_pods() -> None:
    async with hostile("pods/status") as w, asyncio.TaskGroup() as group:
        writer = PodStatusWriter(w.client)
        tasks = []
        for number in range(HANGING):
            pod = w.create_pod(f"p{number}", "hostile")
            nominate = writer.nominate("hostile", f"p{number}", pod.metadata.uid, "node-1")
            tasks.append(group.create_task(nominate))
        await asyncio.sleep(1)
        pod = w.create_pod("p")
        async with asyncio.timeout(PROMPT_SECONDS):
            await writer.nominate("default", "p", pod.metadata.uid, "node-1")
        assert w.pod("p").status.nominated_node_name == "node-1"
        for task in tasks:
            task.cancel()


@virtual_time
async def test_volumes() -> None:
    async with hostile("persistentvolumeclaims") as w, asyncio.TaskGroup() as group:
        store, writer = w.server.store, VolumeWriter(w.client)

        def select(name: str, namespace: str) -> SelectNode:
            made = store.create("persistentvolumeclaims", {"metadata": {"name": name}, "spec": {}}, namespace)
            meta = made["metadata"]
            return SelectNode((namespace, name), meta["uid"], meta["resourceVersion"], "n1")

        claims = [select(f"c{number}", "hostile") for number in range(HANGING)]
        tasks = [group.create_task(writer.write([claim])) for claim in claims]
        await asyncio.sleep(1)
        async with asyncio.timeout(PROMPT_SECONDS):
            done = await writer.write([select("c", "default")])
        assert done.problem == ""
        claim = store.get("persistentvolumeclaims", "c", "default")
        assert claim["metadata"]["annotations"] == {SELECTED_NODE: "n1"}
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("count", [1, 6])
@virtual_time
async def test_a_hanging_namespace_is_let_go_of_in_the_end(count: int) -> None:
    async with hostile("pods/status") as w:
        writer = ConditionWriter(w.client, clock=now, wall=now)
        async with running(writer.run()):
            for number in range(count):
                writer.set_unschedulable(w.create_pod(f"p{number}", "hostile"), "no room")
            await eventually(lambda: writer.failed == count, within=120)
            w.server.faults.clear()
            writer.set_unschedulable(w.pod("p0", "hostile"), "still no room")
            await eventually(lambda: writer.written == 1, within=PROMPT_SECONDS)
