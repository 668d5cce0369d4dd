"""Nothing is written by a process whose lease has ended, however far the write had come by then."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

import topo_scheduler
from tests.crds import native_pod_group
from topo_scheduler.api.migrations import MigrationPod, MigrationSpec, MigrationStatus
from topo_scheduler.kube.connection.client import MERGE_PATCH, Client
from topo_scheduler.kube.connection.errors import Fenced, ServerError, Unreachable
from topo_scheduler.kube.connection.fence import UNFENCED, Fence, FencedBody
from topo_scheduler.kube.leading.lease import LeaderElector
from topo_scheduler.kube.writing.binder import Binder, BindRequest, BindStatus
from topo_scheduler.kube.writing.conditions import ConditionWriter
from topo_scheduler.kube.writing.evictions import EvictionStatus, Evictor
from topo_scheduler.kube.writing.group_conditions import GroupConditionWriter, GroupMark
from topo_scheduler.kube.writing.migrations import MigrationWriter
from topo_scheduler.kube.writing.pod_status import PodStatusWriter
from topo_scheduler.kube.writing.volumes import VolumeWriter
from topo_scheduler.simulation.apiserver import Delay
from topo_scheduler.state.storage.storage_objects import SelectNode

from .stub import kubeconfig, serving, stubbed, success
from .virtual import now, virtual_time
from .world import World, eventually, running, world

POD = "/api/v1/namespaces/default/pods/pod"


class Lease:
    """A lease that ends when a test says so."""

    def __init__(self, left: float = 10.0) -> None:
        self.left = left

    def fence(self, **options: Any) -> Fence:
        return Fence(lambda: self.left, **{"clock": now, **options})


async def write(client: Client, timeout: float = 5.0) -> bytes:
    return await client.request("PATCH", POD, body=b"{}", timeout=timeout)


# ------------------------------------------------------------ the last moment


async def test_a_write_that_waits_for_a_connection_while_the_lease_ends_is_not_sent(tmp_path: Path) -> None:
    lease, release, seen = Lease(), asyncio.Event(), list[str]()

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        seen.append(request.method)
        await release.wait()
        return success()

    async with serving(handler) as address:
        client = await Client.connect(str(kubeconfig(tmp_path, address)), pool_size=1)
        try:
            reading = asyncio.create_task(client.request("GET", POD, timeout=5))
            await eventually(lambda: seen)
            writing = asyncio.create_task(write(client.fenced(lease.fence())))
            await asyncio.sleep(0.05)
            lease.left = 0.0
            release.set()
            await reading
            with pytest.raises(Fenced):
                await writing
            await client.request("GET", POD, timeout=5)
        finally:
            await client.close()
    assert seen == ["GET", "GET"]


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, bytearray]]:
    """The address of a server that answers nothing, and what it has received."""
    received = bytearray()
    ended: list[asyncio.Task[None]] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ended.append(asyncio.current_task())  # type: ignore[arg-type]
        try:
            while data := await reader.read(65536):
                received.extend(data)
        finally:
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(take, "127.0.0.1")
    try:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}", received
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*ended), 5)


async def test_no_byte_leaves_once_the_connection_is_there_and_the_lease_is_not(tmp_path: Path) -> None:
    """Headers neither: they are sent together with the body."""
    answers = iter([10.0, 0.0])
    async with listening() as (address, received):
        client = await Client.connect(str(kubeconfig(tmp_path, address)))
        try:
            with pytest.raises(Fenced):
                await write(client.fenced(Fence(lambda: next(answers))))
            await asyncio.sleep(0.05)
            assert bytes(received) == b""
            with pytest.raises(Unreachable):
                await write(client.fenced(UNFENCED), timeout=0.2)
            assert bytes(received).startswith(b"PATCH"), "otherwise this test could not fail"
        finally:
            await client.close()


async def test_a_write_that_waited_so_long_that_its_deadline_is_too_late_is_not_sent(tmp_path: Path) -> None:
    """It may be sent again, with another deadline."""
    answers = iter([10.0, 5.0])
    async with listening() as (address, received):
        client = await Client.connect(str(kubeconfig(tmp_path, address)))
        try:
            with pytest.raises(Unreachable) as caught:
                await write(client.fenced(Fence(lambda: next(answers))), timeout=8.0)
            assert not caught.value.sent
            await asyncio.sleep(0.05)
            assert bytes(received) == b""
        finally:
            await client.close()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="Linux has it")
def test_the_kernel_drops_what_is_not_acknowledged() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as connection:
        FencedBody(b"{}", Fence(lambda: 10.0, flight_seconds=1.5), 1.0).send(connection)
        assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 1500


# ------------------------------------------------------------ the deadline


@pytest.mark.parametrize(
    ("left", "reserve", "wanted", "sent"),
    [
        (float("inf"), 0.0, 5.0, "5000ms"),
        (10.0, 2.0, 5.0, "5000ms"),
        (5.0, 2.0, 5.0, "2700ms"),
        (1.0, 0.0, 5.0, "900ms"),
    ],
)
@virtual_time
async def test_a_write_has_a_deadline_within_what_is_left(
    left: float, reserve: float, wanted: float, sent: str
) -> None:
    asked: list[str] = []

    async def handler(request: web.BaseRequest) -> web.StreamResponse:
        asked.append(request.query.get("timeout", ""))
        return success()

    async with stubbed(handler) as client:
        await write(client.fenced(Lease(left).fence(reserve=reserve)), wanted)
        await client.request("GET", POD, timeout=wanted)
    assert asked == [sent, ""]


@virtual_time
async def test_what_the_server_is_slow_with_is_given_up_at_the_deadline() -> None:
    async with world() as w:
        w.create_pod("pod")
        w.server.faults.add(Delay(5.0), verb="patch", times=1)
        client = w.client.fenced(Lease(2.0).fence())
        with pytest.raises(ServerError) as caught:
            late = b'{"metadata":{"labels":{"late":"yes"}}}'
            await client.request("PATCH", POD, body=late, content_type=MERGE_PATCH, timeout=10.0)
        assert caught.value.status == 504
        await asyncio.sleep(10)
        assert w.server.store.get("pods", "pod", "default").obj["metadata"].get("labels") is None


# ------------------------------------------------------------ every writer


async def conditions(client: Client, w: World) -> None:
    writer = ConditionWriter(client, clock=now)
    writer.set_unschedulable(w.pod("pod"), "no room")
    async with running(writer.run()):
        assert await writer.flush(5)
    assert writer.failed


async def group_conditions(client: Client, w: World) -> None:
    made = w.server.store.create("podgroups.scheduling.k8s.io", native_pod_group("group", 4), "default")
    writer = GroupConditionWriter(client, clock=now, wall=now)
    writer.set(GroupMark("default", "group", made["metadata"]["uid"], "v1alpha2", True, "Scheduled", "all of it"))
    async with running(writer.run()):
        assert await writer.flush(5)
    assert writer.failed


async def bind(client: Client, w: World) -> None:
    result = await Binder(client, clock=now).bind(BindRequest("default", "pod", w.pod("pod").metadata.uid, "node"))
    assert result.outcome is BindStatus.UNBOUND


async def evict(client: Client, w: World) -> None:
    result = await Evictor(client).evict("default", "pod", w.pod("pod").metadata.uid)
    assert result.outcome is EvictionStatus.FAILED


async def nominate(client: Client, w: World) -> None:
    await PodStatusWriter(client).nominate("default", "pod", w.pod("pod").metadata.uid, "node")


async def fail(client: Client, w: World) -> None:
    await PodStatusWriter(client).mark_failed("default", "pod", w.pod("pod").metadata.uid)


async def mark(client: Client, w: World) -> None:
    await PodStatusWriter(client).mark_preempted("default", "pod", w.pod("pod").metadata.uid, "it goes", 1.0)


async def volumes(client: Client, w: World) -> None:
    assert (await VolumeWriter(client).write([SelectNode(("default", "claim"), "uid", "1", "node")])).problem


async def create_migration(client: Client, w: World) -> None:
    await MigrationWriter(client).create(
        "default", "move", MigrationSpec(cause="test", pods=[MigrationPod("pod", "u")])
    )


async def write_migration(client: Client, w: World) -> None:
    await MigrationWriter(client).replace_status("default", "move", "uid", "1", MigrationStatus())


async def delete_migration(client: Client, w: World) -> None:
    await MigrationWriter(client).delete("default", "move", "uid", "1")


WRITERS: list[Callable[[Client, World], Coroutine[Any, Any, None]]] = [
    bind,
    evict,
    nominate,
    fail,
    mark,
    conditions,
    group_conditions,
    volumes,
    create_migration,
    write_migration,
    delete_migration,
]
READS = {"get", "list", "watch"}


@pytest.mark.parametrize("use", WRITERS, ids=lambda use: use.__name__)
@virtual_time
async def test_no_writer_writes_after_the_lease(use: Callable[[Client, World], Coroutine[Any, Any, None]]) -> None:
    async with world() as w:
        w.create_pod("pod")
        await use(w.client.fenced(Lease(0.0).fence()), w)
        assert {entry.verb for entry in w.server.requests} <= READS


@virtual_time
async def test_a_client_without_a_fence_only_reads() -> None:
    async with world() as w:
        bare = w.client.fenced(None)  # type: ignore[arg-type]
        w.create_pod("pod")
        assert await bare.request("GET", POD, timeout=5)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            with pytest.raises(RuntimeError, match="needs a fence"):
                await bare.request(method, POD, body=b"{}", timeout=5)
        with pytest.raises(RuntimeError, match="needs a fence"):
            await w.client.request("DELETE", POD, timeout=5)


def test_only_what_no_lease_protects_is_unfenced() -> None:
    """A change that adds to this list gives the reason in ``fence``."""
    root = Path(topo_scheduler.__file__).parent
    unfenced = {
        "kube/connection/fence.py",
        "kube/leading/lease.py",
        "kube/writing/events.py",
        "kube/reading/token_review.py",
    }
    unfenced |= {"cli/drain.py", "daemon.py"}
    assert _with(r"\bUNFENCED\b", root) == unfenced
    assert _with(r"session\.(request|post|put|patch|delete)\b", root) == {"kube/connection/client.py"}


def _with(pattern: str, root: Path) -> set[str]:
    """The files of the package in which something stands."""
    paths = (path for path in root.rglob("*.py") if re.search(pattern, path.read_text("utf-8")))
    return {path.relative_to(root).as_posix() for path in paths}


# ------------------------------------------------------------ what is still under way when the lease is released


@virtual_time
async def test_a_lease_is_not_released_while_a_write_may_still_take_effect() -> None:
    async with world() as w:
        w.create_pod("pod")
        rule = w.server.faults.add(Delay(60.0), verb="patch")
        elector = LeaderElector(w.client, "kube-system", "topo", "a", clock=now)

        async def body() -> None:
            await write(w.client.fenced(elector.fence), 4.0)

        leading = asyncio.create_task(elector.run(body))
        await eventually(lambda: rule.struck)
        sent = now()
        leading.cancel()
        await asyncio.wait({leading})
        assert leading.cancelled()
        assert 4.0 + elector.fence.flight_seconds <= now() - sent < 9.0
        assert (
            w.server.store.get("leases.coordination.k8s.io", "topo", "kube-system").obj["spec"]["holderIdentity"] == ""
        )


@virtual_time
async def test_a_lease_is_released_as_soon_as_what_is_on_the_wire_is_answered() -> None:
    async with world() as w:
        w.create_pod("pod")
        rule = w.server.faults.add(Delay(0.3), verb="patch")
        elector = LeaderElector(w.client, "kube-system", "topo", "a", clock=now)

        async def body() -> None:
            await write(w.client.fenced(elector.fence), 4.0)

        leading = asyncio.create_task(elector.run(body))
        await eventually(lambda: rule.struck)
        sent = now()
        leading.cancel()
        await asyncio.wait({leading})
        assert leading.cancelled()
        assert now() - sent == pytest.approx(0.3, abs=0.1)


@virtual_time
async def test_a_lease_is_held_for_longer_than_one_renewal_lasts_if_a_write_may_take_effect_that_late() -> None:
    async with world() as w:
        w.create_pod("pod")
        rule = w.server.faults.add(Delay(60.0), verb="patch")
        elector = LeaderElector(w.client, "kube-system", "topo", "a", clock=now)

        async def body() -> None:
            await write(w.client.fenced(elector.fence), 20.0)

        leading = asyncio.create_task(elector.run(body))
        await eventually(lambda: rule.struck)
        sent = now()
        leading.cancel()
        await asyncio.wait({leading})
        assert now() - sent == pytest.approx(7.2 / 0.9 + elector.fence.flight_seconds, abs=0.2)


@virtual_time
async def test_how_long_a_write_may_take_effect_counts_from_when_it_was_sent() -> None:
    async with world() as w:
        w.create_pod("pod")
        w.server.faults.add(Delay(60.0), verb="patch")
        fence = Lease(10.0).fence()
        sent = now()
        with pytest.raises((ServerError, Unreachable)):
            await write(w.client.fenced(fence), 4.5)
        assert now() - sent == pytest.approx(4.5, abs=0.1)
        assert now() - sent + fence.unsettled_seconds() == pytest.approx(4.5 / 0.9 + 3.0, abs=0.1)


@virtual_time
async def test_a_dry_run_that_hangs_takes_effect_at_no_time() -> None:
    async with world() as w:
        w.create_pod("pod")
        w.server.faults.add(Delay(60.0), verb="create", resource="pods/binding")
        fence = Lease(10.0).fence()
        meant = BindRequest("default", "pod", w.pod("pod").metadata.uid, "node")
        await Binder(w.client.fenced(fence), clock=now, timeout=5.0).bind(meant, dry_run=True)
        assert fence.unsettled_seconds() == 0.0


@virtual_time
async def test_a_leader_that_ends_in_order_writes_until_its_right_ends_though_it_renews_on() -> None:
    async with world() as w:
        elector = LeaderElector(w.client, "kube-system", "topo", "a", clock=now)
        deadlines: list[float] = []

        async def body() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(5):
                    deadlines.append(elector.fence.deadline(20.0))
                    await asyncio.sleep(2.0)

        leading = asyncio.create_task(elector.run(body))
        await eventually(elector.holds)
        leading.cancel()
        with pytest.raises(Fenced):
            await leading
        assert deadlines == pytest.approx([7.2, 5.4, 3.6, 1.8], abs=0.1)

        async def again() -> None:
            deadlines.append(elector.fence.deadline(20.0))

        await elector.run(again)
        assert deadlines[-1] == pytest.approx(7.2, abs=0.1)


@virtual_time
async def test_a_lease_is_released_at_once_where_every_write_was_answered() -> None:
    async with world() as w:
        w.create_pod("pod")
        elector = LeaderElector(w.client, "kube-system", "topo", "a", clock=now)

        async def body() -> None:
            client = w.client.fenced(elector.fence)
            await client.request("DELETE", POD, body=b"{}", timeout=4.0)

        began = now()
        await elector.run(body)
        assert now() - began < 1.0
