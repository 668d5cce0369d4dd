"""An event loop whose time passes only when nothing is left to do, and on which a process can be stopped as by SIGSTOP.

Nothing waits for the kernel and nothing runs in a thread, so what happens depends on nothing but what was asked for.
"""

import asyncio
import selectors
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, ContextVar
from typing import Any, Final, TypeVar
from weakref import WeakSet

T = TypeVar("T")

PROCESS: Final[ContextVar[str]] = ContextVar("process", default="")
"""Whose tasks and timers these are; empty for those of the cluster."""
START: Final = 1_000.0
MOST_TURNS: Final = 100_000
"""Turns of the loop in which time does not pass, after which it is believed that it never will."""


class _Ready(deque[asyncio.Handle]):
    """What runs next, without what belongs to a process that is stopped."""

    def __init__(self) -> None:
        super().__init__()
        self.stopped: dict[str, list[asyncio.Handle]] = {}

    def append(self, handle: asyncio.Handle, /) -> None:
        whose = self.stopped.get(handle._context.get(PROCESS, "")) if self.stopped else None  # type: ignore[attr-defined]
        if whose is None:
            super().append(handle)
        else:
            whose.append(handle)


class _Selector(selectors.DefaultSelector):
    """Never waits: what is not ready comes by time alone."""

    jump: Callable[[float], None]

    def __init__(self) -> None:
        super().__init__()
        self._fair_queue = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self._fair_queue += 1
            if self._fair_queue > MOST_TURNS:
                raise RuntimeError("it never comes to rest: time does not pass any more")
            return ready
        if timeout is None:
            raise RuntimeError("all tasks wait, and nothing will ever happen again")
        self._fair_queue = 0
        self.jump(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, for several processes."""

    def __init__(self) -> None:
        self._now = START
        selector = _Selector()
        selector.jump = self._jump
        super().__init__(selector)
        self._clock_resolution = 1e-6
        self._ready = _Ready()
        self._tasks: dict[str, WeakSet[asyncio.Task[Any]]] = defaultdict(WeakSet)
        self.set_task_factory(self._make)

    def time(self) -> float:
        return self._now

    def _jump(self, seconds: float) -> None:
        self._now += seconds

    def _make(
        self,
        _: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: Context | None = None,
    ) -> "asyncio.Task[T]":
        task: asyncio.Task[T] = asyncio.Task(work, loop=self, context=context)
        whose = context.get(PROCESS, "") if context is not None else PROCESS.get()
        self._tasks[whose or ""].add(task)
        return task

    def run_in_executor(self, _: Any, do: Callable[..., T], *args: Any) -> "asyncio.Future[T]":  # type: ignore[override]
        """Do it here and now."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(do(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    # ------------------------------------------------------------ processes

    def tasks_of(self, process: str) -> list["asyncio.Task[Any]"]:
        """Return the tasks of a process that have not ended."""
        return [task for task in self._tasks[process] if not task.done()]

    def stop_process(self, process: str) -> None:
        """Let nothing of a process run, as SIGSTOP does; what it has sent arrives all the same."""
        self._ready.stopped.setdefault(process, [])

    def continue_process(self, process: str) -> None:
        """Let it go on where it was, at a later time, as SIGCONT does."""
        for handle in self._ready.stopped.pop(process, []):
            self._ready.append(handle)

    async def end_process(self, process: str) -> None:
        """End all tasks of a process, however they hold on."""
        self.continue_process(process)
        for _ in range(1000):
            if not (left := self.tasks_of(process)):
                return
            for task in left:
                task.cancel()
            await asyncio.sleep(0)
        raise AssertionError(f"tasks of {process} that can't be ended: {left}")
