"""The clock of the API server, read from the header ``Date`` of its answers.

Timestamps of objects come from that clock. The clock of the scheduler's own machine may be minutes off, or be set
while the process runs.
"""

import math
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Final

RESOLUTION_SECONDS: Final = 1.0
"""The header gives whole seconds, rounded down."""


class ServerClock:
    """Keeps the date of the latest answer. Reading it costs nothing until someone asks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._date = ""
        self._at = -math.inf
        self.delay_seconds = 0.0
        """Seconds from the request of the latest answer with a date to its headers, which may be that old."""

    def asked(self) -> float:
        """Return the time at which a request is sent, for `heard`."""
        return self._clock()

    def heard(self, date: str | None, asked: float) -> None:
        """Note the header ``Date`` of an answer whose headers have just arrived, and when it was asked for."""
        if date:
            self._date, self._at = date, self._clock()
            self.delay_seconds = self._at - asked

    @property
    def age_seconds(self) -> float:
        """Seconds since the latest answer with a date; infinite without one."""
        return self._clock() - self._at

    def now(self) -> float | None:
        """Return the server's time in seconds since the epoch, to about a second; None if it is unknown."""
        try:
            date = parsedate_to_datetime(self._date).timestamp()
        except (ValueError, OverflowError):
            return None
        return date + RESOLUTION_SECONDS / 2 + self.age_seconds
