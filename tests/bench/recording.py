"""What recording costs: CPU in the engine's thread and beside it, a checkpoint's pause, pods per second on a server."""

import tempfile
import time
from pathlib import Path

from tests.helpers import make_pod
from tests.recording.making import HeardDriver
from tests.scheduling.driver import fabric, gang
from topo_scheduler.observability.audit_file import AuditFile
from topo_scheduler.observability.segment_writer import SegmentLimits, SegmentWriter
from topo_scheduler.observability.segments import segments_of
from topo_scheduler.recording import checkpoint
from topo_scheduler.recording.audit import Audit
from topo_scheduler.recording.observed_engine import CallListener, ObservedEngine
from topo_scheduler.recording.recorder import Recorder

from . import objects
from .objects import Json
from .race import PODS, cluster, ours, timed

BOUNDS = SegmentLimits(8 << 30, 1 << 30, 86400)


def _work(listeners: list[CallListener], gangs: int, members: int) -> tuple[float, float]:
    """Return seconds of this thread, and of the whole process, for gangs that are placed and end."""
    d = HeardDriver(listeners, fabric({f"s{leaf // 10}/l{leaf}": 20 for leaf in range(50)}))
    d.clock = time.perf_counter
    _round(d, "warm", 20, members)
    thread, process = time.thread_time(), time.process_time()
    _round(d, "gang", gangs, members)
    return time.thread_time() - thread, time.process_time() - process


def _round(d: HeardDriver, name: str, gangs: int, members: int) -> None:
    for number in range(gangs):
        pods = gang(members, name=f"{name}-{number}")
        d.run(*pods)
        d.delete(*pods)
        d.forget()


def core(gangs: int = 1500, members: int = 4) -> Json:
    """CPU of the engine's calls with and without listeners, each the best of three, in turn; see `_work`."""
    best: dict[str, tuple[float, float]] = {}
    size = 0
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            writer, file = SegmentWriter(Path(folder) / "record", BOUNDS), AuditFile(f"{folder}/audit.jsonl")
            made: list[tuple[str, list[CallListener]]] = [
                ("nobody", []),
                ("record", [Recorder(writer)]),
                ("audit", [Audit(file)]),
            ]
            for name, listeners in made:
                seconds = _work(listeners, gangs, members)
                best[name] = min(best.get(name, seconds), seconds)
            writer.close()
            file.close()
            size = sum(segment.size() for segment in segments_of(Path(folder) / "record"))
    pods = gangs * members
    result: Json = {"gangs": gangs, "members": members, "record_bytes_per_pod": round(size / pods)}
    for name, (thread, process) in best.items():
        result[f"{name}_us_per_pod"] = round(1e6 * thread / pods, 1)
        result[f"{name}_us_per_pod_all_threads"] = round(1e6 * process / pods, 1)
    return result


def pause(nodes: int = 5000, pods: int = 20_000) -> Json:
    """How long a checkpoint holds the event loop."""
    leaves = {f"s{leaf // 10}/l{leaf}": nodes // 50 for leaf in range(50)}
    d = HeardDriver([], fabric(leaves))
    names = list(d.engine.world.nodes.row_of)
    for start in range(0, pods, 1000):
        d.apply(*(make_pod(f"p{n}", gpus=1, node=names[n % nodes]) for n in range(start, start + 1000)))
    d.settle()
    assert isinstance(d.engine, ObservedEngine)
    seconds, size = [], 0
    for _ in range(3):
        began = time.perf_counter()
        size = len(checkpoint.dump(d.engine, d.engine.notifier.resolve, "notifier"))
        seconds.append(time.perf_counter() - began)
    return {"nodes": nodes, "pods": pods, "seconds": round(min(seconds), 3), "mb": round(size / 1e6, 1)}


async def served(nodes: int = 1000, pods: int = 4000) -> Json:
    """Plain pods on a real API server, with neither, with a record, and with an audit log too."""
    result: Json = {"nodes": nodes, "pods": pods}
    with tempfile.TemporaryDirectory() as folder:
        flags = {
            "nobody": [],
            "record": ["--record", f"{folder}/record"],
            "both": ["--record", f"{folder}/both", "--audit-log", f"{folder}/audit.jsonl"],
        }
        for name, more in flags.items():
            async with cluster(nodes) as (plane, server):
                await server.create(PODS, (objects.pod(f"p-{i}", 2, objects.OURS) for i in range(pods)))
                figures = await timed(server, pods, [*ours(plane), *more])
                result[name] = {
                    key: figures[key]
                    for key in ("bound", "wanted", "pods_per_s", "cpu_ms_per_pod", "rss_mb", "verifier")
                }
        result["record_mb"] = round(sum(segment.size() for segment in segments_of(Path(folder) / "record")) / 1e6, 2)
    return result


async def recording() -> Json:
    """All of it."""
    return {"core": core(), "checkpoint": pause(), "served": await served()}
