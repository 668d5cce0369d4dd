"""The barrier around each workload: if one fails or costs too much, the scheduler puts only that one into backoff.

Understanding, decision, explanation, preemption and the searches for reservations and moves each run inside. The
scheduler retries a failed workload with exponential backoff. A search that exceeds its operation budget also lowers the
budget of later searches in its namespace for a while. So many such workloads together cost little more than one.
"""

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from typing import Final

from topo_scheduler.api.reasons import Reason
from topo_scheduler.api.text import clipped
from topo_scheduler.scheduling.instructions import CountFailure, Instruction, LogWarning
from topo_scheduler.scheduling.pauses import doubled
from topo_scheduler.state.operation_budget import OperationBudget, OverBudgetError, limited

ATTEMPT_OPERATIONS: Final = 3_000_000
"""Maximum operations of one attempt.

Gangs of one class without spread constraints need a few thousand on 5,000 nodes. Gangs of 256 members that are spread
over zones and nodes need up to 3 million there.
"""
ATTEMPT_SECONDS: Final = 5.0
"""Maximum seconds of one attempt, search for victims, slice of a search, or step on a Migration.

Half of the renew deadline of the Lease.

Only work that is not counted in operations takes so long.
"""
MIN_OPERATIONS: Final = 20_000
"""Operations that an attempt may always use; more than any ordinary attempt needs."""
WAKE_OPERATIONS: Final = 50_000
"""Maximum operations of one check whether changed nodes help a workload.

If the check exceeds it, the scheduler retries the workload, and the attempt reports the failure.
"""
FIRST_PAUSE_SECONDS: Final = 10.0
LONGEST_PAUSE_SECONDS: Final = 600.0
FORGIVEN_SECONDS: Final = 30.0
"""Seconds after which a namespace gets back a quarter of its budget, as a power of four."""
MAX_EXCESSES: Final = 8
_TEXT_CHARACTERS: Final = 160
"""Maximum length of an exception's own text, which may quote what a user wrote."""


class Activity(StrEnum):
    """The activity that failed, for a workload or an object: the label ``phase`` of the metric."""

    UNDERSTANDING = "understanding"
    DECISION = "decision"
    PREEMPTION = "preemption"
    PLACEMENT = "placement"
    EXPLANATION = "explanation"
    RESERVATION = "reservation"
    MOVES = "moves"
    OUTCOME = "outcome"
    RECOVERY = "recovery"
    STEP = "step"
    OBJECT = "object"


FAULT: Final = "fault"
"""The label ``kind`` of an internal error. Otherwise it names the limit: ``operations``, ``time`` or ``memory``."""


def kind_of(error: Exception) -> str:
    """Return the kind of a failure, for the metric."""
    if isinstance(error, OverBudgetError):
        return error.limit
    return "memory" if isinstance(error, MemoryError) else FAULT


