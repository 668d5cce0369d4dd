"""When what happened, as a watcher sees it: nodes that are not ready, pods that go and come, Migrations."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

from tests.e2e.api import Api, ApiError, Json, path

INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass
class PodLife:
    """A pod of a Job. Moments are seconds since the epoch, None where it has not come to that.

    ``released`` the first moment at which its Job could make another one: with ``podReplacementPolicy: Failed`` when it
    has ended, else when it is being deleted.
    """

    uid: str
    gang: str
    index: int
    created: float
    node: str = ""
    bound: float | None = None
    released: float | None = None
    over: bool = False


@dataclass
class Timeline:
    """Follows nodes, pods of Jobs, and Migrations of the whole cluster, from `start` to `stop`.

    ``patient`` says of a gang whether its Job waits for the end of a pod. ``down`` when a node that is not ready was
    first seen so. ``changed`` when any pod or Migration changed last.
    """

    api: Api
    patient: Callable[[str], bool]
    pods: dict[str, PodLife] = field(default_factory=dict)
    down: dict[str, float] = field(default_factory=dict)
    migrations: dict[str, Json] = field(default_factory=dict)
    changed: float = 0.0
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Return when all there is has been seen."""
        listed = [asyncio.Event() for _ in range(3)]
        seers = (("nodes", self._node), ("pods", self._pod), ("migrations", self._migration))
        for (plural, see), event in zip(seers, listed, strict=True):
            self._tasks.append(asyncio.create_task(self._follow(plural, see, event)))
        for event in listed:
            await event.wait()

    async def stop(self) -> None:
        """End what `start` began."""
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with suppress(asyncio.CancelledError):
                await task

    def running(self, gang: str) -> dict[int, PodLife]:
        """Return the bound pods of a gang that are not terminating, by index."""
        return {
            pod.index: pod
            for pod in self.pods.values()
            if pod.gang == gang and pod.bound is not None and pod.released is None and not pod.over
        }

    def used(self) -> set[str]:
        """Return the nodes of bound pods that are not terminating."""
        return {
            pod.node for pod in self.pods.values() if pod.bound is not None and pod.released is None and not pod.over
        }

    # ------------------------------------------------------------ inside

    async def _follow(self, plural: str, see: Callable[[Json, bool], None], listed: asyncio.Event) -> None:
        """See what there is, then every change; again where a watch ends."""
        known: dict[str, Json] = {}
        while True:
            with suppress(aiohttp.ClientError, ConnectionError, ApiError, TimeoutError):
                answer = await self.api.request("GET", path(plural, None))
                present = {item["metadata"]["uid"]: item for item in answer["items"]}
                for uid in known.keys() - present.keys():
                    see(known.pop(uid), True)
                for uid, item in present.items():
                    known[uid] = item
                    see(item, False)
                listed.set()
                async for kind, item in self.api.watch(plural, str(answer["metadata"]["resourceVersion"])):
                    if kind == "ERROR":
                        break
                    if kind != "BOOKMARK":
                        known[item["metadata"]["uid"]] = item
                        see(item, kind == "DELETED")
            await asyncio.sleep(0.05)

    def _node(self, item: Json, deleted: bool) -> None:
        name = item["metadata"]["name"]
        conditions = item["status"].get("conditions") or []
        ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
        if ready and not deleted:
            self.down.pop(name, None)
        else:
            self.down.setdefault(name, time.time())

    def _pod(self, item: Json, deleted: bool) -> None:
        meta, now = item["metadata"], time.time()
        owner = next(
            (reference for reference in meta.get("ownerReferences") or [] if reference.get("controller")), None
        )
        if owner is None or owner["kind"] != "Job":
            return
        gang = f"{meta['namespace']}/{owner['name']}"
        index = int((meta.get("annotations") or {}).get(INDEX, -1))
        pod = self.pods.setdefault(meta["uid"], PodLife(meta["uid"], gang, index, now))
        self.changed = now
        if (node := item["spec"].get("nodeName", "")) and pod.bound is None:
            pod.node, pod.bound = node, now
        ended = item["status"].get("phase") in ("Failed", "Succeeded")
        if pod.released is None and (deleted or ended or (meta.get("deletionTimestamp") and not self.patient(gang))):
            pod.released = now
        pod.over = pod.over or deleted or ended

    def _migration(self, item: Json, deleted: bool) -> None:
        key = f"{item['metadata']['namespace']}/{item['metadata']['name']}"
        self.changed = time.time()
        if deleted:
            self.migrations.pop(key, None)
        else:
            self.migrations[key] = item
