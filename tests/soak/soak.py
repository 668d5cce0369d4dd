"""A daemon that lives through so many events, and what it holds at intervals meanwhile."""

import asyncio
import gc
import logging
import resource
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from tests.breaking.loop import VirtualLoop
from tests.breaking.world import Process, World, cluster, configured

from .census import caches, census
from .churn import Churn, fabric

WARM: Final = 0.2
"""Share of all events after which nothing may grow any more."""
MIDDLE: Final = 0.5
LATE: Final = 0.75
GROWTH: Final = 1.1
MARGIN: Final = 32
"""A table leaks that is never as small in the last quarter as `GROWTH` times its most in the third before, and this."""
BOUNDED: Final = {
    "attempts._asked": 4_097,
    "events._known": 32_768,
    "changes._rows": 131_072,
    "pod_index._log": 16_384,
    "pod_index._log[": 16 * 16_384,
}
"""Tables that forget the oldest when they are full, by a part of the way to them, with their most entries."""
RSS_GROWTH: Final = 1.1
"""Times its size after the warm-up which the process may have at the end."""
REST: Final = 4_000.0
"""Seconds after the last churn until all must be forgotten: longer than any quarantine or reservation."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What there was after so many events. ``rss`` in bytes."""

    events: int
    rss: int
    tables: Mapping[str, int]


@dataclass(slots=True)
class Soak:
    """How it went."""

    samples: list[Sample] = field(default_factory=list)
    left: dict[str, int] = field(default_factory=dict)
    """What was still held when all was over, and should not have been."""
    begun: dict[str, int] = field(default_factory=dict)

    def leaks(self, events: int) -> list[str]:
        """Return the tables that grow without an end, with their sizes."""
        early = [reading.tables for reading in self.samples if WARM * events <= reading.events <= MIDDLE * events]
        late = [reading.tables for reading in self.samples if reading.events >= LATE * events]
        names = {name for tables in late for name in tables}
        leaking = []
        for name in sorted(names):
            highest = max(tables.get(name, 0) for tables in early)
            least = min(tables.get(name, 0) for tables in late)
            bounded = any(part in name and least <= full for part, full in BOUNDED.items())
            if least > GROWTH * highest + MARGIN and not bounded:
                leaking.append(f"{name}: at most {highest} before, at least {least} at the end")
        return leaking

    def rss(self, events: int) -> tuple[int, int]:
        """Return the most memory in the third after the warm-up, and the least in the last quarter, in bytes."""
        early = [reading.rss for reading in self.samples if WARM * events <= reading.events <= MIDDLE * events]
        late = [reading.rss for reading in self.samples if reading.events >= LATE * events]
        return max(early), min(late)


def held(process: Process) -> dict[str, int]:
    """Return how much there is of what must be given back."""
    engine, machine = process.engine, process.daemon.term.recovery._machine if process.daemon.term else None
    assert machine is not None
    return {
        "pods in the ledger": len(engine.world.ledger),
        "workloads": sum(1 for _ in engine.workloads),
        "in the queue": len(engine.queue),
        "binds under way": engine.outcomes.in_flight,
        "seats": len(engine.preempting.replacements),
        "seats given away": len(engine.preempting.replacements.taken),
        "nominations": len(engine.preempting.nominations),
        "reservations": len(engine.reserving.holds),
        "held back": len(engine.outcomes.admission_backoff),
        "Migrations": len(machine.migrations),
        "quarantines": len(machine.detection.avoided(process.daemon._clock())),
        "penalties": sum(bool(value) for value in engine.world.nodes.penalty.tolist()),
    }


async def soak(events: int, pods: int, every: int, tell: Callable[[str], None]) -> Soak:
    """Let a daemon live through so many events in a cluster of so many pods, then let all end."""
    result = Soak()
    async with cluster(fabric(pods), window=2_000) as world:
        world.server.requests = deque(maxlen=1_000)
        limits = {"per_hour": 100_000, "per_namespace": 1_000}
        process = world.start(configured(limits=limits))
        await world.leading()
        churn = Churn(world, pods)
        working = asyncio.create_task(churn.run())
        quiet = len(world.loop.tasks_of(process.name))
        gc.collect()
        gc.freeze()
        while churn.heard < events:
            upto = (churn.heard // every + 1) * every
            while churn.heard < upto:
                await world.run(1.0)
                if working.done():
                    working.result()
            result.samples.append(sample(world, process, churn))
            tell(line(result.samples[-1], held(process), len(world.loop.tasks_of(process.name)), churn))
        working.cancel()
        result.begun = dict(churn.begun)
        result.left = await _rest(world, process, quiet)
    return result


async def _rest(world: World, process: Process, quiet: int) -> dict[str, int]:
    """Let everything end; return what is left all the same."""
    await asyncio.sleep(300.0)
    for name in list(world.node_names()):
        world.heal(name)
    for table in ("jobs.batch", "migrations.topology.scheduler"):
        for record in world.store.list(table):
            world.delete(table, record.key.name)
    for record in world.store.list("pods"):
        if not record["metadata"].get("ownerReferences"):
            world.delete("pods", record.key.name)
    await world.run(REST)
    left = {what: count for what, count in held(process).items() if count}
    tasks = len(world.loop.tasks_of(process.name))
    return left | ({"tasks": tasks - quiet} if tasks > quiet else {})


def sample(world: World, process: Process, churn: Churn) -> Sample:
    """Count everything."""
    gc.collect()
    tables: Counter[str] = census(process.daemon) + caches()
    tables["asyncio tasks"] = len(world.loop.tasks_of(process.name))
    tables |= held(process)
    return Sample(churn.heard, psutil.Process().memory_info().rss, tables)


def line(taken: Sample, held: Mapping[str, int], tasks: int, churn: Churn) -> str:
    """Return what is printed of a sample."""
    what = ", ".join(f"{name} {count}" for name, count in held.items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    total = sum(taken.tables.values())
    return (
        f"{taken.events:>9} events, {churn.world.loop.time() / 3600:.2f} h: RSS {taken.rss >> 20} MiB (peak {peak}),"
        f" {total} entries in {len(taken.tables)} tables, tasks {tasks}, {what}"
    )


def run(events: int, pods: int, every: int, tell: Callable[[str], None] = lambda _: None) -> Soak:
    """Run it on a loop of its own."""
    logging.getLogger("topo_scheduler").setLevel(logging.ERROR)
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(soak(events, pods, every, tell))
    finally:
        loop.close()


def verdict(result: Soak, events: int) -> Sequence[str]:
    """Return what is wrong: tables that leak, memory that grows, things that were never given back."""
    early, late = result.rss(events)
    wrong = result.leaks(events)
    if late > RSS_GROWTH * early:
        wrong.append(f"memory: at most {early >> 20} MiB before, at least {late >> 20} MiB at the end")
    wrong += [f"still there when all is over: {what} {count}" for what, count in result.left.items()]
    return wrong


def figures(result: Soak) -> dict[str, Any]:
    """Return what is kept of a soak: what happened, and its memory early, late, and where it is that of the end."""
    begun, last = result.begun, result.samples[-1]
    end = next(reading for reading in result.samples if reading.rss >> 20 >= last.rss >> 20)
    shown = [result.samples[int(share * len(result.samples))] for share in (0.2, 0.6)]
    return {
        "changes": last.events,
        "gangs": begun.get("gangs", 0),
        "failed_nodes": begun.get("nodes that failed", 0),
        "failed_leaves": begun.get("leaves that failed", 0),
        "moves": begun.get("moves asked for", 0),
        "broken_watches": begun.get("watches that broke", 0),
        "memory": [
            {"mib": reading.rss >> 20, "after_percent": round(100 * reading.events / last.events)}
            for reading in (*shown, end)
        ],
    }
