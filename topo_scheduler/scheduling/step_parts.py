"""The parts of a step that serve no single workload: one that raises an exception stops no other part, and no step.

The barrier handles each workload. What remains are shared queues and counts. The next step runs a failed part again. A
part that fails in every step is logged rarely, and makes no step due at once.
"""

from typing import Final

from topo_scheduler.scheduling.barrier import Activity, Backoff, failure_of
from topo_scheduler.scheduling.instructions import Instruction

RETRY_SECONDS: Final = 1.0
"""Seconds from a step in which a part failed to the next one, unless a fact arrives before."""


class StepParts:
    """Remembers which parts failed, by name."""

    def __init__(self) -> None:
        self._backoffs: dict[str, Backoff] = {}
        self._retry_at = 0.0

    def failed(self, name: str, error: Exception, now: float) -> list[Instruction]:
        """Record that a part raised; return what logs and counts that, unless it was logged a short time ago."""
        self._retry_at = now + RETRY_SECONDS
        backoff = self._backoffs.setdefault(name, Backoff())
        if now < backoff.until:
            return []
        backoff.fail(now)
        return failure_of(f"part of a step: {name.strip('_')}", error, Activity.STEP)

    def not_before(self, due: float | None) -> float | None:
        """Return when the next step is due. ``due``: when it would be due if no part had failed, in seconds."""
        return due if due is None or due >= self._retry_at else self._retry_at
