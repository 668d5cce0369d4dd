"""Binds and dry runs that hang get stand-ins: with few workers, those of other namespaces go on."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from topo_scheduler.kube.connection.namespace_shares import HANGS_AFTER_SECONDS
from topo_scheduler.kube.writing.binder import BindRequest, BindResult, BindStatus
from topo_scheduler.observability.metrics import Metrics, Snapshot
from topo_scheduler.runtime.executor import MAX_ADDITIONAL_WORKERS, Executor, Writers
from topo_scheduler.scheduling.instructions import Bind, DryRunBind, PodRef

from .virtual import now, virtual_time

HANGS_SECONDS = 20.0


class Engine:
    """Notes when binds end, and which are reported to hang."""

    workloads = SimpleNamespace(of_pod=lambda _: None)
    arrivals = SimpleNamespace(pending=lambda _: None)

    def __init__(self) -> None:
        self.ended: dict[str, float] = {}
        self.hanging: set[str] = set()

    def goes_first(self, _: str) -> bool:
        return False

    def may_bind(self, _: str) -> str:
        return ""

    def bind_finished(self, uid: str, *_: object) -> None:
        self.ended[uid] = now()

    def rehearsed(self, uid: str, *_: object) -> None:
        self.ended[uid] = now()

    def bind_hangs(self, uid: str, _: float) -> None:
        self.hanging.add(uid)


class Server:
    """Answers binds of one namespace only; reads are answered."""

    def __init__(self) -> None:
        self.running = self.most = 0

    async def bind(self, request: BindRequest, **_: object) -> BindResult:
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.01 if request.namespace == "victim" else HANGS_SECONDS)
        self.running -= 1
        return BindResult(BindStatus.BOUND if request.namespace == "victim" else BindStatus.UNBOUND)

    async def hangs(self, _request: BindRequest, _seconds: float) -> bool:
        return True


async def request(bind: Bind, *_: object) -> SimpleNamespace:
    pod = bind.pod
    return SimpleNamespace(bind=BindRequest(pod.namespace, pod.name, pod.uid, bind.node), plugins=())


def a_bind(namespace: str, name: str = "p") -> Bind:
    return Bind(PodRef(namespace, name, f"{namespace}-{name}"), "node", {}, now(), now())


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("workers", "stuck"), [(1, 1), (2, 12), (8, MAX_ADDITIONAL_WORKERS + 40)])
@virtual_time
async def test_what_hangs_in_other_namespaces_holds_up_no_bind_and_no_worker_is_lost(
    workers: int, stuck: int, dry_run: bool
) -> None:
    engine, server, tasks = Engine(), Server(), list[asyncio.Task[None]]()
    ignored = SimpleNamespace(forget=lambda _: None, bound=lambda _: None, request=request)
    writers = Writers(*cast("Any", (server, ignored, None, None, None, None, None, ignored, None)))
    executor = Executor(
        cast("Any", engine),
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        workers=workers,
        clock=now,
        wall=now,
        start=lambda work, _: tasks.append(asyncio.create_task(work)),
        changed=lambda: None,
        confirm=cast("Any", None),
    )
    tasks += [asyncio.create_task(executor.bind()) for _ in range(workers)]
    binds = [a_bind(f"t{number}") for number in range(stuck)]
    for bind in binds:
        executor.carry_out(DryRunBind(bind) if dry_run else bind)
    if stuck <= 12:
        await asyncio.sleep(HANGS_AFTER_SECONDS * (stuck // workers) + 0.5)
        executor.carry_out(a_bind("victim"))
        await asyncio.sleep(HANGS_AFTER_SECONDS)
        assert "victim-p" in engine.ended
    await asyncio.sleep(20 * HANGS_SECONDS)
    assert engine.ended.keys() >= {bind.pod.uid for bind in binds}
    assert engine.hanging == (set() if dry_run else {bind.pod.uid for bind in binds})
    assert server.most <= workers + MAX_ADDITIONAL_WORKERS
    working = [task for task in tasks if not task.done()]
    assert len(working) == len(executor._binds._idle) == workers
    for number in range(3 * workers):
        executor.carry_out(a_bind("victim", f"later-{number}"))
    await asyncio.sleep(1)
    assert all(f"victim-later-{number}" in engine.ended for number in range(3 * workers))
    for task in working:
        task.cancel()


@pytest.mark.parametrize("outcome", [BindStatus.BOUND, BindStatus.GONE, BindStatus.UNBOUND])
@virtual_time
async def test_what_plugins_said_is_forgotten_unless_a_bind_follows_the_dry_run(outcome: BindStatus) -> None:
    """The pod may have gone while plugins were asked: nothing else would forget their answers."""
    forgotten: list[str] = []

    async def dry_run(*_: object, **__: object) -> BindResult:
        return BindResult(outcome)

    plugins = SimpleNamespace(forget=forgotten.append, request=request)
    writers = Writers(*cast("Any", (SimpleNamespace(bind=dry_run), plugins, *7 * [None])))
    executor = Executor(
        cast("Any", Engine()),
        writers,
        Metrics(Snapshot),
        name="topo-scheduler",
        workers=1,
        clock=now,
        wall=now,
        start=cast("Any", None),
        changed=lambda: None,
        confirm=cast("Any", None),
    )
    await executor._dry_run(a_bind("tenant"))
    assert forgotten == ([] if outcome is BindStatus.BOUND else ["tenant-p"])
