"""How much time goes to what can wait: explanations, and attempts that place nothing.

Explanations use the time in which nothing is to be decided. With thousands of pending pods that always change, this is
a whole core. On a small control plane the API server, which all pods wait for, would have too little left. So they take
next to nothing while it answers slowly: binds, or renewals of the Lease, which are written though nothing is bound.

Meanwhile attempts that place nothing rest as well. One tenant can make thousands of pods for which there is no room.
"""

from typing import Final

BURST_SECONDS: Final = 0.5
"""Seconds that explanations may take at once, after none was needed for a while."""
SHARE: Final = 0.25
"""Part of the time that they may take in the long run."""
SHARE_WHILE_SLOW: Final = 0.05
"""The same while the API server answers slowly: the control plane may have no CPU to spare."""
SLOW_ANSWER_SECONDS: Final = 0.1
"""A bind or a renewal that takes longer was answered slowly: usual ones take a tenth of it."""
SLOW_SECONDS: Final = 5.0
"""Seconds after a slow answer for which explanations take no more than `SHARE_WHILE_SLOW`."""
REST_FACTOR: Final = 3.0
"""Rest after a step in which nothing was placed, as a multiple of its time, while the API server answers slowly."""
LONGEST_REST_SECONDS: Final = 0.05
"""Longest of these rests: so much later at most is a pod tried that appears meanwhile."""
TURN_SECONDS: Final = 0.05
"""Seconds that they may take after each rest, so that they do not begin again for a millisecond."""


class CpuPace:
    """Counts the time that explanations take, and returns rests. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._left = BURST_SECONDS
        self._at = 0.0
        self._rests = False
        self._slow_until = 0.0

    def answered(self, seconds: float, now: float) -> None:
        """Note how long a bind took, or a renewal of the Lease."""
        if seconds > SLOW_ANSWER_SECONDS:
            self._refill(now)
            if now >= self._slow_until:
                self._left, self._rests = min(0.0, self._left), True
            self._slow_until = now + SLOW_SECONDS

    def spent(self, seconds: float, now: float) -> None:
        """Count the time that explanations took."""
        self._refill(now)
        self._left -= seconds
        self._rests = self._left <= 0

    def rest(self, step_seconds: float, now: float) -> float:
        """Return how long to rest after a step in which nothing was placed: the others of its kind can wait."""
        return min(LONGEST_REST_SECONDS, REST_FACTOR * step_seconds) if now < self._slow_until else 0.0

    def due(self, now: float) -> float:
        """Return from when on explanations may go on: not later than ``now`` if they may at once."""
        self._refill(now)
        missing = TURN_SECONDS - self._left if self._rests else 0.0
        return now + max(0.0, missing) / self._share(now)

    def _refill(self, now: float) -> None:
        self._left = min(BURST_SECONDS, self._left + self._share(now) * max(0.0, now - self._at))
        self._at = now

    def _share(self, now: float) -> float:
        return SHARE_WHILE_SLOW if now < self._slow_until else SHARE
