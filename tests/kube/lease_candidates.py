"""Candidates for a Lease, each of which sees an API server of its own."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.leading.lease import LeaderElector
from topo_scheduler.simulation.apiserver import EmbeddedAPIServer, Store

from .virtual import now
from .world import connected

LEASES = "leases.coordination.k8s.io"


@dataclass
class Candidate:
    """A process that wants to lead, and its work while it leads."""

    elector: LeaderElector
    server: EmbeddedAPIServer
    look: Callable[[], None]
    drain: float = 0.0
    terms: list[tuple[float, float]] = field(default_factory=list)
    active: bool = False
    since: float = 0.0
    wrote: float = float("-inf")

    async def body(self) -> None:
        began = self.since = now()
        assert self.holds()
        self.active = True
        self.look()
        try:
            await asyncio.Event().wait()
        finally:
            self.active = False
            self.terms.append((began, now()))
            await asyncio.sleep(self.drain)
            if self.holds():
                self.wrote = float("-inf")  # it has ended in order: all that it has sent is answered

    def holds(self) -> bool:
        return self.elector.holds()

    def may_write(self) -> bool:
        """As the daemon does it: not before all writes of an earlier leader have taken effect, or never will."""
        may = self.active and self.holds() and self.elector.quiet_seconds() <= 0
        if may:
            self.wrote = now()
        return may

    def may_take_effect(self) -> bool:
        """What was sent at the last moment may be on its way for so long."""
        return self.may_write() or now() - self.wrote < self.elector.fence.flight_seconds


class Candidates:
    """Candidates with one store and an API server for each, so that a test can partition each alone."""

    def __init__(self) -> None:
        self.store = Store()
        self.candidates: list[Candidate] = []
        self.overlap: list[float] = []
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []

    async def add(self, name: str, *, drain: float = 0.0, run: bool = True, **options: Any) -> Candidate:
        server = await self._stack.enter_async_context(EmbeddedAPIServer(self.store))
        client = await self._stack.enter_async_context(connected(server))
        candidate = Candidate(elector(client, name, **options), server, self.look, drain)
        self.candidates.append(candidate)
        if run:
            self.start(candidate)
        return candidate

    def start(self, candidate: Candidate) -> asyncio.Task[None]:
        task = asyncio.create_task(candidate.elector.run(candidate.body))
        self._tasks.append(task)
        return task

    @property
    def lease(self) -> dict[str, Any]:
        lease: dict[str, Any] = self.store.get(LEASES, "topo", "kube-system").obj
        return lease

    @property
    def holder(self) -> str:
        record = self.store.find(LEASES, "topo", "kube-system")
        return record.obj["spec"]["holderIdentity"] if record else ""

    def look(self) -> None:
        writing = any(candidate.may_write() for candidate in self.candidates)
        if writing and sum(candidate.may_take_effect() for candidate in self.candidates) > 1:
            self.overlap.append(now())

    async def watch(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(0.25)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()


def elector(client: Client, name: str, **options: Any) -> LeaderElector:
    """Return the leader elector of a candidate."""
    return LeaderElector(client, "kube-system", "topo", name, **{"clock": now, **options})


@asynccontextmanager
async def candidates() -> AsyncIterator[Candidates]:
    """Run candidates, and check that no two of them led at the same time."""
    it = Candidates()
    watcher = asyncio.create_task(it.watch())
    try:
        yield it
    finally:
        watcher.cancel()
        await it.close()
    assert not it.overlap, f"two led at {it.overlap[:5]}"


def drifting_clock(rate: float, offset: float = 0.0) -> Callable[[], float]:
    """Return a clock that runs at another rate and starts at an offset."""
    return lambda: offset + rate * now()
