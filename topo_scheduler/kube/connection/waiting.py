"""Wait for an event or a due time, whichever comes first."""

import asyncio
from collections.abc import Callable
from typing import Final

SHORTEST_PAUSE_SECONDS: Final = 0.001
"""Least seconds between two checks of due times. A time that was converted through seconds since the epoch is exact
to within a microsecond. A check that is too early by that finds nothing to do, and would repeat in a busy loop.
"""


async def set_or_due(event: asyncio.Event, due: float | None, clock: Callable[[], float]) -> None:
    """Wait until ``event`` is set, or ``clock`` shows ``due``, in seconds; ``None`` is never."""
    try:
        async with asyncio.timeout(None if due is None else max(SHORTEST_PAUSE_SECONDS, due - clock())):
            await event.wait()
    except TimeoutError:
        pass
