"""Watches every pod during a test and notes what must never be: an overbooked node, a pod that moved.

It is a watcher of its own and decides nothing; it knows pods only as the API server tells them.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress

import aiohttp

from .api import Api, ApiError, Json
from .verifier import allocatable_of, charged, fits


class Recorder:
    """Follows pods and nodes of the whole cluster."""

    def __init__(self, api: Api) -> None:
        self.pods: dict[str, Json] = {}
        """Every pod there is, by uid."""
        self.bound: dict[str, str] = {}
        """The node of every pod that was ever bound, by uid."""
        self.problems: list[str] = []
        self._api = api
        self._nodes: dict[str, dict[str, int]] = {}
        self._on_node: defaultdict[str, dict[str, dict[str, int]]] = defaultdict(dict)
        self._tasks: list[asyncio.Task[None]] = []
        self._synced = asyncio.Event()

    async def start(self) -> None:
        await self._list_nodes()
        self._tasks = [asyncio.create_task(self._follow("pods")), asyncio.create_task(self._follow("nodes"))]
        await self._synced.wait()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    async def _list_nodes(self) -> str:
        answer = await self._api.request("GET", "/api/v1/nodes")
        for item in answer["items"]:
            self._nodes[item["metadata"]["name"]] = allocatable_of(item)
        return str(answer["metadata"]["resourceVersion"])

    async def _list_pods(self) -> str:
        answer = await self._api.request("GET", "/api/v1/pods")
        listed = {item["metadata"]["uid"] for item in answer["items"]}
        for uid in self.pods.keys() - listed:
            self._gone(uid)
        # A list is one moment, sorted by name: what has ended by then holds nothing when another pod is judged.
        for item in sorted(answer["items"], key=lambda pod: not _ended(pod)):
            self._seen(item)
        self._synced.set()
        return str(answer["metadata"]["resourceVersion"])

    async def _follow(self, plural: str) -> None:
        while True:
            with suppress(aiohttp.ClientError, ConnectionError, ApiError, TimeoutError):
                version = await (self._list_pods() if plural == "pods" else self._list_nodes())
                async for kind, item in self._api.watch(plural, version):
                    if kind == "ERROR":
                        break
                    if kind == "BOOKMARK":
                        continue
                    if plural == "nodes":
                        if kind != "DELETED":
                            self._nodes[item["metadata"]["name"]] = allocatable_of(item)
                    elif kind == "DELETED":
                        self._gone(item["metadata"]["uid"])
                    else:
                        self._seen(item)
            await asyncio.sleep(0.05)

    def _gone(self, uid: str) -> None:
        self.pods.pop(uid, None)
        for held in self._on_node.values():
            held.pop(uid, None)

    def _seen(self, item: Json) -> None:
        uid, name = item["metadata"]["uid"], f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        self.pods[uid] = item
        where = item["spec"].get("nodeName", "")
        before = self.bound.get(uid)
        if before is not None and before != where:
            self.problems.append(f"{name} was bound to {before} and later to {where or 'nothing'}")
        if not where:
            return
        self.bound[uid] = where
        if _ended(item):
            self._on_node[where].pop(uid, None)
            return
        fresh = uid not in self._on_node[where]
        self._on_node[where][uid] = charged(item)
        if fresh and where in self._nodes and not fits(self._nodes[where], list(self._on_node[where].values())):
            holders = ", ".join(sorted(self.name_of(uid) for uid in self._on_node[where]))
            self.problems.append(f"node {where} was overbooked when {name} was bound: {holders}")

    def name_of(self, uid: str) -> str:
        """Return the name of a pod for messages."""
        item = self.pods.get(uid)
        return f"{item['metadata']['namespace']}/{item['metadata']['name']}" if item else uid


def _ended(pod: Json) -> bool:
    return pod["status"].get("phase") in ("Succeeded", "Failed")
