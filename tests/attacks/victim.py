"""Pods and gangs of another namespace at a steady rate, and how long each is pending, from the API's objects alone."""

import asyncio
import itertools
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from tests.e2e import objects
from tests.e2e.api import Api, ApiError, Json

NAMESPACE: Final = "victim"
GANG: Final = 8
PODS_SECONDS: Final = 0.5
"""Seconds between two pods."""
GANGS_SECONDS: Final = 2.0
"""Seconds between two gangs."""
RUN_SECONDS: Final = 8.0
LAST_BIND_SECONDS: Final = 60.0
"""How long after the last pod was created all must be bound."""


@dataclass(slots=True)
class Times:
    """Seconds for which pods and gangs were pending: from the watch event of a pod's creation to that of its node.

    A gang's are from the creation of its last member to the bind of its last.
    """

    pods: list[float] = field(default_factory=list)
    gangs: list[float] = field(default_factory=list)
    pending: int = 0
    """Pods without a node at the end."""

    def summary(self) -> Json:
        """As JSON."""
        return {"pods": spread(self.pods), "gangs": spread(self.gangs), "never_bound": self.pending}


def spread(values: list[float]) -> Json:
    """Return count, quantiles and maximum of seconds."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)

    def quantile(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)

    return {"count": len(ordered), "p50": quantile(0.5), "p99": quantile(0.99), "max": round(ordered[-1], 3)}


class Victim:
    """Creates pods and gangs, and watches its namespace."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._numbers = itertools.count()
        self._created: dict[str, float] = {}
        self._bound: dict[str, float] = {}
        self._gang_of: dict[str, str] = {}
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to watch."""
        version = (await self._api.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods"))["metadata"]
        self._watch = asyncio.create_task(self._follow(version["resourceVersion"]))

    async def stop(self) -> None:
        """End watching."""
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    async def load(self, seconds: float) -> Times:
        """Create pods and gangs for a time, wait until they are bound, and return how long they were pending."""
        before = set(self._created)
        async with asyncio.timeout(seconds + 30):
            await asyncio.gather(self._pods(seconds), self._gangs(seconds))
        deadline = time.monotonic() + LAST_BIND_SECONDS
        while (self._created.keys() - before) - self._bound.keys():
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.1)
        return self._times(self._created.keys() - before)

    def _times(self, uids: set[str]) -> Times:
        times = Times(pending=len(uids - self._bound.keys()))
        gangs: defaultdict[str, list[str]] = defaultdict(list)
        for uid in uids:
            gang = self._gang_of.get(uid, "")
            if gang:
                gangs[gang].append(uid)
            elif uid in self._bound:
                times.pods.append(self._bound[uid] - self._created[uid])
        for members in gangs.values():
            if all(uid in self._bound for uid in members):
                last = max(self._created[uid] for uid in members)
                times.gangs.append(max(0.0, max(self._bound[uid] for uid in members) - last))
        return times

    async def _pods(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            name = f"pod-{next(self._numbers)}"
            await self._api.create("pods", objects.pod(name, 2, run=RUN_SECONDS, namespace=NAMESPACE))
            await asyncio.sleep(max(0.0, begun + PODS_SECONDS - time.monotonic()))

    async def _gangs(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            begun = time.monotonic()
            job = objects.gang(f"gang-{next(self._numbers)}", GANG, run=RUN_SECONDS, namespace=NAMESPACE)
            job["spec"]["ttlSecondsAfterFinished"] = 5
            await self._api.create("jobs", job, NAMESPACE)
            await asyncio.sleep(max(0.0, begun + GANGS_SECONDS - time.monotonic()))

    async def _follow(self, version: str) -> None:
        while True:
            with suppress(aiohttp.ClientError, ConnectionError, ApiError, TimeoutError):
                async for kind, item in self._api.watch("pods", version, NAMESPACE):
                    if kind == "ERROR":
                        raise RuntimeError(f"the watch of namespace {NAMESPACE} broke: {item}")
                    version = item["metadata"]["resourceVersion"]
                    if kind != "BOOKMARK":
                        self._see(kind, item)

    def _see(self, kind: str, item: Json) -> None:
        metadata, now = item["metadata"], time.monotonic()
        uid = metadata["uid"]
        owners = metadata.get("ownerReferences") or []
        if kind == "ADDED":
            self._created.setdefault(uid, now)
            self._gang_of[uid] = owners[0]["name"] if owners else ""
        if item["spec"].get("nodeName"):
            self._bound.setdefault(uid, now)
