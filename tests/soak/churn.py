"""What never stops in a cluster: gangs and pods come, run and end; nodes fail and heal; watches break."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from tests.breaking.world import MIGRATIONS, World
from tests.e2e import objects
from topo_scheduler.simulation.apiserver import BreakWatch, Json, StoreEvent
from topo_scheduler.simulation.apiserver.deletion import DeleteOptions

GPUS: Final = 8
LEAF: Final = 32
"""Nodes of a leaf."""
SPINE: Final = 8
"""Leaves of a spine."""
KEPT: Final = 120.0
"""Seconds after which what is over is deleted, as the controllers of TTLs do."""
SIZES: Final = (1, 1, 2, 4, 8, 8, 16, 32)
LARGE: Final = 64
"""Members of gangs that wait for a while, so that nodes are held for them."""


def fabric(pods: int) -> dict[str, int]:
    """Return leaves with room for so many pods of a GPU each, and a quarter more."""
    nodes = max(24, pods * 5 // (4 * GPUS))
    width = min(LEAF, max(4, nodes // 6))
    return {
        f"s{1 + number // SPINE}/l{1 + number % SPINE}": min(width, nodes - number * width)
        for number in range((nodes + width - 1) // width)
    }


@dataclass
class Churn:
    """Keeps about so many pods in a cluster, for ever."""

    world: World
    pods: int
    seed: int = 1
    calm: float = 1.0
    """How many times as rare as in a soak failures, disturbances and moves are."""
    heard: int = 0
    """Changes of nodes, pods, Jobs, ReplicaSets and Migrations so far."""
    begun: dict[str, int] = field(default_factory=dict)
    """What happened how often, by what."""
    _alive: int = 0
    _number: int = 0
    _over: list[tuple[float, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        # A pod's run on average: about eleven begin and end in a second, fewer where there are few.
        self.seconds = max(60.0, min(900.0, 0.09 * self.pods))
        self.world.store.observe(self._notice)

    def _notice(self, table: str, event: StoreEvent) -> None:
        if table in ("events.events.k8s.io", "leases.coordination.k8s.io"):
            return
        self.heard += 1
        now = self.world.loop.time()
        if table == "pods":
            self._alive += (event.before is None) - (event.after is None)
        if event.after is None:
            return
        status: Json = event.after.get("status") or {}
        over = (table == "jobs.batch" and status.get("completionTime")) or (
            table == MIGRATIONS and status.get("phase") in ("Done", "Failed", "Cancelled")
        )
        if over:
            self._over.append((now + KEPT, table, event.after.key.name))

    def _count(self, what: str) -> None:
        self.begun[what] = self.begun.get(what, 0) + 1

    async def run(self) -> None:
        """Go on until cancelled."""
        async with asyncio.TaskGroup() as group:
            for work in (self._come(), self._fail(), self._clear(), self._disturb(), self._drain()):
                group.create_task(work)

    async def _come(self) -> None:
        """Keep the number of pods."""
        while True:
            while self._alive < self.pods:
                self._submit(self.random.choice(SIZES))
                await asyncio.sleep(0)
            if self.random.random() < 0.02 and self.pods >= 8 * LARGE:
                self._submit(LARGE)
            await asyncio.sleep(1.0)

    def _submit(self, size: int) -> None:
        self._number += 1
        name, draw = f"gang-{self._number}", self.random
        run = max(20.0, draw.expovariate(1 / self.seconds))
        said = {}
        if draw.random() < 0.3:
            said["expected-duration"] = f"{round(run)}s"
        if draw.random() < 0.2:
            said["on-failure"] = "restart-gang"
        if draw.random() < 0.1:
            said["network-bandwidth"] = "1Gb"
        self._count("gangs" if size > 1 else "pods alone")
        if size > 1:
            said["gpu-count"] = str(size)
        job = objects.job(name, size, 1, said, run=run)
        job["spec"]["backoffLimit"] = 1_000
        self.world.store.create("jobs.batch", job)

    async def _fail(self) -> None:
        """Nodes fall silent for a while, some of them for a moment only; once in a while a whole leaf."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / (20.0 * self.calm)))
            names = sorted(self.world.node_names())
            if self.random.random() < 0.02:
                first = self.random.choice(names)
                leaf = [name for name in names if name.rpartition("-")[0] == first.rpartition("-")[0]]
                self._silence(leaf, 120.0, "leaves that failed")
            else:
                self._silence([self.random.choice(names)], self.random.choice((2.0, 60.0, 300.0)), "nodes that failed")

    def _silence(self, nodes: list[str], seconds: float, what: str) -> None:
        self._count(what)
        self.world.fail(*nodes)
        asyncio.get_running_loop().call_later(seconds, self.world.heal, *nodes)

    async def _clear(self) -> None:
        """Delete what has been over for a while, and events."""
        store = self.world.store
        while True:
            await asyncio.sleep(10.0)
            for record in store.list("events.events.k8s.io"):
                store.remove(store.kind("events.events.k8s.io"), record)
            now = self.world.loop.time()
            due, self._over = (
                [entry for entry in self._over if entry[0] <= now],
                [entry for entry in self._over if entry[0] > now],
            )
            for _, table, name in dict.fromkeys(due):
                if store.find(table, name, "default") is not None:
                    store.delete(table, name, "default", DeleteOptions(propagation="Background"))

    async def _disturb(self) -> None:
        """Watches break, pods of another scheduler come."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / (30.0 * self.calm)))
            if self.random.random() < 0.3:
                expires = self.random.random() < 0.1
                self._count("watches that broke")
                self.world.server.break_watches(BreakWatch("expire" if expires else "drop"))
            else:
                self._number += 1
                self._count("pods of others")
                node = self.random.choice(sorted(self.world.node_names()))
                self.world.foreign(f"other-{self._number}", node, gpus=0)
                self._over.append((self.world.loop.time() + KEPT, "pods", f"other-{self._number}"))

    async def _drain(self) -> None:
        """A user asks for a move now and then."""
        while True:
            await asyncio.sleep(self.random.expovariate(1 / (45.0 * self.calm)))
            bound = self.world.pods(bound=True)
            ours = [pod for pod in bound if pod["metadata"].get("ownerReferences")]
            if ours:
                self._number += 1
                self._count("moves asked for")
                self.world.request(f"asked-{self._number}", self.random.choice(ours)["metadata"]["name"])
