"""A leader is stopped while it binds, another takes over, and the first goes on where it was."""

import asyncio
import random
from dataclasses import dataclass, field
from typing import Final

from .replica import ReplicaProcess
from .scene import Scene

BURST_PODS: Final = 60
AFTER_SECONDS: Final = 5.0
"""For how long it is watched what a leader does that was woken."""


@dataclass(slots=True)
class Found:
    """What happened in the cycles, and what must not happen: empty lists."""

    cycles: int = 0
    takeovers: int = 0
    """Cycles in which the other replica bound a pod while the first was stopped."""
    binds: int = 0
    zombies: list[str] = field(default_factory=list)
    overbooked: list[str] = field(default_factory=list)


async def cycles(scene: Scene, count: int, stop_seconds: float) -> Found:
    """Stop the leader of two replicas ``count`` times for so long."""
    found = Found()
    for _ in range(2):
        await scene.start()
    await scene.next_bind()
    for _ in range(count):
        leader = await scene.leader()
        await _cycle(scene, leader, stop_seconds, found)
        found.cycles += 1
    found.zombies = scene.zombies()
    found.overbooked = list(scene.cluster.recorder.problems)
    found.binds = len(scene.cluster.recorder.bound)
    return found


async def _cycle(scene: Scene, leader: ReplicaProcess, stop_seconds: float, found: Found) -> None:
    await scene.submit(BURST_PODS)
    await asyncio.sleep(random.uniform(0.0, 0.2))
    leader.stop()
    await asyncio.sleep(0.5)
    before = len(scene.cluster.recorder.bound)
    loop = asyncio.get_running_loop()
    end = loop.time() + stop_seconds
    while loop.time() < end:
        await scene.submit(BURST_PODS // 10)
        await asyncio.sleep(0.5)
    found.takeovers += len(scene.cluster.recorder.bound) > before
    leader.wake()
    end = loop.time() + AFTER_SECONDS
    while loop.time() < end:
        await scene.submit(BURST_PODS // 10)
        await asyncio.sleep(0.5)
    await scene.clear_done()
