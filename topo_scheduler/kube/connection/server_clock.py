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

    def heard(self, date: str | None) -> None:
        """Note the header ``Date`` of an answer whose headers have just arrived."""
        if date:
            self._date, self._at = date, self._clock()

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
