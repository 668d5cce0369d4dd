"""Limits the lines about failed attempts: edits of one Job with a thousand pending pods make thousands a second."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

LINES_AT_ONCE: Final = 200
"""Lines that a namespace may have at once after it had none for a while."""
LINES_PER_SECOND: Final = 10
MAX_NAMESPACES: Final = 1_024
"""Namespaces whose budget is known; the one that asked longest ago is forgotten first."""


@dataclass(slots=True)
class _Budget:
    left: float
    at: float
    omitted: int = 0


class LogBudget:
    """Budgets of namespaces."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def take(self, namespace: str, now: float) -> int | None:
        """Return how many lines of a namespace were omitted before this one; None if this one is omitted too."""
        budget = self._budgets.setdefault(namespace, _Budget(LINES_AT_ONCE, now))
        self._budgets.move_to_end(namespace)
        if len(self._budgets) > MAX_NAMESPACES:
            self._budgets.popitem(last=False)
        budget.left = min(LINES_AT_ONCE, budget.left + (now - budget.at) * LINES_PER_SECOND)
        budget.at = now
        if budget.left < 1:
            budget.omitted += 1
            return None
        budget.left -= 1
        omitted, budget.omitted = budget.omitted, 0
        return omitted
