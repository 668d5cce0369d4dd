"""Log lines of writes that are not sent because the lease ends: one for all writes of a burst."""

import logging
import math
from collections.abc import Callable
from typing import Final

log = logging.getLogger(__name__)

QUIET_SECONDS: Final = 60.0
"""Seconds after a line about such writes in which there is no other."""


class FencedWrites:
    """Decides at which level the failure of a write is logged."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logged_at = -math.inf

    def level(self, *, fenced: bool) -> int:
        """Return the level for a write that failed. ``fenced``: it was not sent, because the lease ends.

        The first such write of a burst logs one line for all of them.
        """
        if not fenced:
            return logging.WARNING
        now = self._clock()
        if now - self._logged_at >= QUIET_SECONDS:
            self._logged_at = now
            log.warning("no writes are sent, as the lease ends; level debug names the pods that wait")
        return logging.DEBUG
