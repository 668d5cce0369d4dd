"""Which namespaces attempts without a placement, or costly ones, keep from having a workload tried, at any priority."""

from collections.abc import Container, Mapping
from typing import Final

MAX_PASSED_OVER_SECONDS: Final = 0.5
"""Seconds of attempts that count which may keep a namespace with ready workloads from having one tried."""
MAX_ATTEMPT_SECONDS: Final = MAX_PASSED_OVER_SECONDS / 2
"""Seconds that one such attempt counts at most, with the pause after it: a pause is no jam."""
MAX_HAD_ATTEMPT: Final = 4096
"""Namespaces that are known to have had an attempt, at most."""


class PassedOver:
    """Measures for how long each namespace with ready workloads has had none tried.

    Time is that of attempts without a placement, and of placements that take more operations than others. While
    workloads are placed at an ordinary cost, it stands still. Costly placements alone let a namespace of lower priority
    have one attempt each `MAX_PASSED_OVER_SECONDS`: it takes room that fits the higher priority. The queue writes some
    of these tables itself, as calls for each decision cost too much.
    """

    def __init__(self) -> None:
        self.since: dict[str, float] = {}
        """Namespaces with ready workloads, and since when none was tried by the other rules, the longest first.

        On the clock of attempts without a placement.
        """
        self.untried: dict[str, float] = {}
        """The same on the clock of all attempts that count. An attempt at a lower priority counts as any does."""
        self.had_attempt: dict[str, None] = {}
        """Namespaces that all others which are ready now precede, the one that has waited longest first."""
        self.missed_by = ""
        """Namespace of the last attempt if that was made by the other rules and counts; empty otherwise."""
        self.missed_rank = 0
        """Priority level of that attempt."""
        self.newly_ready: dict[str, None] = {}
        """Namespaces that have become ready since the last `advance`."""
        self.clock = 0.0
        """Seconds that attempts have taken that count."""
        self.clock_in_vain = 0.0
        """Those of attempts without a placement."""
        self.missed_at: float | None = None
        """When the last attempt was made, in seconds, if that counts and its time was not added yet."""
        self.in_vain = False
        """Whether the last attempt, if it counts, found no place."""
        self._jammed = False
        """Whether the present turn is due because of attempts without a placement."""
        self._others_until = 0.0
        """Until when the other rules are followed, on the clock: for as long as the last attempt by this one took."""
        self._was_passed_over = False
        """Whether the last attempt went to a namespace that was passed over."""

    def released(self, namespace: str) -> None:
        """Record that a namespace may be tried again, which was not kept from it for the sake of others."""
        if self.since.pop(namespace, None) is not None:
            self.untried.pop(namespace, None)
            self.newly_ready[namespace] = None

    def advance(self, now: float) -> None:
        """Begin the choice of the next workload, at a time in seconds."""
        if self.missed_at is not None:
            seconds = min(max(0.0, now - self.missed_at), MAX_ATTEMPT_SECONDS)
            self.clock += seconds
            self.clock_in_vain += seconds if self.in_vain else 0.0
            self.missed_at = None
            if self._was_passed_over:
                self._others_until = self.clock + seconds
        if self.newly_ready:
            self.since.update(dict.fromkeys(self.newly_ready, self.clock_in_vain))
            self.untried.update(dict.fromkeys(self.newly_ready, self.clock))
            self.newly_ready.clear()

    def is_due(self, held: Container[str]) -> bool:
        """Return whether a namespace has been passed over for too long, and the next attempt is not the others'.

        ``held``: namespaces that may not be tried.
        """
        if not self.missed_by or self.clock < self._others_until:
            return False
        self._jammed = self.in_vain and self._is_any_due(self.since, self.clock_in_vain, held)
        return self._jammed or self._is_any_due(self.untried, self.clock, held)

    def _is_any_due(self, since: Mapping[str, float], clock: float, held: Container[str]) -> bool:
        for namespace, at in since.items():
            if clock - at < MAX_PASSED_OVER_SECONDS:
                return False
            if namespace not in held and namespace != self.missed_by:
                return True
        return False

    def may_have_turn(self, namespace: str, rank: int) -> bool:
        """Return whether the present turn may go to a workload of a namespace, at a priority level."""
        if self._jammed or rank >= self.missed_rank:
            return True
        return self.clock - self.untried.get(namespace, self.clock) >= MAX_PASSED_OVER_SECONDS

    def tried(self, namespace: str, rank: int, *, by_rules: bool, in_vain: bool, counts: bool, now: float) -> None:
        """Record the result of an attempt that began at a time in seconds.

        ``by_rules``: not because a namespace was passed over. ``rank``: priority level of the workload. ``in_vain``: it
        found no place. ``counts``: that, or it took many operations.
        """
        self.missed_at = now if counts else None
        self.in_vain = in_vain
        self._was_passed_over = not by_rules
        self.missed_by = namespace if by_rules and counts else ""
        if by_rules:
            self.missed_rank = rank
            return
        if rank < self.missed_rank and self.untried.pop(namespace, None) is not None:
            self.untried[namespace] = self.clock
        if counts:
            if len(self.had_attempt) > MAX_HAD_ATTEMPT:
                self.had_attempt.clear()
            self.had_attempt[namespace] = None
        elif self.had_attempt:
            # One of those comes again for each placement, so that this one gets every second turn at least.
            del self.had_attempt[next(iter(self.had_attempt))]
