"""Plugins run in threads of their own, for a limited time; one that takes longer is abandoned and set aside.

The engine has one writer, the event loop. While a plugin is asked for a decision the loop waits for it, so nothing
changes under its hands and nothing else is delayed by more than the limit. Then the loop goes on without the plugin:

- A thread that runs Python is told to end by an exception, raised in it at its next step. Once it has ended, the plugin
  may be asked again after a pause, which doubles with each time it had to be set aside.
- A thread inside compiled code or a call that blocks can't be ended from outside. It takes a core, or what it holds,
  until it returns or the process ends; its plugin stays set aside all that time.
- Compiled code that keeps the interpreter lock (a Numba kernel without ``nogil=True``) stops every thread of the
  process, this one included. Nothing in a process helps there: ``/livez`` falls silent, and the kubelet starts it anew.
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

FIRST_PAUSE: Final = 60.0
"""Seconds a plugin is set aside the first time; doubled with each further one."""
LONGEST_PAUSE: Final = 3600.0
LOG_EVERY: Final = 10.0
"""Seconds before the same failure of a plugin is logged again."""


class Abandoned(BaseException):
    """Raised inside a plugin whose time is up. Not an Exception, so that a plugin's own handlers let it pass."""


class Counts(Protocol):
    """Who counts what plugins did."""

    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        """A call ended."""

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        """A call failed."""


class _Nobody:
    def plugin_called(self, plugin: str, point: str, seconds: float) -> None:
        """Nobody counts."""

    def plugin_failed(self, plugin: str, point: str, reason: str) -> None:
        """Nobody counts."""


class _PluginCall:
    """One call and its end."""

    def __init__(self, work: Callable[[], Any], ended: Callable[[], None]) -> None:
        self.work = work
        self.ended = ended
        self.result: Any = None
        self.error: BaseException | None = None


class _Worker(threading.Thread):
    """A thread that makes one call after the other."""

    def __init__(self, number: int) -> None:
        super().__init__(name=f"plugin-{number}", daemon=True)
        self.jobs: queue.SimpleQueue[_PluginCall | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Make calls until told to end, or abandoned."""
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
            pass  # it came when the call was over already

    def abandon(self) -> None:
        """Have an exception raised in the thread, wherever it is."""
        assert self.ident is not None
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(Abandoned))
        self.jobs.put(None)


@dataclass(slots=True)
class _FailedPlugin:
    """A plugin that had to be set aside."""

    times: int = 0
    until: float = 0.0
    threads: list[_Worker] = field(default_factory=list)


class Isolated:
    """Calls plugins in threads. Itself used from one thread only, that of the event loop."""

    def __init__(
        self, timeout: float, counts: Counts | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.timeout = timeout
        self.counts: Counts = counts or _Nobody()
        self._clock = clock
        self._idle: list[_Worker] = []
        self._workers = 0
        self._records: dict[str, _FailedPlugin] = {}
        self._used: dict[str, float] = {}
        self._logged: dict[tuple[str, str, str], float] = {}
        self._silent: Counter[tuple[str, str, str]] = Counter()

    @property
    def lost_threads(self) -> int:
        """Threads of abandoned calls that have not ended."""
        for record in self._records.values():
            record.threads = [thread for thread in record.threads if thread.is_alive()]
        return sum(len(record.threads) for record in self._records.values())

    def set_aside(self) -> dict[str, float]:
        """Return for each plugin that is set aside the seconds it will be at least."""
        now = self._clock()
        return {name: max(0.0, record.until - now) for name, record in self._records.items() if self._aside(record)}

    # ------------------------------------------------------------ the guard of the engine

    def begin(self) -> None:
        """A decision begins: all plugins together have the time of one."""
        self._used.clear()

    def pardon(self) -> None:
        """The configuration changed: every plugin may be asked again, except where its thread is not to be stopped."""
        for record in self._records.values():
            record.times, record.until = 0, 0.0

    def call(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call, and wait for it as long as is left of this decision's time.

        When the time is up, the plugin that used most of it is set aside.

        Raises:
            PluginError: it raised, took too long, or the plugin is set aside.
        """
        self._check(plugin, point)
        left = self.timeout - sum(self._used.values())
        if left <= 0:
            slowest = max(self._used, key=self._used.__getitem__)
            raise PluginError(slowest, point, "slow", f"it used up the {self.timeout:g} s of this decision")
        done = threading.Lock()
        done.acquire()
        job = _PluginCall(work, done.release)
        worker = self._worker()
        began = self._clock()
        worker.jobs.put(job)
        in_time = done.acquire(timeout=left)
        seconds = self._clock() - began
        self._used[plugin] = self._used.get(plugin, 0.0) + seconds
        slowest = max(self._used, key=self._used.__getitem__)
        return cast(T, self._settle(plugin, point, worker, job, in_time, seconds, slowest))

    async def call_async(self, plugin: str, point: str, work: Callable[[], T]) -> T:
        """Make a call without holding up the event loop; it has the time of a decision for itself.

        Raises:
            PluginError: as `call` does.
        """
        self._check(plugin, point)
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        job = _PluginCall(work, lambda: _tell(loop, done))
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
        return cast(T, self._settle(plugin, point, worker, job, done.is_set(), seconds, plugin))

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
            self.counts.plugin_failed(plugin, point, "set_aside")
            raise PluginError(plugin, point, "set_aside", f"it took longer than {self.timeout:g} s and is set aside")

    def _settle(
        self, plugin: str, point: str, worker: _Worker, job: _PluginCall, in_time: bool, seconds: float, slowest: str
    ) -> Any:
        self.counts.plugin_called(plugin, point, seconds)
        if not in_time:
            worker.abandon()
            self._records.setdefault(plugin, _FailedPlugin()).threads.append(worker)
            raise self._failed(self._set_aside(slowest, point))
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

    def _set_aside(self, plugin: str, point: str) -> PluginError:
        record = self._records.setdefault(plugin, _FailedPlugin())
        record.times += 1
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (record.times - 1))
        record.until = self._clock() + pause
        why = f"it took longer than {self.timeout:g} s and is set aside"
        log.error("plugin %s is not asked again for %g s, or until the configuration changes", plugin, pause)
        return PluginError(plugin, point, "slow", why)

    def _failed(self, error: PluginError, cause: BaseException | None = None) -> PluginError:
        self.counts.plugin_failed(error.plugin, error.point, error.reason)
        key, now = (error.plugin, error.point, error.reason), self._clock()
        if now - self._logged.get(key, -LOG_EVERY) < LOG_EVERY:
            self._silent[key] += 1
            return error
        again = f" ({self._silent.pop(key)} more times since it was last logged)" if self._silent[key] else ""
        self._logged[key] = now
        fields = {"plugin": error.plugin, "point": error.point, "reason": error.reason}
        log.error("%s%s", error, again, extra=fields, exc_info=cause)
        return error


def _tell(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(done.set)
