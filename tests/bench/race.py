"""Races on one API server: pods are pending, a scheduler starts, its binds are timed from the first to the last."""

import asyncio
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import psutil

from tests.controlplane import ControlPlane, build

from . import kai, objects
from .embedded import embedded
from .objects import Json
from .promises import EVENTS_SECONDS
from .server import Plane, Server, connected
from .verify import verify

MODULES = ("go",)
"""What is built for a race: no simulated kubelets."""
GATES = {"GenericWorkload": True, "GangScheduling": True, "TopologyAwareWorkloadScheduling": True}
ALPHA = ("scheduling.k8s.io/v1alpha2=true",)

PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SIZES = (1000, 5000)
"""Nodes."""
POD_GROUPS = "/apis/scheduling.k8s.io/v1alpha2/namespaces/default/podgroups"
KUBE_SCHEDULER_CONFIG = """\
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: "%s", qps: 5000, burst: 10000}
"""


@asynccontextmanager
async def cluster(
    nodes: int, made: Callable[[Json], Json] = lambda node: node
) -> AsyncIterator[tuple[ControlPlane, Server]]:
    """A real API server with nodes, each ``made`` of a plain one, and no other client."""
    plane = ControlPlane(
        binaries=await asyncio.to_thread(build, modules=MODULES),
        with_controller_manager=False,
        feature_gates=GATES,
        runtime_config=ALPHA,
        priority_and_fairness=False,
    )
    await asyncio.to_thread(plane.start)
    try:
        async with connected(plane) as server:
            await server.create("/api/v1/nodes", (made(objects.node(number)) for number in range(nodes)))
            yield plane, server
    finally:
        await asyncio.to_thread(plane.stop)


def ours(plane: Plane) -> list[str]:
    """Our scheduler, as it is run in a cluster."""
    return [
        *(sys.executable, "-m", "topo_scheduler", "run", "--kubeconfig", str(plane.kubeconfig)),
        *("--leader-elect=false", "--bind-address", "127.0.0.1", "--metrics-port", "0"),
    ]


def theirs(plane: ControlPlane) -> list[str]:
    """kube-scheduler with its own gang and topology gates, and no client-side limit."""
    config = plane.directory / "bench-scheduler.yaml"
    config.write_text(KUBE_SCHEDULER_CONFIG % plane.kubeconfig)
    gates = ",".join(f"{name}=true" for name in GATES)
    return [
        *(str(build(modules=MODULES) / "kube-scheduler"), "--config", str(config), "--feature-gates", gates),
        *("--secure-port", "0", "--leader-elect=false"),
    ]


@asynccontextmanager
async def running(command: Sequence[str]) -> AsyncIterator[psutil.Process]:
    """A scheduler as a process of its own; its log is shown when it dies early."""
    with tempfile.TemporaryFile("w+") as log:
        process = await asyncio.create_subprocess_exec(*command, stdout=log, stderr=log)
        try:
            yield psutil.Process(process.pid)
            if process.returncode is not None:
                log.seek(0)
                raise RuntimeError(f"{command[0]} ended: {log.read()[-2000:]}")
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
                try:
                    await asyncio.wait_for(process.wait(), 40)
                except TimeoutError:
                    process.kill()


async def timed(
    server: Server,
    wanted: int,
    command: Sequence[str],
    *,
    timeout: float = 300.0,
    members: int = 1,
    helper: psutil.Process | None = None,
    events: bool = False,
) -> Json:
    """Start a scheduler on pending pods and time its binds; then check every placement.

    A helper is a process that already runs for this scheduler: its CPU time and its memory count as well. ``events``:
    also wait until every pod has its event.
    """
    listed = await server.get(PODS, limit="1")
    watch = asyncio.create_task(server.binds(listed["metadata"]["resourceVersion"], wanted, timeout))
    await asyncio.sleep(0.2)
    started = time.monotonic()
    async with running(command) as process:
        binds = await watch
        processes = [process] if helper is None else [process, helper]
        cpu = sum(sum(proc.cpu_times()[:2]) for proc in processes)
        memory = sum(proc.memory_info().rss for proc in processes)
        events_after = await _events_exist(server, len(binds)) if events else None
    seconds = binds[-1] - binds[0] if len(binds) > 1 else 0.0
    result: dict[str, Any] = {
        "bound": len(binds),
        "wanted": wanted,
        "first_bind_after_s": round(binds[0] - started, 2) if binds else None,
        "seconds": round(seconds, 3),
        "pods_per_s": round((len(binds) - 1) / seconds, 1) if seconds else None,
        "cpu_ms_per_pod": round(1000 * cpu / max(1, len(binds)), 2),
        "rss_mb": round(memory / 2**20, 1),
        "verifier": await _verified(server, members, complete=len(binds) == wanted),
    }
    if events:
        result["events_complete_after_s"] = events_after
    return result


async def _verified(server: Server, members: int, *, complete: bool) -> Json:
    nodes, jobs = await server.get("/api/v1/nodes"), await server.get(JOBS)
    return verify(await server.pods(), nodes["items"], jobs["items"], members, complete=complete)


async def _events_exist(server: Server, wanted: int) -> float:
    """Seconds after the last bind until every pod has its Scheduled event; not below 30 where 30 s do not suffice."""
    began = time.monotonic()
    while (passed := time.monotonic() - began) < EVENTS_SECONDS:
        listed = await server.get(
            "/apis/events.k8s.io/v1/namespaces/default/events", fieldSelector="reason=Scheduled", limit="1"
        )
        count = len(listed["items"]) + listed["metadata"].get("remainingItemCount", 0)
        if not listed["metadata"].get("remainingItemCount"):
            listed = await server.get(
                "/apis/events.k8s.io/v1/namespaces/default/events", fieldSelector="reason=Scheduled"
            )
            count = len(listed["items"])
        if count >= wanted:
            return round(time.monotonic() - began, 1)
        await asyncio.sleep(0.5)
    return round(passed, 1)


async def plain(nodes: int, pods: int = 4000) -> Json:
    """Plain pods of 2 GPUs, ours and kube-scheduler's, one after the other."""
    result: Json = {"nodes": nodes, "pods": pods}
    for name, scheduler in (("ours", objects.OURS), ("kube_scheduler", "default-scheduler")):
        async with cluster(nodes) as (plane, server):
            await server.create(PODS, (objects.pod(f"p-{i}", 2, scheduler) for i in range(pods)))
            command = ours(plane) if name == "ours" else theirs(plane)
            result[name] = await timed(server, pods, command, events=name == "ours")
    return result


async def on_embedded(nodes: int, pods: int = 4000) -> Json:
    """The same pods on the embedded API server, which runs in a process of its own; ours alone."""
    async with embedded(nodes) as plane, connected(plane) as server:
        await server.create(PODS, (objects.pod(f"p-{i}", 2, objects.OURS) for i in range(pods)))
        raced = await timed(server, pods, ours(plane), events=True)
    return {"nodes": nodes, "pods": pods, "ours": raced}


async def gangs(nodes: int, their_many: int = 30, members: int = 8) -> Json:
    """Gangs of 8 whole nodes, each in a leaf of 16, that nearly fill the cluster.

    kube-scheduler's are fewer: it would take minutes.
    """
    many = _filling(nodes)
    result: Json = {"nodes": nodes, "members": members, "leaf": objects.LEAF}
    async with cluster(nodes) as (plane, server):
        jobs = await server.create(JOBS, (objects.job(f"g-{i}", members) for i in range(many)))
        await server.create(PODS, (objects.member_of_job(job, index) for job in jobs for index in range(members)))
        result["ours"] = await timed(server, many * members, ours(plane), members=members, events=True)
    async with cluster(nodes) as (plane, server):
        names = [f"g-{i}" for i in range(their_many)]
        await server.create(POD_GROUPS, (objects.pod_group(name, members) for name in names))
        await server.create(PODS, (objects.member_of_group(name, index) for name in names for index in range(members)))
        result["kube_scheduler"] = await timed(server, their_many * members, theirs(plane), members=members)
    return result


async def linked(nodes: int = 1000, members: int = 3) -> Json:
    """Gangs that ask for all that the network of a node carries, on nearly all nodes, so that no two may share one.

    Each leaves half of the GPUs of a node free: without bandwidth others would use them.
    """
    many = 9 * nodes // 20
    asks = {"topology.scheduler/network-bandwidth": objects.NETWORK}
    async with cluster(nodes, objects.networked) as (plane, server):
        jobs = await server.create(JOBS, (objects.job(f"g-{i}", members, 4, asks) for i in range(many)))
        await server.create(PODS, (objects.member_of_job(job, index, 4) for job in jobs for index in range(members)))
        raced = await timed(server, many * members, ours(plane), members=members, timeout=60.0)
    return {"nodes": nodes, "members": members, "leaf": objects.LEAF, "ours": raced}


async def gangs_of_kai(nodes: int, members: int = 8) -> Json:
    """The same gangs, placed by KAI-Scheduler."""
    release = await asyncio.to_thread(kai.release)
    many = _filling(nodes)
    async with cluster(nodes) as (plane, server):
        await asyncio.to_thread(kai.define, plane, release)
        await kai.submit(server, many, members)
        async with running(release.binder(plane)) as binder:
            raced = await timed(server, many * members, release.scheduler(plane), members=members, helper=binder)
    return {"nodes": nodes, "members": members, "leaf": objects.LEAF, "kai": {"version": release.version, **raced}}


def _filling(nodes: int) -> int:
    return 24 * nodes // 200


async def all_on_embedded() -> Json:
    """Plain pods on the embedded server, by nodes."""
    return {str(nodes): await on_embedded(nodes) for nodes in SIZES}


async def all_plain() -> Json:
    """Plain pods on a real server, by nodes."""
    return {str(nodes): await plain(nodes) for nodes in SIZES}


async def all_gangs() -> Json:
    """Gangs on a real server, by nodes."""
    return {str(nodes): await gangs(nodes) for nodes in SIZES}


async def all_linked() -> Json:
    """Gangs that ask for bandwidth on a real server."""
    return {"1000": await linked(1000)}


async def all_gangs_of_kai() -> Json:
    """The same gangs with KAI-Scheduler, by nodes."""
    return {str(nodes): await gangs_of_kai(nodes) for nodes in SIZES}
