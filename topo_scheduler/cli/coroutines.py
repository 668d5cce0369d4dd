"""How a command runs its coroutine.

Kept apart from what all commands share, as importing asyncio is half of what ``--help`` would cost.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_async(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, on uvloop if it is installed."""
    factory: Callable[[], asyncio.AbstractEventLoop] | None
    try:
        from topo_scheduler.cli.event_loop import EventLoop as factory
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work)


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set from now on."""
    stop = asyncio.Event()
    if sys.platform != "win32":
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop
