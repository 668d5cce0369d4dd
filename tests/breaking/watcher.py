"""kopf's part in the loop of the test: it lists, watches and lists again as kopf does, and calls the handlers.

As kopf does it takes up a watch that broke at the version it has seen. What was deleted while its version expired is
missing from the next list, of which its session reports the Migrations.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from topo_scheduler.api.migrations import GROUP, PLURAL, VERSION
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError, NotFound
from topo_scheduler.recovery.controller.handlers import Watcher

from .wire import WireConnection

PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 5.0)


class LoopWatcher(Watcher):
    """The watcher without a thread."""

    _task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.create_task(self._watch_all())

    async def stop(self) -> None:
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def wrong(self) -> str:
        if self._task is None or not self._task.done() or self._stop.is_set():
            return ""
        return f"the watcher has ended: {self._task.exception()!r}"

    async def _watch_all(self) -> None:
        connection = await self.connect()
        assert isinstance(connection, WireConnection) and connection.wire is not None
        client = Client(connection.wire.transport(), user_agent="kopf")
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(client, "/api/v1/nodes", self._node, lambda keys: None))
            path = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
            group.create_task(self._follow(client, path, self._migration, self._listed))

    async def _follow(self, client: Client, path: str, handler: Any, listed: Callable[[frozenset[str]], None]) -> None:
        failures = 0
        while True:
            try:
                page = json.loads(await client.request("GET", path, timeout=30.0))
                version = page["metadata"]["resourceVersion"]
                metadata = [item["metadata"] for item in page["items"]]
                listed(frozenset(f"{meta.get('namespace', '')}/{meta['name']}" for meta in metadata))
                for resource in page["items"]:
                    await handler({"type": None, "object": resource})
                failures = 0
                while version:
                    version = await self._stream(client, path, version, handler)
            except NotFound:
                raise
            except KubeError:
                await asyncio.sleep(PAUSES[min(failures, len(PAUSES) - 1)])
                failures += 1

    async def _stream(self, client: Client, path: str, version: str, handler: Any) -> str:
        """Follow one watch; return the version to go on from, empty where that is too old."""
        query = {"watch": "true", "resourceVersion": version, "allowWatchBookmarks": "true"}
        try:
            async with client.stream(path, query=query) as lines:
                async for batch in lines:
                    for line in filter(None, batch):
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            return ""
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            await handler(event)
        except KubeError:
            await asyncio.sleep(PAUSES[0])
        except json.JSONDecodeError:
            pass  # half a line
        return version