def described(error: Exception) -> str:
    """Return an exception in one line: its type, its shortened text, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__, limit=-1)
    where = f" at {PurePath(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    text = clipped(str(error), _TEXT_CHARACTERS)
    return f"{type(error).__name__}{f': {text}' if text else ''}{where}"


def reason_of(error: Exception) -> Reason:
    """Return the reason of the event."""
    return Reason.OVER_BUDGET if kind_of(error) != FAULT else Reason.SCHEDULER_ERROR


def explained(error: Exception, phase: Activity, pause: float, *, alike: bool = False, named: bool = True) -> str:
    """Return the message for users: what failed, why, and what to change.

    Args:
        error: the failure.
        phase: the activity that failed.
        pause: seconds until the retry.
        alike: whether the same attempt would fail again, so that the retry waits for a change.
        named: whether the text of an internal error is part of it; it may name objects of other namespaces.
    """
    again = f"The scheduler retries in {pause:g} s."
    if alike:
        again = f"The scheduler retries when pods or nodes have changed, after {pause:g} s at the earliest."
    if isinstance(error, OverBudgetError | MemoryError):
        why = str(error) or "it needs more memory than there is"
        remedy = (isinstance(error, OverBudgetError) and error.remedy) or _REMEDY
        return f"In backoff: the search for a {_SEARCHED.get(phase, 'placement')} was stopped, {why}. {remedy}. {again}"
    return f"In backoff: {internal_error(error, phase, named=named)}. {again}"


def internal_error(error: Exception, phase: Activity, *, named: bool = True) -> str:
    """Return the message about an exception; see `explained`."""
    error_text = described(error) if named else type(error).__name__
    return f"internal error during {phase}, please report it: {error_text}"


_REMEDY: Final = "Use fewer different kinds of pods in a gang, or fewer affinity terms and spread constraints"
_SEARCHED: Final = {
    Activity.PREEMPTION: "placement with preemption",
    Activity.RESERVATION: "reservation",
    Activity.MOVES: "placement with moves",
}


def pause_of(failures: int) -> float:
    """Return the backoff in seconds after that many failures in a row."""
    return doubled(FIRST_PAUSE_SECONDS, failures, LONGEST_PAUSE_SECONDS)


@dataclass(slots=True)
class Backoff:
    """How often something failed in a row (``times``), and the time in seconds of the next retry (``until``)."""

    times: int = 0
    until: float = 0.0

    def fail(self, now: float) -> None:
        """Record one more failure."""
        self.times += 1
        self.until = now + pause_of(self.times)


@dataclass(slots=True)
class _Excess:
    """How often workloads of a namespace recently exceeded their budget, and the time in seconds of the last time."""

    times: int
    since: float


class Barrier:
    """Assigns budgets to attempts, and records which namespaces exceeded theirs recently."""

    def __init__(self) -> None:
        self._excess: dict[str, _Excess] = {}

    def budget(
        self, namespace: str, now: float, clock: Callable[[], float] | None, operations: int | None = None
    ) -> OperationBudget:
        """Return the budget of an attempt by a workload of a namespace.

        ``operations`` is the limit of a search for the workload; None for the limit of an attempt.
        """
        operations = ATTEMPT_OPERATIONS if operations is None else operations
        excess = self._excess.get(namespace)
        if excess is None:
            return OperationBudget(operations, ATTEMPT_SECONDS, clock)
        forgiven = int((now - excess.since) / FORGIVEN_SECONDS)
        left = excess.times - forgiven
        if left <= 0:
            del self._excess[namespace]
            return OperationBudget(operations, ATTEMPT_SECONDS, clock)
        return OperationBudget(max(MIN_OPERATIONS, operations >> (2 * left)), ATTEMPT_SECONDS, clock)

    def exceeded(self, namespace: str, error: Exception, now: float) -> None:
        """Record a failure of a workload of a namespace. Only exceeded budgets count."""
        if kind_of(error) == FAULT:
            return
        excess = self._excess.get(namespace)
        left = 0 if excess is None else max(0, excess.times - int((now - excess.since) / FORGIVEN_SECONDS))
        self._excess[namespace] = _Excess(min(MAX_EXCESSES, left + 1), now)
        forgiven = [key for key, old in self._excess.items() if now - old.since > old.times * FORGIVEN_SECONDS]
        for key in forgiven:
            del self._excess[key]


@contextmanager
def guard(
    activity: str, out: list[Instruction], phase: Activity = Activity.OBJECT, *, namespace: str = ""
) -> Iterator[None]:
    """Catch exceptions about one object, so that work on others goes on. They are logged and counted.

    Args:
        activity: what is done, with the name of the object, for the log.
        out: list to which instructions are added.
        phase: the activity.
        namespace: that of the object, for the log budget.
    """
    try:
        yield
    except Exception as error:
        out += failure_of(activity, error, phase, namespace=namespace)


def failure_of(activity: str, error: Exception, phase: Activity, *, namespace: str = "") -> list[Instruction]:
    """Return the instructions that log and count a failure. ``namespace``: that of the object, for the log budget."""
    return [
        LogWarning(f"{activity}: failed during {phase}, everything else continues: {described(error)}", namespace),
        CountFailure(phase.value, kind_of(error)),
    ]


__all__ = [
    "ATTEMPT_OPERATIONS",
    "FORGIVEN_SECONDS",
    "WAKE_OPERATIONS",
    "Activity",
    "Backoff",
    "Barrier",
    "OperationBudget",
    "described",
    "explained",
    "failure_of",
    "guard",
    "internal_error",
    "kind_of",
    "limited",
    "pause_of",
    "reason_of",
]
