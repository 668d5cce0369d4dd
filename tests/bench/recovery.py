"""What recovery costs: planning for failures in a large cluster, and the thread of kopf on many nodes."""

import asyncio
import os
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from tests.crds import migration_definition
from tests.helpers import EPOCH
from tests.recovery.world import World
from topo_scheduler.api.migrations import Phase
from topo_scheduler.api.recovery import RecoveryLimits, RecoverySpec
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.recovery.controller.handlers import Watcher
from topo_scheduler.recovery.detection.node_health import NodeHealth
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer

from .objects import Json

IN_LEAF = 16


def healing(nodes: int = 1000, failed: int = 8, free: int = 2) -> Json:
    """Gangs of 7 fill all leaves but ``free`` nodes of each; some nodes fail at once."""
    limits = RecoveryLimits(at_once=1000, per_namespace=1000, per_hour=10_000)
    spec = RecoverySpec(enabled=True, force_delete=True, limits=limits)
    leaves = nodes // IN_LEAF
    world = World(spec, {f"s{n // 8}/l{n}": IN_LEAF for n in range(leaves)})
    gangs = leaves * ((IN_LEAF - free) // 7)
    for number in range(gangs):
        world.gang(f"g{number}", 7)
    world.run()
    where = world.nodes_of("g")
    lost = random.Random(1).sample(sorted(where.values()), failed)
    leaf_of = {pod: node.rpartition("-")[0] for pod, node in where.items()}
    world.fail(*lost)
    world.now = world.d.now = world.now + 10.0
    began = time.process_time()
    out = world.recovery.step(world.now)
    for instruction in out:
        world.carry_out(instruction)
    taken = time.process_time() - began
    steps = [taken]
    while any(phase in (None, Phase.PLANNED) for phase in world.phases()):
        began = time.process_time()
        out = world.recovery.step(world.now)
        steps.append(time.process_time() - began)
        for instruction in out:
            world.carry_out(instruction)
    world.run(5)
    after = world.nodes_of("g")
    moved = [pod for pod, node in where.items() if after.get(pod) != node]
    return {
        "nodes": leaves * IN_LEAF,
        "gangs": gangs,
        "failed_nodes": failed,
        "cpu_s_until_all_seats_are_held": round(sum(steps), 3),
        "longest_step_s": round(max(steps), 3),
        "migrations": len(world.migrations),
        "done": sum(phase is Phase.DONE for phase in world.phases()),
        "moved_pods": len(moved),
        "lower_bound": sum(node in lost for node in where.values()),
        "kept_their_leaf": sum(after[pod].rpartition("-")[0] == leaf_of[pod] for pod in moved if pod in after),
    }


def _node(number: int, ready: str = "True") -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": f"n{number}", "labels": {f"example.com/label-{n}": f"value-{n}" for n in range(20)}},
        "status": {
            "conditions": [{"type": "Ready", "status": ready}],
            "capacity": {"nvidia.com/gpu": "8"},
            "allocatable": {"nvidia.com/gpu": "8"},
            "images": [{"names": [f"registry.example.com/image-{n}:v1"], "sizeBytes": n} for n in range(20)],
        },
    }


async def watching(nodes: int = 5000, heartbeats: int = 2000) -> Json:
    """The thread of kopf beside an embedded server of so many nodes, of which it hears, and then heartbeats."""
    process = psutil.Process(os.getpid())
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedAPIServer() as server:
            server.store.create("customresourcedefinitions.apiextensions.k8s.io", migration_definition())
            for number in range(nodes):
                server.store.create("nodes", _node(number))
            client = await Client.connect(str(server.write_kubeconfig(Path(folder) / "admin")))
            watcher = Watcher(RecoverySpec(enabled=True), ("nvidia.com/gpu",), client.connection, lambda: None)
            before, began = process.memory_info().rss, time.monotonic()
            watcher.start()
            heard = await _until(watcher, nodes)
            listed = time.monotonic() - began
            after = process.memory_info().rss
            cpu = _cpu_of_thread()
            for number in range(heartbeats):
                _touch(server, number)
                if number % 50 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(8.0)
            beats = _cpu_of_thread() - cpu
            _touch(server, 1, ready="Unknown")
            began = time.monotonic()
            await _until(watcher, 1)
            seen = time.monotonic() - began
            await watcher.stop()
            await client.close()
    return {
        "nodes": nodes,
        "seen": heard,
        "listed_s": round(listed, 2),
        "thread_cpu_s": round(cpu, 2),
        "memory_mb_with_import_and_lists": round((after - before) / 2**20),
        "cpu_ms_per_heartbeat": round(1e3 * beats / heartbeats, 3),
        "failure_seen_after_ms": round(1e3 * seen, 1),
    }


def _touch(server: EmbeddedAPIServer, number: int, ready: str = "True") -> None:
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": str(EPOCH + time.time())}
    server.store.modify(
        "nodes",
        f"n{number}",
        "",
        lambda node: {**node, "status": {**node["status"], "conditions": [condition]}},
        subresource="status",
    )


async def _until(watcher: Watcher, count: int) -> int:
    heard = 0
    async with asyncio.timeout(300):
        while heard < count:
            heard += sum(isinstance(event, NodeHealth) for event in watcher.take())
            await asyncio.sleep(0.005)
    return heard


def _cpu_of_thread() -> float:
    """CPU seconds of the busiest thread but the main one: kopf's, on an otherwise idle process."""
    own = os.getpid()
    return float(
        max(thread.user_time + thread.system_time for thread in psutil.Process(own).threads() if thread.id != own)
    )


async def recovery() -> Json:
    """All of it."""
    return {"healing": {str(failed): healing(failed=failed) for failed in (8, 16)}, "watching": await watching()}
