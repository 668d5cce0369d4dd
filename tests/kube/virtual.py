"""Time that passes only when there is nothing left to do, so that a minute's outage takes milliseconds.

Client and server share one loop, and sockets on the loopback interface deliver at once: when nothing is ready
after a moment of real waiting, all tasks wait for time to pass, and it jumps to the next timer.
"""

import asyncio
import functools
import os
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")

PER_SECOND, LEAST, MOST = 0.001, 0.0001, 0.002
"""Real seconds given to the kernel to deliver what was sent, before time jumps: by how far it jumps, and bounds."""


class _Selector(selectors.DefaultSelector):
    """Passes on what is ready, and else moves the time on."""

    jump: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if timeout is None:
            return super().select(None)
        end = time.perf_counter() + min(max(LEAST, timeout * PER_SECOND), MOST)
        while not ready and time.perf_counter() < end:
            os.sched_yield()
            ready = super().select(0)
        if not ready:
            self.jump(timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own."""

    def __init__(self) -> None:
        self._now = 1_000.0
        selector = _Selector()
        selector.jump = self._jump
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds


def run_virtually(main: Coroutine[Any, Any, None]) -> None:
    """``asyncio.run`` in virtual time."""
    _run(main, VirtualTimeLoop())


def _run(main: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """``asyncio.run``, but no task of ours may be left at the end, and the thread's current loop is let alone."""
    try:
        loop.run_until_complete(main)
        left = [task for task in asyncio.all_tasks(loop) if "RequestHandler" not in repr(task.get_coro())]
        assert not left, f"tasks outlived the test: {left}"
    finally:
        loop.run_until_complete(asyncio.sleep(0.5))  # a connection accepted at the very end learns that it is over
        loop.run_until_complete(end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def end_all() -> None:
    """Cancel all other tasks of this loop, and wait until it has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in virtual time."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtually(test(*args, **kwargs))

    return wrapper


def real_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in real time: for what waits for another process."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        _run(test(*args, **kwargs), asyncio.SelectorEventLoop())

    return wrapper


def now() -> float:
    """The time of the running loop: the clock to give to what takes one."""
    return asyncio.get_running_loop().time()
