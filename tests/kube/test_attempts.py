"""Only an attempt on its way holds a slot as a request: a write that pauses between attempts does not hang."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from tests.helpers import make_pod
from topo_scheduler.api.migrations import MigrationSpec
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import TooManyRequests
from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS, NamespaceShares
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.events import EventRecorder, ObjectReference
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.kube.writing.migrations import MigrationWriter
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.state.storage.storage_objects import SelectNode

from .virtual import now, virtual_time
from .world import running

PAUSE_SECONDS = HANGS_AFTER_SECONDS + 2


class Refusing:
    """A client whose server refuses the first request of the namespace ``slow``, and asks for a pause."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.refused = False

    async def request(self, method: str, path: str, **_: Any) -> bytes:
        self.paths.append(path)
        await asyncio.sleep(0.01)
        if "/slow" in path and not self.refused:
            self.refused = True
            raise TooManyRequests(429, retry_after=PAUSE_SECONDS)
        return b"{}"

    def fenced(self, fence: object) -> "Refusing":
        return self


Write = Callable[[str], Awaitable[Any]]
"""Writes in a namespace."""
Case = Callable[[Client], tuple[Write, NamespaceShares, Awaitable[Any] | None]]


def nominations(client: Client) -> tuple[Write, NamespaceShares, None]:
    writer = PodStatusWriter(client)
    return lambda name: writer.nominate(name, "p", name, "n1"), writer._slots._shares, None


def volumes(client: Client) -> tuple[Write, NamespaceShares, None]:
    writer = VolumeWriter(client)
    return lambda name: writer.write([SelectNode((name, "data"), name, "1", "n1")]), writer._slots._shares, None


def migrations(client: Client) -> tuple[Write, NamespaceShares, None]:
    writer = MigrationWriter(client)
    return lambda name: writer.create(name, "m", MigrationSpec()), writer._slots._shares, None


def conditions(client: Client) -> tuple[Write, NamespaceShares, Awaitable[Any]]:
    writer = ConditionWriter(client, clock=now, wall=now)

    async def write(name: str) -> None:
        writer.set_unschedulable(make_pod("p", uid=name, namespace=name), "no room")

    return write, writer._waiting._shares, writer.run()


def group_conditions(client: Client) -> tuple[Write, NamespaceShares, Awaitable[Any]]:
    writer = GroupConditionWriter(client, clock=now, wall=now)

    async def write(name: str) -> None:
        writer.set(GroupMark(name, "g", name, "v1alpha1", True, "Bound", name))

    return write, writer._waiting._shares, writer.run()


def events(client: Client) -> tuple[Write, NamespaceShares, Awaitable[Any]]:
    recorder = EventRecorder(client, "topo-scheduler", "topo-scheduler-0", clock=now, wall=now)

    async def write(name: str) -> None:
        recorder.record(ObjectReference("v1", "Pod", name, "p", name), "Normal", "Bound", "bound", "Binding")

    return write, recorder._queue._shares, recorder.run()


CASES: list[Case] = [nominations, volumes, migrations, conditions, group_conditions, events]


@pytest.mark.parametrize("case", CASES)
@virtual_time
async def test_a_namespace_whose_write_pauses_between_attempts_is_not_marked(case: Case) -> None:
    client = Refusing()
    write, shares, run = case(cast("Client", client))

    async def both() -> None:
        slow = asyncio.ensure_future(write("slow"))
        await asyncio.sleep(HANGS_AFTER_SECONDS + 1)
        assert client.refused and sum("/slow" in path for path in client.paths) == 1, "it pauses"
        await write("other")
        await asyncio.sleep(1)
        assert any("/other" in path for path in client.paths)
        assert not shares.is_marked("slow")
        await asyncio.sleep(PAUSE_SECONDS)
        assert sum("/slow" in path for path in client.paths) > 1, "it goes on"
        await slow

    if run is None:
        await both()
    else:
        async with running(cast("Any", run)):
            await both()
    assert not shares._held and not shares._hung
