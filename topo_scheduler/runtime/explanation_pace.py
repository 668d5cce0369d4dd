"""How much time explanations may take: all that is left at first, a part of it in the long run.

Explanations use the time in which nothing is to be decided. With thousands of pending pods that always change, this is
a whole core. On a small control plane the API server, which all pods wait for, would have too little left.
"""

from typing import Final

BURST_SECONDS: Final = 0.5
"""Seconds that explanations may take at once, after none was needed for a while."""
SHARE: Final = 0.25
"""Part of the time that they may take in the long run."""
TURN_SECONDS: Final = 0.05
"""Seconds that they may take after each rest, so that they do not begin again for a millisecond."""


class ExplanationPace:
    """Counts the time that explanations take. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._left = BURST_SECONDS
        self._at = 0.0
        self._rests = False

    def spent(self, seconds: float, now: float) -> None:
        """Count the time that explanations took."""
        self._refill(now)
        self._left -= seconds
        self._rests = self._left <= 0

    def due(self, now: float) -> float:
        """Return from when on they may go on: not later than ``now`` if they may at once."""
        self._refill(now)
        missing = TURN_SECONDS - self._left if self._rests else 0.0
        return now + max(0.0, missing) / SHARE

    def _refill(self, now: float) -> None:
        self._left = min(BURST_SECONDS, self._left + SHARE * max(0.0, now - self._at))
        self._at = now
