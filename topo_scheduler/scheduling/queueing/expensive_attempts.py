"""Pauses between the expensive attempts of a namespace, so that binds and decisions of others get their time.

No single attempt may exceed its budget, but many of them could keep the event loop busy for minutes. So each namespace
has a debt: the operations of its attempts that take more than any ordinary one. The debt decreases with time. A
namespace whose debt exceeds its share of what all may owe waits until it does not. Ordinary attempts cost nothing.

With several such namespaces their debts decrease more slowly. But the first wait of a namespace is as long as if it was
alone, the second one twice as long, and so on: what it owes after that counts the next time.
"""

from typing import Final

ORDINARY_OPERATIONS: Final = 20_000
"""Operations up to which an attempt is free. Attempts of gangs without spread constraints need a few thousand."""
ALLOWED_OPERATIONS: Final = 1_000_000
"""Operations that all namespaces together may owe before they wait, less than a second."""
OPERATIONS_PER_SECOND: Final = 250_000
"""Operations by which the debts of all namespaces together decrease in a second: a quarter of a core at most."""

REPORTED_SECONDS: Final = 60.0
"""Seconds between two reports about one namespace."""


class ExpensiveAttempts:
    """The debts of namespaces. A namespace is forgotten once it owes nothing."""

    def __init__(self) -> None:
        self._debts: dict[str, tuple[float, float]] = {}
        """Operations, and the time in seconds for which they are counted, by namespace."""
        self._waits: dict[str, tuple[int, float]] = {}
        """How often each namespace had to wait lately, and until when in seconds."""
        self._slowed: dict[str, float] = {}
        """Namespaces that had to wait, and when that was last reported, in seconds."""
        self._unreported: dict[str, None] = {}

    def spend(self, namespace: str, operations: int, now: float) -> float:
        """Count an attempt; return until when its namespace waits, in seconds, or ``now`` if it need not."""
        if operations <= ORDINARY_OPERATIONS:
            return now
        rate = OPERATIONS_PER_SECOND / max(1, len(self._debts))
        left = {name: debt - (now - at) * rate for name, (debt, at) in self._debts.items()}
        self._debts = {name: (debt, now) for name, debt in left.items() if debt > 0}
        debt = self._debts.get(namespace, (0.0, now))[0] + operations
        self._debts[namespace] = debt, now
        namespaces = len(self._debts)
        pause = max(0.0, debt - ALLOWED_OPERATIONS / namespaces) / OPERATIONS_PER_SECOND
        if not pause:
            return now
        self._report(namespace, now)
        self._waits = {name: wait for name, wait in self._waits.items() if wait[1] > now - REPORTED_SECONDS}
        times = self._waits.get(namespace, (0, now))[0] + 1
        until = now + pause * min(namespaces, times)
        self._waits[namespace] = times, until
        return until

    def _report(self, namespace: str, now: float) -> None:
        self._slowed = {name: at for name, at in self._slowed.items() if now - at < REPORTED_SECONDS}
        if namespace not in self._slowed:
            self._slowed[namespace] = now
            self._unreported[namespace] = None

    def take_slowed(self) -> list[str]:
        """Return the namespaces that have to wait, each once in `REPORTED_SECONDS`."""
        names, self._unreported = list(self._unreported), {}
        return names
