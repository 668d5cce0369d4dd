"""A leader is stopped while it writes, others take over, and it goes on where it was."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from .scene import Scene
from .work import Work

LOAD_PODS: Final = 6
"""Created each half second while a leader is stopped, and after it was woken."""
AFTER_SECONDS: Final = 5.0
"""For how long it is watched what a leader does that was woken."""
Meanwhile = Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Found:
    """What happened in the cycles, and what must not happen: empty lists."""

    cycles: int = 0
    takeovers: int = 0
    """Cycles in which another replica bound a pod while the first was stopped."""
    binds: int = 0
    zombies: list[str] = field(default_factory=list)
    overbooked: list[str] = field(default_factory=list)


async def cycles(scene: Scene, count: int, stop_seconds: float, meanwhile: Meanwhile | None = None) -> Found:
    """Stop the leader of two replicas ``count`` times for so long, in the middle of writes of every kind.

    ``meanwhile`` is done while it is stopped, and then awaited; otherwise pods are created all the time.
    """
    outcome, work = Found(), Work(scene)
    await work.prepare()
    for _ in range(2):
        await scene.start()
    await scene.next_bind()
    for _ in range(count):
        await _cycle(scene, work, stop_seconds, outcome, meanwhile)
        outcome.cycles += 1
    outcome.zombies = scene.zombies()
    outcome.overbooked = list(scene.cluster.recorder.problems)
    outcome.binds = len(scene.cluster.recorder.bound)
    return outcome


async def _cycle(scene: Scene, work: Work, stop_seconds: float, outcome: Found, meanwhile: Meanwhile | None) -> None:
    leader = scene.leader()
    await work.settled()
    await work.burst()
    await work.written(leader)  # so it is known that this leader writes every kind
    await work.settled()
    await work.burst()
    await asyncio.sleep(random.uniform(0.0, 0.3))
    leader.stop()
    loop = asyncio.get_running_loop()
    end = loop.time() + stop_seconds
    await asyncio.sleep(0.5)
    before = len(scene.cluster.recorder.bound)
    if meanwhile is not None:
        await meanwhile()
        await asyncio.sleep(end - loop.time())
    else:
        await _load(scene, end - loop.time())
    outcome.takeovers += len(scene.cluster.recorder.bound) > before
    leader.wake()
    await _load(scene, AFTER_SECONDS)
    await scene.clear_done()


async def _load(scene: Scene, seconds: float) -> None:
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while loop.time() < end:
        await scene.submit(LOAD_PODS)
        await asyncio.sleep(0.5)
