"""Decides when to log a lasting failure: when it begins, at growing intervals, and once it is over."""

from typing import Final

FIRST_SECONDS: Final = 30.0
"""Seconds from the first line to the second."""
LONGEST_SECONDS: Final = 1800.0


class Outage:
    """One failure, shared by all components that it affects. Times are in seconds of one clock."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._next = 0.0
        self._interval = FIRST_SECONDS

    def failed(self, now: float) -> bool:
        """Record a failure; return whether a log line is due."""
        if self._began is None:
            self._began, self._interval = now, FIRST_SECONDS
        elif now < self._next:
            return False
        else:
            self._interval = min(LONGEST_SECONDS, 2 * self._interval)
        self._next = now + self._interval
        return True

    def over(self, now: float) -> float | None:
        """Record a success; return how many seconds the failure lasted, None where there was none."""
        if self._began is None:
            return None
        began, self._began = self._began, None
        return now - began
