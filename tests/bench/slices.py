"""``python -m tests.bench.slices``: thousands of nodes with 208 devices each, listed and watched in one process.

A server of its own makes the pages of ResourceSlices as they are asked for: one slice of counters and one of devices
for each GPU, as NVIDIA's driver publishes 8 H100s with dynamic MIG. The process that is measured has an engine with
these nodes, and follows the slices with the reflector of the daemon. Then it places pods with a claim for one MIG
instance each.
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
from aiohttp import web

from tests.devices.driver_slices import DRIVER, GROUP, UUID, classes, pool_of, recorded, request, spec_of
from topo_scheduler.api.devices import DeviceClass, ResourceClaim
from topo_scheduler.api.objects import Pod
from topo_scheduler.cli.coroutines import run_async
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.reading.reflector import Reflector
from topo_scheduler.recording.observed_engine import sinks_of_storage
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import RecordDecision
from topo_scheduler.state.decision import Verdict

from . import machine
from .memory import peak_mb
from .objects import Json
from .placing import Cluster

PATH: Final = "/apis/resource.k8s.io/v1/resourceslices"
GPUS: Final = 8
MODE: Final = "dynamicMIG"
DEVICES_OF_GPU: Final = sum(len(item.get("devices", ())) for item in recorded(MODE))
"""The whole GPU, and an instance for each profile and each of its starts."""
MIG_CLASS: Final = "mig.nvidia.com"
LEAF_NODES: Final = 16
WAIT_SECONDS: Final = 300.0
"""Seconds of the engine within which all pods are placed."""
NODE: Final = "@NODE@"
"""Stands for the number of the node in a template."""


# ---------------------------------------------------------------- objects


def templates() -> list[str]:
    """Return the slices of a node as JSON, with a mark where the number of the node goes."""
    written = []
    for number, item in enumerate(pool_of(f"node-{NODE}", MODE, GPUS)):
        item["metadata"] |= {"uid": f"uid-{NODE}-{number}", "resourceVersion": "1", "generation": 1}
        text = json.dumps(item, separators=(",", ":"))  # as an API server writes it
        written.append(text.replace(UUID[:12], f"GPU-{NODE}"))
    return written


# ---------------------------------------------------------------- server


class Pages:
    """Answers lists of slices page by page, and watches with silence."""

    def __init__(self, nodes: int) -> None:
        self._templates = templates()
        self._count = nodes * len(self._templates)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a list or a watch."""
        if request.query.get("watch"):
            response = web.StreamResponse()
            with suppress(ConnectionError):
                await response.prepare(request)
                await asyncio.sleep(3600)
            return response
        begin = int(request.query.get("continue") or 0)
        end = min(self._count, begin + int(request.query.get("limit") or self._count))
        items = ",".join(self._item(number) for number in range(begin, end))
        metadata = {"resourceVersion": "1", **({"continue": str(end)} if end < self._count else {})}
        text = (
            f'{{"kind":"ResourceSliceList","apiVersion":"{GROUP}","metadata":{json.dumps(metadata)},"items":[{items}]}}'
        )
        return web.Response(text=text, content_type="application/json")

    def _item(self, number: int) -> str:
        node, part = divmod(number, len(self._templates))
        return self._templates[part].replace(NODE, str(node))


