"""Waiting for whatever comes first: that there is something to do, or the time at which something is due."""

import asyncio
from collections.abc import Callable
from typing import Final

SHORTEST_PAUSE: Final = 0.001
"""Least seconds between two looks at what is due. A time that went through seconds since the epoch is exact to within a
microsecond: who looks too soon by that finds nothing to do, and would look again and again without a pause."""


async def set_or_due(event: asyncio.Event, due: float | None, clock: Callable[[], float]) -> None:
    """Wait until ``event`` is set, or ``clock`` shows ``due``, in seconds; ``None`` is never."""
    try:
        async with asyncio.timeout(None if due is None else max(SHORTEST_PAUSE, due - clock())):
            await event.wait()
    except TimeoutError:
        pass
