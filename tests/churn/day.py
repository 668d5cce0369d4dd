"""A daemon that lives through so many hours."""

import asyncio
import gc
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from tests.attacks.hostile import NAMESPACE
from tests.breaking.loop import VirtualLoop
from tests.breaking.world import cluster, configured
from tests.soak.churn import fabric
from tests.soak.soak import _rest, held

from .tenant import HostileChurn
from .watch import Watch

LOOKS_SECONDS: Final = 5.0
CALM: Final = 10.0
"""A node fails every 200 s here: of 24 nodes each three or four times a day."""
PASSED_OVER_EVERY: Final = 12
"""Looks from one comparison with a scheduler that just began to the next."""


@dataclass(slots=True)
class Day:
    """How it went. Waits in seconds."""

    hours: float
    share: float
    seed: int
    pods: int = 0
    hostile_pods: int = 0
    begun: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    longest_half: float = 0.0
    waits: list[float] = field(default_factory=list)
    most_mib: int = 0

    def waited(self, quantile: float) -> float:
        """Return a quantile of the waits of what is not hostile."""
        ordered = sorted(self.waits)
        return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))] if ordered else 0.0


async def live(hours: float, pods: int, share: float, seed: int, tell: Callable[[str], None]) -> Day:
    """Let a daemon live so long in a cluster of about so many pods, of which a share is hostile."""
    day = Day(hours, share, seed)
    async with cluster(fabric(pods), window=2_000) as world:
        world.server.requests = deque(maxlen=1_000)
        process = world.start(configured(limits={"per_hour": 100_000, "per_namespace": 1_000}))
        await world.leading()
        term = process.daemon.term
        churn = HostileChurn(world, pods, seed=seed, share=share, calm=CALM)
        watch = Watch(world, day.violations)
        quiet = len(world.loop.tasks_of(process.name))
        working = asyncio.create_task(churn.run())
        end = world.loop.time() + 3600 * hours
        reported, reported_violations = world.loop.time(), 0
        while world.loop.time() < end:
            await world.run(LOOKS_SECONDS)
            if working.done():
                working.result()
            watch.look(process)
            for violation in day.violations[reported_violations:]:
                tell(violation)
            reported_violations = len(day.violations)
            if watch.looks % PASSED_OVER_EVERY == 0:
                watch.passed_over(process)
                day.most_mib = max(day.most_mib, psutil.Process().memory_info().rss >> 20)
            if world.loop.time() - reported >= 3600:
                reported = world.loop.time()
                tell(_line(world.loop.time(), churn, watch, held(process)))
        working.cancel()
        if process.daemon.term is not term:
            day.violations.append("the term ended")
        day.pods, day.hostile_pods, day.begun = churn.others, churn.made, dict(churn.begun)
        day.waits, day.longest_half = watch.waits, watch.longest_half
        for table in ("pods", "migrations.topology.scheduler"):
            for record in world.store.list(table):
                if record.key.namespace == NAMESPACE:
                    churn._delete(table, record.key.name)
        left = await _rest(world, process, quiet)
        left.pop("quarantines", None)  # they double with each failure of a node, up to hours
        day.violations += [f"still there when all is over: {what} {count}" for what, count in left.items()]
    return day


def _line(now: float, churn: HostileChurn, watch: Watch, held: dict[str, int]) -> str:
    counts = {what: count for what, count in held.items() if count}
    rss = psutil.Process().memory_info().rss >> 20
    return (
        f"{now / 3600:5.1f} h: {churn.others} pods and {churn.made} hostile ones, {churn.heard} changes, {rss} MiB,"
        f" longest half {watch.longest_half:.1f} s, violations {len(watch.violations)}, {counts}"
    )


def run(hours: float, pods: int, share: float, seed: int, tell: Callable[[str], None] = lambda _: None) -> Day:
    """Run it on a loop of its own."""
    log = logging.getLogger("topo_scheduler")
    before, handlers = log.level, list(log.handlers)
    log.setLevel(logging.WARNING)
    gc.collect()
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(live(hours, pods, share, seed, tell))
    finally:
        loop.close()
        log.setLevel(before)
        for handler in [added for added in log.handlers if added not in handlers]:
            log.removeHandler(handler)


def report(day: Day) -> Sequence[str]:
    """Return the lines of a report."""
    begun = ", ".join(f"{count} {what}" for what, count in sorted(day.begun.items()))
    return [
        f"{day.hours:g} h, seed {day.seed}: {day.pods} pods and {day.hostile_pods} hostile ones; {begun}",
        f"waits of workloads that are not hostile: p50 {day.waited(0.5):.2f} s, p99 {day.waited(0.99):.1f} s,"
        f" longest {day.waited(1.0):.1f} s; longest partially bound gang {day.longest_half:.1f} s;"
        f" {day.most_mib} MiB at most",
        *(day.violations or ["no violation"]),
    ]


def figures(day: Day) -> dict[str, Any]:
    """Return what is kept of a run."""
    return {
        "virtual_hours": round(day.hours),
        "hostile_percent": round(100 * day.share),
        "pods": day.pods,
        "hostile_pods": day.hostile_pods,
        "failed_nodes": day.begun.get("nodes that failed", 0),
        "failed_leaves": day.begun.get("leaves that failed", 0),
        "moves": day.begun.get("moves asked for", 0),
    }
