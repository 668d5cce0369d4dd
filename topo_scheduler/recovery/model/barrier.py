"""The failure barrier around each Migration, failed node and search of recovery: a failure of one stops no other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from topo_scheduler.recovery.model.instructions import CountRecoveryFailure, RecoveryInstruction, Warn
from topo_scheduler.scheduling.barrier import ATTEMPT_SECONDS, Backoff, described, kind_of
from topo_scheduler.state.operation_budget import OperationBudget, limited

STEP_OPERATIONS: Final = 4_000_000
"""Operations per Migration in one step: decisions are delayed by that much."""


def failure_of(subject: str, error: Exception, *, namespace: str = "") -> list[RecoveryInstruction]:
    """Return instructions that log and count a failure.

    ``subject`` names the object; ``namespace`` is that of the object, for the log budget.
    """
    text = f"{subject}: {described(error)}; recovery continues without it"
    return [Warn(text, namespace), CountRecoveryFailure(kind_of(error))]


@dataclass(slots=True)
class Guarded:
    """Repeated work that pauses each time it raises, and longer each time."""

    name: str
    """Name of the work in the log."""
    clock: Callable[[], float] | None = None
    """Measures how long the work takes, in seconds; None for no limit of time."""
    _backoff: Backoff = field(default_factory=Backoff)

    def not_before(self, due: float | None) -> float | None:
        """Return when work that is due at a time may run: later while it pauses."""
        return None if due is None else max(due, self._backoff.until)

    def run(self, work: Callable[[], list[RecoveryInstruction]], now: float) -> list[RecoveryInstruction]:
        """Run the work, unless it pauses; return its instructions, or those that log and count a failure."""
        if now < self._backoff.until:
            return []
        try:
            with limited(OperationBudget(STEP_OPERATIONS, ATTEMPT_SECONDS, self.clock)):
                instructions = work()
        except Exception as error:
            self._backoff.fail(now)
            return failure_of(self.name, error)
        self._backoff.times = 0
        return instructions