async def _serve(kubeconfig: Path, nodes: int) -> None:
    application = web.Application()
    application.router.add_get(PATH, Pages(nodes).answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (address,) = runner.addresses
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bench", "cluster": {"server": f"http://127.0.0.1:{address[1]}"}}],
        "users": [{"name": "bench", "user": {"token": "bench"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "current-context": "bench",
    }
    await asyncio.to_thread(kubeconfig.write_text, json.dumps(config))
    sys.stdout.write("serving\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)


@asynccontextmanager
async def _server(nodes: int) -> AsyncIterator[Path]:
    """The server as a process of its own; it ends with its standard input."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.slices"),
            *("--serve", str(kubeconfig), "--nodes", str(nodes)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None and process.stdout is not None
        try:
            if await process.stdout.readline() != b"serving\n":
                raise RuntimeError("the server of slices did not start; see what it said above")
            yield kubeconfig
        finally:
            process.stdin.close()
            await process.wait()


# ---------------------------------------------------------------- what is measured


async def measure(nodes: int, pods: int) -> Json:
    """List the slices of so many nodes twice, then place pods; return memory and times."""
    process = psutil.Process()
    engine = Cluster(nodes, LEAF_NODES).engine
    gc.collect()
    before = _mb(process)
    async with _server(nodes) as kubeconfig:
        client = await Client.connect(str(kubeconfig))
        try:
            sinks = {sink.resource.plural: sink for sink in sinks_of_storage(engine, lambda: None)}
            reflector = Reflector[Any](client, sinks["resourceslices"].resource, sinks["resourceslices"])
            began, cpu = time.monotonic(), time.process_time()
            following = asyncio.create_task(reflector.run())
            lag = await _longest_turn(reflector.synced.wait())
            listed = {"s": time.monotonic() - began, "cpu_s": time.process_time() - cpu, "longest_turn_ms": 1000 * lag}
            after = _mb(process)
            began, cpu = time.monotonic(), time.process_time()
            await reflector.relist()
            again = {"s": time.monotonic() - began, "cpu_s": time.process_time() - cpu}
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        finally:
            await client.close()
    gc.collect()
    result: Json = {
        "nodes": nodes,
        "devices": DEVICES_OF_GPU * GPUS * nodes,
        "json_mb": round(nodes * sum(map(len, templates())) / 2**20, 1),
        "rss_mb": {"with_nodes": before, "listed": after, "listed_anew": _mb(process), "peak": peak_mb(process)},
        "listed": {name: round(value, 2) for name, value in listed.items()},
        "listed_anew": {name: round(value, 2) for name, value in again.items()},
    }
    result["placing"] = _place(engine, sinks, pods)
    result["rss_mb"] |= {"with_pods_placed": _mb(process), "peak": peak_mb(process)}
    return {**result, "commit": machine.commit()}


async def _longest_turn(done: Any) -> float:
    """Wait for something; return the most CPU seconds that the event loop used without a turn for others."""
    waiting = asyncio.ensure_future(done)
    longest = 0.0
    while not waiting.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    await waiting
    return longest


def _place(engine: Engine, sinks: Json, pods: int) -> Json:
    """Place pods with one claim each; add a class in between. Times are of the engine's steps, CPU, milliseconds."""
    for sink in sinks.values():
        sink.synced()
    sinks["deviceclasses"].applied([_class(MIG_CLASS)])
    first, first_decisions = _step(engine, sinks, 0, 1)
    _, earlier = _step(engine, sinks, 1, pods // 2)
    sinks["deviceclasses"].applied([_class("another")])
    settled, _ = _step(engine, sinks, 0, 0)
    after_class, [again] = _step(engine, sinks, pods, 1)
    _, others = _step(engine, sinks, pods + 1, pods // 2)
    warm = sorted([*earlier, *others])
    return {
        "pods": len(warm) + 2,
        "first_decision_ms": round(first_decisions[0], 1),
        "first_longest_step_ms": round(first, 1),
        "step_after_a_class_was_added_ms": round(settled, 1),
        "decision_after_a_class_was_added_ms": round(again, 1),
        "longest_step_after_a_class_was_added_ms": round(after_class, 1),
        "decision_ms": {"p50": round(warm[len(warm) // 2], 3), "p99": round(warm[int(0.99 * len(warm))], 3)},
    }


def _step(engine: Engine, sinks: Json, begin: int, count: int) -> tuple[float, list[float]]:
    """Let pods come and place them; return the longest step and the decisions, in milliseconds."""
    arriving = [_pod(begin + number) for number in range(count)]
    sinks["resourceclaims"].applied([_claim(begin + number) for number in range(count)])
    engine.pods_applied(arriving, 0.0)
    longest, now, placed = 0.0, 0.0, 0
    decisions: list[float] = []
    while now < WAIT_SECONDS:
        began = time.thread_time()
        said = engine.step(now, time.thread_time)
        longest = max(longest, time.thread_time() - began)
        for instruction in said:
            if isinstance(instruction, RecordDecision):
                decisions.append(1000 * instruction.seconds)
                placed += instruction.decision.verdict is Verdict.PLACED
        if not engine.pending_work:
            if placed == count:
                break
            now += 1  # some are in backoff
    if placed != count:
        raise RuntimeError(f"{placed} of {count} pods were placed")
    return 1000 * longest, decisions


def _class(name: str) -> DeviceClass:
    """The driver's class of MIG instances, by another name."""
    (item,) = [item for item in classes() if item["metadata"]["name"] == MIG_CLASS]
    return msgspec.convert({**item, "metadata": {"name": name, "uid": name}}, DeviceClass)


def _claim(number: int) -> ResourceClaim:
    owner = {"kind": "Pod", "name": f"p{number}", "uid": f"uid-p{number}", "controller": True}
    metadata = {"name": f"c{number}", "namespace": "default", "uid": f"uid-c{number}", "ownerReferences": [owner]}
    spec = spec_of(request("gpu", MIG_CLASS, f"device.attributes['{DRIVER}'].profile == '1g.10gb'"))
    return msgspec.convert({"metadata": metadata, "spec": spec}, ResourceClaim)


def _pod(number: int) -> Pod:
    pod = {
        "metadata": {"name": f"p{number}", "namespace": "default", "uid": f"uid-p{number}"},
        "spec": {
            "schedulerName": "topology-aware-scheduler",
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "10m"}}}],
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "one"}],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": f"c{number}"}]},
    }
    return msgspec.convert(pod, Pod)


def _mb(process: psutil.Process) -> float:
    return round(process.memory_info().rss / 2**20, 1)


async def slices() -> Json:
    """5,000 nodes, and 1,000 pods."""
    return await measure(5000, 1000)


def main() -> None:
    """Print what was measured as JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.slices", description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000, help="nodes with 8 GPUs of 26 devices each")
    parser.add_argument("--pods", type=int, default=1000, help="pods to place")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        run_async(_serve(arguments.serve, arguments.nodes))
    else:
        print(json.dumps(asyncio.run(measure(arguments.nodes, arguments.pods)), indent=1))


if __name__ == "__main__":
    main()
