"""Limits the warnings about objects of one namespace.

Edits of one Job with a thousand pending pods make thousands of failed attempts a second. A webhook that refuses all
writes in its namespace makes hundreds.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

LINES_AT_ONCE: Final = 200
"""Lines that a namespace may have at once after it had none for a while."""
LINES_PER_SECOND: Final = 10
MAX_BUDGETS: Final = 1_024
"""Budgets that are known; the one that was used longest ago is forgotten first."""


@dataclass(slots=True)
class _Budget:
    left: float
    at: float
    omitted: int = 0


class NamespaceBudgets(logging.Filter):
    """Omits records with the field ``namespace`` beyond a budget of that namespace with each logger.

    The next one that is not omitted has the field ``omitted``, their number. Records below `logging.WARNING` pass.
    ``clock`` returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._budgets: OrderedDict[tuple[str, str], _Budget] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        namespace = getattr(record, "namespace", None)
        if record.levelno < logging.WARNING or not isinstance(namespace, str):
            return True
        budget = self._refilled((record.name, namespace))
        if budget.left < 1:
            budget.omitted += 1
            return False
        budget.left -= 1
        if budget.omitted:
            record.omitted, budget.omitted = budget.omitted, 0
        return True

    def _refilled(self, key: tuple[str, str]) -> _Budget:
        now = self._clock()
        budget = self._budgets.setdefault(key, _Budget(LINES_AT_ONCE, now))
        self._budgets.move_to_end(key)
        if len(self._budgets) > MAX_BUDGETS:
            self._budgets.popitem(last=False)
        budget.left = min(LINES_AT_ONCE, budget.left + (now - budget.at) * LINES_PER_SECOND)
        budget.at = now
        return budget
