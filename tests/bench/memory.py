"""Memory of the daemon by nodes and pods, and how long it takes from its start to the first bind."""

import asyncio
import time
from pathlib import Path
from typing import Final

import psutil

from . import objects
from .embedded import embedded
from .objects import Json
from .race import PODS, ours, running
from .server import connected

NODES: Final = (1000, 5000, 10_000)
HELD: Final = (0, 20_000)
"""Pods that are bound already."""
SETTLE_SECONDS: Final = 5.0
START_SECONDS: Final = 180.0


async def memory() -> Json:
    """Every size in turn, each with a daemon of its own on an embedded API server of its own."""
    result: Json = {str(nodes): {str(pods): await _one(nodes, pods) for pods in HELD} for nodes in NODES}
    own = {(nodes, pods): result[str(nodes)][str(pods)]["uss_mb"] for nodes in NODES for pods in HELD}
    (few, *_, many), (none, pods) = NODES, HELD
    result["kib_per_node"] = round(1024 * (own[many, none] - own[few, none]) / (many - few), 2)
    result["kib_per_pod"] = round(1024 * (own[many, pods] - own[many, none]) / pods, 2)
    return result


async def _one(nodes: int, pods: int) -> Json:
    async with embedded(nodes, pods) as plane, connected(plane) as server:
        (pending,) = await server.create(PODS, (objects.pod("first", 1, objects.OURS),))
        began = time.monotonic()
        async with running(ours(plane)) as process:
            (bound,) = await server.binds(pending["metadata"]["resourceVersion"], 1, START_SECONDS)
            await asyncio.sleep(SETTLE_SECONDS)
            used = process.memory_full_info()
            return {
                "nodes": nodes,
                "pods": pods,
                "first_bind_after_s": round(bound - began, 2),
                "cpu_s": round(sum(process.cpu_times()[:2]), 2),
                "rss_mb": _mb(used.rss),
                "uss_mb": _mb(used.uss),
                "peak_rss_mb": peak_mb(process),
            }


def peak_mb(process: psutil.Process) -> float | None:
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:  # not Linux
        return None
    return next(_mb(1024 * int(line.split()[1])) for line in lines if line.startswith("VmHWM"))


def _mb(size: int) -> float:
    return round(size / 2**20, 1)
