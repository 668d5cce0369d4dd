"""Memory with many pods, and CPU and traffic at rest and at a steady rate of decisions, on a real API server.

Kubelets report as real ones do, see `kubelets`.
"""

import asyncio
import time
from typing import Any

import psutil

from . import objects
from .kubelets import Kubelets, reporting
from .memory import SETTLE_SECONDS, START_SECONDS
from .objects import Json
from .race import PODS, cluster, ours, running


async def load(nodes: int = 5000, bound: int = 20_000, rate: int = 100, seconds: int = 20) -> Json:
    """Start on a cluster of bound pods, look at it at rest, then submit plain pods at a rate."""
    async with cluster(nodes, reporting) as (plane, server):
        running_pods = await server.create(PODS, (objects.bound_pod(i, nodes) for i in range(bound)))
        kubelets = Kubelets(server, (f"node-{number}" for number in range(nodes)))
        await kubelets.run_already(running_pods)
        (first,) = await server.create(PODS, (objects.pod("first", 1, objects.OURS),))
        version = first["metadata"]["resourceVersion"]
        async with kubelets.reporting(version), running(ours(plane)) as process:
            # From then on it has listed everything and loaded its kernels, which counts as read too.
            if not await server.binds(version, 1, START_SECONDS):
                raise TimeoutError(f"no pod was bound within {START_SECONDS:g} s")
            await asyncio.sleep(SETTLE_SECONDS)
            kubelets.statuses = kubelets.heartbeats = 0
            after_list = process.memory_info().rss
            meter = Meter(process)
            await asyncio.sleep(10)
            rest = meter.read()
            watch = asyncio.create_task(server.binds(version, rate * seconds + 1, seconds + 30))
            meter = Meter(process)
            began = time.monotonic()
            for second in range(seconds):
                names = (f"l-{second}-{i}" for i in range(rate))
                await server.create(PODS, (objects.pod(name, 1, objects.OURS) for name in names))
                await asyncio.sleep(max(0.0, began + second + 1 - time.monotonic()))
            seen = await watch
            work = meter.read(len(seen) - 1)
            return {
                "nodes": nodes,
                "pods_bound_before": bound,
                "wanted": rate * seconds,
                "bound": len(seen) - 1,
                "rss_mb_after_list": round(after_list / 2**20, 1),
                "rss_mb_after_load": round(process.memory_info().rss / 2**20, 1),
                "statuses_of_pods_written": kubelets.statuses,
                "statuses_of_nodes_written": kubelets.heartbeats,
                "at_rest": rest,
                "at_work": work,
            }


class Meter:
    """What a process uses and moves from now on; bytes are those of TLS, of watches, requests and answers."""

    def __init__(self, process: psutil.Process) -> None:
        self._process = process
        self._before = self._now()

    def _now(self) -> tuple[float, float, Any]:
        return time.monotonic(), sum(self._process.cpu_times()[:2]), self._process.io_counters()

    def read(self, decisions: int = 0) -> Json:
        """Return rates since the start; with ``decisions`` also what each of them took."""
        (began, cpu_before, io_before), (ended, cpu, io) = self._before, self._now()
        spent, used = ended - began, cpu - cpu_before
        received, sent = io.read_chars - io_before.read_chars, io.write_chars - io_before.write_chars
        rates = {
            "cpu_cores": round(used / spent, 3),
            "received_mb_per_s": round(received / spent / 1e6, 4),
            "sent_mb_per_s": round(sent / spent / 1e6, 4),
        }
        if decisions:
            rates |= {
                "decisions_per_s": round(decisions / spent, 1),
                "cpu_ms_per_decision": round(1e3 * used / decisions, 2),
                "received_bytes_per_decision": round(received / decisions),
                "sent_bytes_per_decision": round(sent / decisions),
            }
        return rates
