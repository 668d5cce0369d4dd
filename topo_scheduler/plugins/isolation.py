"""Runs plugins in threads of their own with a time limit. A plugin that exceeds the limit is disabled for a while.

The engine has one writer, the event loop. While a plugin works on a decision, the loop waits for it. So no state
changes during the call, and other work is delayed by no more than the limit. Then the loop goes on without the plugin:

- If the thread runs Python, the scheduler raises an exception in it, which takes effect at its next step. Once the
  thread has ended, the scheduler calls the plugin again after a pause. The pause doubles each time.
- A thread in compiled code or in a blocking call can't be ended from outside. It keeps a core, or the resources that it
  holds, until it returns or the process ends. Its plugin stays disabled all that time.
- Compiled code that keeps the interpreter lock (a Numba kernel without ``nogil=True``) stops every thread of the
  process, the event loop included. No code in the process can help then. ``/livez`` stops answering, and the kubelet
  restarts the container.
"""

import asyncio
import ctypes
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar, cast

from topo_scheduler.scheduling.extensions.extension import PluginError, error_text

log = logging.getLogger(__name__)
T = TypeVar("T")

FIRST_PAUSE_SECONDS: Final = 60.0
"""Seconds for which a plugin is disabled the first time. The pause doubles each further time."""
LONGEST_PAUSE_SECONDS: Final = 3600.0
SLOW_SHARE: Final = 0.5
"""Share of the time limit that one call must have taken for its plugin to be disabled.

How many calls a decision makes depends on the workload: a gang of many pod classes makes some for each of them. So many
quick calls end only that decision. Otherwise one tenant's gang could disable a plugin for all.
"""
LOG_INTERVAL_SECONDS: Final = 10.0
"""Minimum interval in seconds between two log entries of the same failure of a plugin."""


class Abandoned(BaseException):
    """Raised inside a plugin that exceeds its time limit. Not an Exception, so that a plugin does not catch it."""


class Counts(Protocol):
    """Counts calls of plugins and their failures."""

    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        """Count a call that ended after ``seconds``."""

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        """Count a call that failed."""


class _NoCounts:
    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        """Count nothing."""

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        """Count nothing."""


class _PluginCall:
    """One call, with its result or error."""

    def __init__(self, work: Callable[[], Any], ended: Callable[[], None]) -> None:
        self.work = work
        self.ended = ended
        self.result: Any = None
        self.error: BaseException | None = None


class _Worker(threading.Thread):
    """A thread that runs one call after the other."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"plugin-{number}", daemon=True)
        self.jobs: queue.SimpleQueue[_PluginCall | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Run calls until a None is queued or the thread is abandoned."""
        try:
            while (job := self.jobs.get()) is not None:
                try:
                    job.result = job.work()
                except BaseException as error:
                    job.error = error
                    if isinstance(error, Abandoned):
                        return
                job.ended()
        except Abandoned:
            pass  # raised when the call had already ended

    def abandon(self) -> None:
        """Raise an exception in the thread, wherever it is."""
        assert self.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Abandoned))
        self.jobs.put(None)


@dataclass(slots=True)
class _FailedPlugin:
    """A plugin that exceeded its time limit: how often, until when it is disabled, and its abandoned threads."""

    times: int = 0
    until: float = 0.0
    threads: list[_Worker] = field(default_factory=list)


