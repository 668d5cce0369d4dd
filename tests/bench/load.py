"""Memory with many pods, and CPU and traffic at a steady rate of decisions, on a real API server."""

import asyncio
import time

from . import objects
from .objects import Json
from .race import cluster, ours, running


async def load(nodes: int = 5000, bound: int = 20_000, rate: int = 100, seconds: int = 20) -> Json:
    """Start on a cluster of bound pods, then submit plain pods at a rate."""
    async with cluster(nodes) as (plane, server):
        path = "/api/v1/namespaces/default/pods"
        await server.create(path, (_bound(i, nodes) for i in range(bound)))
        listed = await server.get(path, limit="1")
        version = listed["metadata"]["resourceVersion"]
        async with running(ours(plane)) as process:
            await asyncio.sleep(12)
            after_list = process.memory_info().rss
            watch = asyncio.create_task(server.binds(version, rate * seconds, seconds + 30))
            cpu = sum(process.cpu_times()[:2])
            before = process.io_counters()
            began = time.monotonic()
            for second in range(seconds):
                names = (f"l-{second}-{i}" for i in range(rate))
                await server.create(path, (objects.pod(name, 1, objects.OURS) for name in names))
                await asyncio.sleep(max(0.0, began + second + 1 - time.monotonic()))
            seen = await watch
            spent = time.monotonic() - began
            after = process.io_counters()
            return {
                "nodes": nodes,
                "pods_bound_before": bound,
                "rss_mb_after_list": round(after_list / 2**20, 1),
                "rss_mb_after_load": round(process.memory_info().rss / 2**20, 1),
                "decisions_per_s": round(len(seen) / spent, 1),
                "cpu_cores": round((sum(process.cpu_times()[:2]) - cpu) / spent, 2),
                "received_mb_per_s": round((after.read_chars - before.read_chars) / spent / 1e6, 2),
                "sent_mb_per_s": round((after.write_chars - before.write_chars) / spent / 1e6, 2),
            }


def _bound(number: int, nodes: int) -> Json:
    body = objects.pod(f"b-{number}", 0, "default-scheduler")
    body["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}}
    body["spec"]["nodeName"] = f"node-{number % nodes}"
    return body
