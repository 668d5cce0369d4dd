"""The barrier around each Migration, failed node and search of recovery: what fails for one stops no other."""

from collections.abc import Callable
from typing import Final, Protocol

from topo_scheduler.recovery.instructions import CountRecoveryFailure, Instruction, Warn
from topo_scheduler.scheduling.barrier import Backoff, described, kind_of
from topo_scheduler.state.operation_budget import OperationBudget, limited

STEP_OPERATIONS: Final = 4_000_000
"""Operations of what is done for one Migration at once: decisions wait that long."""


def failure_of(what: str, error: Exception) -> list[Instruction]:
    """Return what logs and counts a failure; ``what`` names the object."""
    return [Warn(f"{what}: {described(error)}; recovery goes on without it"), CountRecoveryFailure(kind_of(error))]


class Repeated(Protocol):
    """Work that looks from time to time whether there is something to do."""

    def step(self, now: float) -> list[Instruction]:
        """Return what is to be done now."""
        ...

    def next_due(self, now: float) -> float | None:
        """Return when `step` must be called next."""
        ...


class Guarded:
    """Work that is repeated, and pauses for longer each time it raises."""

    def __init__(self, what: str) -> None:
        """``what`` names the work, for the log."""
        self._what = what
        self._backoff = Backoff()

    def not_before(self, due: float | None) -> float | None:
        """Return when work that is due at a time is run: later while it pauses."""
        return None if due is None else max(due, self._backoff.until)

    def run(self, work: Callable[[], list[Instruction]], now: float) -> list[Instruction]:
        """Return what work comes to: what logs and counts the failure where it raises, nothing while it pauses."""
        if now < self._backoff.until:
            return []
        try:
            with limited(OperationBudget(STEP_OPERATIONS)):
                found = work()
        except Exception as error:
            self._backoff.fail(now)
            return failure_of(self._what, error)
        self._backoff.times = 0
        return found
