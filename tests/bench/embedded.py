"""The embedded API server as a process of its own: ``python -m tests.bench.embedded KUBECONFIG NODES PODS``.

It serves until its standard input ends, so it never outlives the process that started it.
"""

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from topo_scheduler.cli.coroutines import run_async
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer

from . import objects

START_SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class Embedded:
    """Where it is; see `server.Plane`."""

    kubeconfig: Path
    url: str
    token: str
    ca_file: None = None


@asynccontextmanager
async def embedded(nodes: int, pods: int = 0) -> AsyncIterator[Embedded]:
    """Such a server with nodes and with pods that are bound to them, while the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", __name__, str(kubeconfig), str(nodes), str(pods)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS):
                if await process.stdout.readline() != b"serving\n":
                    raise RuntimeError("the embedded API server did not start; see what it said above")
            config = json.loads(kubeconfig.read_text())
            yield Embedded(kubeconfig, config["clusters"][0]["cluster"]["server"], config["users"][0]["user"]["token"])
        finally:
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), 10)
            except TimeoutError:
                process.kill()
                await process.wait()


async def _serve(kubeconfig: Path, nodes: int, pods: int) -> None:
    async with EmbeddedAPIServer() as server:
        for number in range(nodes):
            server.store.create("nodes", objects.node(number))
        for number in range(pods):
            server.store.create("pods", objects.bound_pod(number, nodes))
        server.write_kubeconfig(kubeconfig)
        sys.stdout.write("serving\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    run_async(_serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
