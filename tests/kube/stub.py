"""A server that answers whatever a test wants: for what no well-behaved API server would send."""

import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from aiohttp import web

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fence import UNFENCED

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that gives every request to ``handler``."""
    runner = web.ServerRunner(web.Server(handler, access_log=None), handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def kubeconfig(folder: Path, server: str, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    """A kubeconfig for that server."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stub", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "stub", "user": user or {}}],
        "contexts": [{"name": "stub", "context": {"cluster": "stub", "user": "stub"}}],
        "current-context": "stub",
    }
    path = folder / "config"
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def stubbed(handler: Handler, user: dict[str, Any] | None = None) -> AsyncIterator[Client]:
    """A client of such a server."""
    with tempfile.TemporaryDirectory() as folder:
        async with serving(handler) as address:
            client = (await Client.connect(str(kubeconfig(Path(folder), address, user)))).fenced(UNFENCED)
            try:
                yield client
            finally:
                await client.close()


def status(code: int, reason: str = "", message: str = "", **more: Any) -> web.Response:
    """An error as the API server words it."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message, **more}
    return web.json_response(body, status=code)


def success(code: int = 200) -> web.Response:
    """An answer of the API server without an object."""
    return web.json_response({"kind": "Status", "status": "Success"}, status=code)


def fault(*_: object, **__: object) -> NoReturn:
    """Fail as code with an error of its own does."""
    raise KeyError("not expected")
