"""Kubelets that admit pods as real ones do: what does not fit when it is seen is refused, whichever client bound it.

They follow the pods of the whole cluster, so they also know which gangs are bound by half, and since when.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from .api import Api, ApiError, Json
from .verifier import charged


@dataclass(frozen=True, slots=True)
class Bound:
    """A pod as its kubelet saw it first: when in the time of the loop, where, its scheduler, and if it fitted."""

    at: float
    node: str
    scheduler: str
    owner: str
    admitted: bool


@dataclass(slots=True)
class Gang:
    """Pods of one owner by uid, and whether each has or had a node; ``at`` of the last event of any."""

    pods: dict[str, bool] = field(default_factory=dict)
    at: float = 0.0

    def half(self, size: int) -> bool:
        """Whether some are bound, some wait, and it was never whole."""
        bound = sum(self.pods.values())
        return 0 < bound < size and bound < len(self.pods)


class Kubelets:
    """One for every node of a cluster.

    ``room`` milli-CPU by node beside what fills it, which are the pods of the scheduler ``fillers``; ``run_seconds``
    how long each other pod runs.
    """

    def __init__(self, api: Api, room: Mapping[str, int], run_seconds: float, fillers: str) -> None:
        self.bound: list[Bound] = []
        self.ended = 0
        """Pods that ran to their end, or were refused."""
        self.gangs: defaultdict[str, Gang] = defaultdict(Gang)
        self._api = api
        self._room = dict(room)
        self._fillers = fillers
        self._run_seconds = run_seconds
        self._seen: set[str] = set()
        self._done: set[str] = set()
        self._held: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._follower: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Kubelets":
        version = (await self._api.request("GET", "/api/v1/pods", query={"limit": "1"}))["metadata"]["resourceVersion"]
        self._follower = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._follower is not None
        for task in (self._follower, *self._tasks):
            task.cancel()
        for task in (self._follower, *self._tasks):
            with suppress(asyncio.CancelledError, ApiError):
                await task

    async def wait(self, look: Callable[[], bool], timeout: float, what: str) -> None:
        """Wait until something is so; fail when the kubelets do, or after a timeout in seconds."""
        assert self._follower is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while not look():
            if self._follower.done():
                self._follower.result()
            assert loop.time() < deadline, f"not within {timeout:g} s: {what}"
            await asyncio.sleep(0.2)

    async def _follow(self, version: str) -> None:
        while True:
            async for kind, item in self._api.watch("pods", version):
                if kind == "ERROR":
                    raise AssertionError(f"the watch of the kubelets ended: {item}")
                version = item["metadata"]["resourceVersion"]
                if kind != "BOOKMARK":
                    self._note(kind, item)
                    self._look(item)

    def _note(self, kind: str, item: Json) -> None:
        if not (owner := owner_of(item)):
            return
        gang = self.gangs[owner]
        gang.at = asyncio.get_running_loop().time()
        if kind == "DELETED":
            gang.pods.pop(item["metadata"]["uid"], None)
        else:
            gang.pods[item["metadata"]["uid"]] = bool(item["spec"].get("nodeName"))

    def _look(self, item: Json) -> None:
        uid, node = item["metadata"]["uid"], item["spec"].get("nodeName", "")
        if node not in self._room or uid in self._seen or item["status"].get("phase") != "Pending":
            return
        if item["spec"]["schedulerName"] == self._fillers:
            return
        self._seen.add(uid)
        asked = charged(item)["cpu"]
        fits = self._held[node] + asked <= self._room[node]
        now = asyncio.get_running_loop().time()
        self.bound.append(Bound(now, node, item["spec"]["schedulerName"], owner_of(item) or uid, fits))
        task = asyncio.create_task(self._run(item, node, asked) if fits else self._refuse(item))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if fits:
            self._held[node] += asked

    async def _run(self, item: Json, node: str, asked: int) -> None:
        await asyncio.sleep(self._run_seconds)
        # As in a kubelet, what a pod held is free as soon as it has ended; the API server learns of it then.
        self._held[node] -= asked
        await self._report(item, {"phase": "Succeeded"})

    async def _refuse(self, item: Json) -> None:
        message = "Pod was rejected: Node didn't have enough resource: cpu"
        await self._report(item, {"phase": "Failed", "reason": "OutOfcpu", "message": message})

    async def _report(self, item: Json, status: Json) -> None:
        metadata = item["metadata"]
        with suppress(ApiError):
            await self._api.patch(
                "pods", metadata["name"], {"status": status}, metadata["namespace"], subresource="status"
            )
        self.ended += 1


def owner_of(item: Json) -> str:
    """The uid of a pod's controller, empty when it has none."""
    owners = item["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])