class Isolated:
    """Calls plugins in threads. Only the thread of the event loop uses this class."""

    def __init__(
        self, timeout: float, counts: Counts | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout = timeout
        self.counts: Counts = counts or _NoCounts()
        self._clock = clock
        self._idle: list[_Worker] = []
        self._workers = 0
        self._records: dict[str, _FailedPlugin] = {}
        self._used: dict[str, list[float]] = {}
        self._logged: dict[tuple[str, str, str], float] = {}
        self._silent: Counter[tuple[str, str, str]] = Counter()

    @property
    def lost_threads(self) -> int:
        """Number of threads of abandoned calls that have not ended."""
        for record in self._records.values():
            record.threads = [thread for thread in record.threads if thread.is_alive()]
        return sum(len(record.threads) for record in self._records.values())

    def disabled(self) -> dict[str, float]:
        """Return the minimum remaining time in seconds of each disabled plugin."""
        now = self._clock()
        return {name: max(0.0, record.until - now) for name, record in self._records.items() if self._aside(record)}

    # ------------------------------------------------------------ the guard of the engine

    def begin(self) -> None:
        """Start a decision. All plugins together share one time limit."""
        self._used.clear()

    def pardon(self) -> None:
        """Allow calls of every plugin again, because the configuration changed.

        A plugin whose abandoned thread still runs stays disabled.
        """
        for record in self._records.values():
            record.times, record.until = 0, 0.0

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call and wait for it, within the remaining time of this decision.

        If the time runs out, the plugin with the longest call is disabled, if that call was slow by itself.

        Raises:
            PluginError: the plugin raised, took too long, or is disabled.
        """
        self._check(plugin, point)
        left = self.timeout - sum(map(sum, self._used.values()))
        if left <= 0:
            raise PluginError(
                _slowest(self._used), point, "slow", f"it used up the {self.timeout:g} s of this decision"
            )
        done = threading.Lock()
        done.acquire()
        job = _PluginCall(work, done.release)
        worker = self._worker()
        began = self._clock()
        worker.jobs.put(job)
        in_time = done.acquire(timeout=left)
        seconds = self._clock() - began
        self._used.setdefault(plugin, []).append(seconds)
        return cast(T, self._settle(plugin, point, worker, job, in_time, seconds, self._used))

    async def call_async(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call without blocking the event loop. The call has a time limit of its own.

        Raises:
            PluginError: as `call` does.
        """
        self._check(plugin, point)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        job = _PluginCall(work, lambda: _notify(loop, done))
        worker = self._worker()
        began = self._clock()
        worker.jobs.put(job)
        try:
            async with asyncio.timeout(self.timeout):
                await done.wait()
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if not done.is_set():
                worker.abandon()
            raise
        seconds = self._clock() - began
        return cast(T, self._settle(plugin, point, worker, job, done.is_set(), seconds, {plugin: [seconds]}))

    # ------------------------------------------------------------ inside

    def _worker(self) -> _Worker:
        if self._idle:
            return self._idle.pop()
        self._workers += 1
        worker = _Worker(self._workers)
        worker.start()
        return worker

    def _aside(self, record: _FailedPlugin) -> bool:
        record.threads = [thread for thread in record.threads if thread.is_alive()]
        return bool(record.threads) or self._clock() < record.until

    def _check(self, plugin: str, point: str) -> None:
        record = self._records.get(plugin)
        if record is not None and self._aside(record):
            self.counts.plugin_failed(plugin, point, "disabled")
            raise PluginError(plugin, point, "disabled", f"it took longer than {self.timeout:g} s and is disabled")

    def _settle(
        self,
        plugin: str,
        point: str,
        worker: _Worker,
        job: _PluginCall,
        in_time: bool,
        seconds: float,
        used: dict[str, list[float]],
    ) -> Any:
        self.counts.plugin_called(plugin, point, seconds)
        if not in_time:
            worker.abandon()
            self._records.setdefault(plugin, _FailedPlugin()).threads.append(worker)
            slowest = _slowest(used)
            if max(used[slowest]) < self.timeout * SLOW_SHARE:
                raise self._failed(self._used_up(slowest, point))
            raise self._failed(self._disable(slowest, point))
        self._idle.append(worker)
        match job.error:
            case None:
                if (record := self._records.get(plugin)) is not None and not record.threads:
                    del self._records[plugin]
                return job.result
            case PluginError() as error:
                raise self._failed(error)
            case error:
                failure = PluginError(plugin, point, "raised", error_text(error))
                raise self._failed(failure, error) from error

    def _disable(self, plugin: str, point: str) -> PluginError:
        record = self._records.setdefault(plugin, _FailedPlugin())
        record.times += 1
        pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (record.times - 1))
        record.until = self._clock() + pause
        why = f"it took longer than {self.timeout:g} s and is disabled"
        log.error("plugin %s is disabled for %g s, or until the configuration changes", plugin, pause)
        return PluginError(plugin, point, "slow", why)

    def _used_up(self, plugin: str, point: str) -> PluginError:
        return PluginError(plugin, point, "slow", f"it used up the {self.timeout:g} s of this decision")

    def _failed(self, error: PluginError, cause: BaseException | None = None) -> PluginError:
        self.counts.plugin_failed(error.plugin, error.point, error.reason)
        key, now = (error.plugin, error.point, error.reason), self._clock()
        if now - self._logged.get(key, -LOG_INTERVAL_SECONDS) < LOG_INTERVAL_SECONDS:
            self._silent[key] += 1
            return error
        again = f" ({self._silent.pop(key)} more times since it was last logged)" if self._silent[key] else ""
        self._logged[key] = now
        fields = {"plugin": error.plugin, "point": error.point, "reason": error.reason}
        log.error("%s%s", error, again, extra=fields, exc_info=cause)
        return error


def _slowest(used: dict[str, list[float]]) -> str:
    """Return the plugin with the longest call, given the seconds of each plugin's calls."""
    return max(used, key=lambda plugin: max(used[plugin]))


def _notify(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set)
