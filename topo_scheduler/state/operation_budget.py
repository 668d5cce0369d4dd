"""Limit on the work of one scheduling task, counted in operations.

Loops whose length depends on user input charge their work to the active budget. An operation is about a microsecond of
one core, within a factor of three. Counts depend on the input alone, so the same input exceeds its budget at the same
place on every machine and in every replay. The clock is a last resort for work that is not counted. It is the clock of
the step, whose readings are recorded; it can only end an attempt, never change a placement.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from typing import Final

CLOCK_EVERY_OPERATIONS: Final = 50_000
"""Operations between two readings of the clock: ordinary decisions need fewer, so they never read it."""
BYTES_PER_OPERATION: Final = 1024
"""Bytes of an allocation that cost one operation: an array of 1 GiB costs as much as a second of work."""
ROWS_PER_OPERATION: Final = 100
"""Nodes that one pass over an array covers per operation."""


class OverBudgetError(Exception):
    """A search exceeded its budget. ``limit`` is the exceeded limit: ``operations``, ``time`` or ``memory``.

    ``remedy``: what the owner of the workload should change, if the cause is known.
    """

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit
        self.remedy = ""


class OperationBudget:
    """Operations and seconds that one task may use."""

    def __init__(self, operations: int, seconds: float = inf, clock: Callable[[], float] | None = None) -> None:
        """``seconds`` are measured by ``clock``, which is first read once `CLOCK_EVERY_OPERATIONS` are spent."""
        self.operations = operations
        self.spent = 0
        self.spent_on_claims = 0
        """Operations of searches for devices of ResourceClaims."""
        self._seconds = seconds
        self._clock = clock
        self._started: float | None = None
        self._next_clock_check = CLOCK_EVERY_OPERATIONS

    def spend(self, operations: int) -> None:
        """Count operations.

        Raises:
            OverBudgetError: no operations, or no seconds, are left.
        """
        self.spent += operations
        if self.spent > self.operations:
            raise OverBudgetError("operations", f"it takes more than {self.operations:,} operations")
        if self.spent >= self._next_clock_check:
            self._next_clock_check = self.spent + CLOCK_EVERY_OPERATIONS
            self._check_clock()

    def allocate(self, size: int) -> None:
        """Charge an allocation of ``size`` bytes before it is made.

        Raises:
            OverBudgetError: it exceeds the remaining budget.
        """
        operations = size // BYTES_PER_OPERATION
        if self.spent + operations > self.operations:
            raise OverBudgetError("memory", f"it needs {size >> 20:,} MiB at once")
        self.spend(operations)

    def _check_clock(self) -> None:
        if self._clock is None:
            return
        now = self._clock()
        if self._started is None:
            self._started = now
        elif now - self._started > self._seconds:
            raise OverBudgetError("time", f"it takes more than {self._seconds:g} s")


_active: ContextVar[OperationBudget | None] = ContextVar("operation_budget", default=None)


def active_budget() -> OperationBudget | None:
    """Return the budget that work is charged to; None without one."""
    return _active.get()


def charge(operations: int = 1) -> None:
    """Charge operations to the active budget; without a budget they are free.

    Raises:
        OverBudgetError: the budget is used up.
    """
    budget = _active.get()
    if budget is not None:
        budget.spend(operations)


def charge_rows(rows: int, passes: int = 1) -> None:
    """Charge passes over arrays of the given number of rows.

    Raises:
        OverBudgetError: the budget is used up.
    """
    charge(passes * (10 + rows // ROWS_PER_OPERATION))


def charge_bytes(size: int) -> None:
    """Charge an allocation of ``size`` bytes before it is made.

    Raises:
        OverBudgetError: the budget is used up.
    """
    budget = _active.get()
    if budget is not None:
        budget.allocate(size)


@contextmanager
def limited(budget: OperationBudget | None) -> Iterator[None]:
    """Charge the work in the context to this budget instead of the active one; None for no budget."""
    token = _active.set(budget)
    try:
        yield
    finally:
        _active.reset(token)
