"""Our allocator and kube-scheduler's on the same cases: the same feasibility, and only legal allocations from us.

Which devices are chosen may differ. Where kube-scheduler's answer is an error, it may depend on the order in which an
allocator looks at devices: a selector that fails for one device of many is an error only if that device's turn comes.
Such differences are counted apart.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.differential.choices import Json

from .generator import Case
from .oracle import ERROR, FEASIBLE, INFEASIBLE, TIMEOUT, Answer, Oracle
from .validate import Inventory, choices, validate

Allocate = Callable[[Case], list[Json] | None]
"""Returns one AllocationResult for each claim, or None if that is infeasible; raises for what ends an attempt."""

KNOWN_FAULTS: Final = ("distinctAttribute",)
"""Constraints that kube-scheduler breaks: of a request with several devices it compares only the last one's value.

Where its answer is illegal for this alone, ours may be that nothing is feasible, or another one that is legal. As it is
too lenient there and never too strict, what it finds infeasible is.
"""


@dataclass(frozen=True, slots=True)
class Difference:
    """A case that the two do not agree on."""

    kind: str
    case: Case
    details: str

    order_dependent: bool = False
    """Whether an allocator that looks at devices in another order may rightly differ."""


@dataclass(slots=True)
class Comparison:
    """What came of the cases so far."""

    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    by_feature: dict[str, Counter[str]] = field(default_factory=dict)
    agreements: Counter[str] = field(default_factory=Counter)
    """By outcome: ``oracle / ours``."""

    errors: Counter[str] = field(default_factory=Counter)
    """The types of what ours raised."""

    known_faults: int = 0
    timeouts: int = 0
    differences: list[Difference] = field(default_factory=list)
    order_dependent: list[Difference] = field(default_factory=list)

    def summary(self) -> Json:
        """The numbers, as JSON."""
        return {
            "cases": self.cases,
            "differences": len(self.differences),
            "kinds": dict(Counter(difference.kind for difference in self.differences).most_common()),
            "order dependent": dict(Counter(difference.kind for difference in self.order_dependent).most_common()),
            "outcomes": dict(self.outcomes.most_common()),
            "oracle / ours": dict(self.agreements.most_common()),
            "our errors": dict(self.errors.most_common()),
            "known faults of the oracle": self.known_faults,
            "timeouts of the oracle": self.timeouts,
            "features": {name: dict(self.by_feature[name].most_common()) for name in sorted(self.by_feature)},
        }


def compare(cases: Iterable[Case], allocate: Allocate, oracle: Oracle) -> Comparison:
    """Ask both about every case."""
    comparison = Comparison()
    for case in cases:
        add(comparison, case, oracle.answer(case), allocate)
    return comparison


def add(comparison: Comparison, case: Case, answer: Answer, allocate: Allocate) -> Difference | None:
    """Compare one case, and return the difference if there is one."""
    comparison.cases += 1
    comparison.outcomes[answer.outcome] += 1
    difference, ours = judge(case, answer, allocate, comparison)
    comparison.agreements[f"{answer.outcome} / {ours}"] += 1
    for feature in case.get("features", ()):
        counts = comparison.by_feature.setdefault(feature, Counter())
        counts[answer.outcome] += 1
        if difference is not None and not difference.order_dependent:
            counts["differences"] += 1
    if difference is not None:
        (comparison.order_dependent if difference.order_dependent else comparison.differences).append(difference)
    return difference


def judge(case: Case, answer: Answer, allocate: Allocate, comparison: Comparison) -> tuple[Difference | None, str]:
    """Return the difference, if there is one, and the outcome of ours."""
    if answer.outcome == TIMEOUT:
        comparison.timeouts += 1
        return None, "not asked"
    faults = validate(case, answer.allocations) if answer.allocations is not None else []
    if faults and not all(fault.startswith(KNOWN_FAULTS) for fault in faults):
        kind = f"the oracle's answer is illegal: {faults[0].partition(':')[0]}"
        return Difference(kind, case, "; ".join(faults)), "not asked"
    comparison.known_faults += bool(faults)
    try:
        allocations = allocate(case)
    except Exception as error:  # whatever it is, it ends the attempt, as an error of kube-scheduler's does
        comparison.errors[type(error).__name__] += 1
        return _raised(case, answer, f"{type(error).__name__}: {error}", bool(faults)), ERROR
    if allocations is None:
        if answer.outcome == FEASIBLE and not faults:
            return Difference("infeasible for us", case, "kube-scheduler allocates"), INFEASIBLE
        return None, INFEASIBLE
    return _allocated(case, answer, allocations, bool(faults)), FEASIBLE


def _allocated(case: Case, answer: Answer, allocations: Sequence[Json], faulty: bool) -> Difference | None:
    if complaints := _complaints(case, allocations):
        return Difference(f"illegal: {complaints[0].partition(':')[0]}", case, "; ".join(complaints))
    if answer.outcome == INFEASIBLE:
        return Difference("infeasible for kube-scheduler", case, "we allocate")
    if answer.allocations is None:
        details = f"kube-scheduler: {answer.error}"
        return Difference("an error for kube-scheduler", case, details, _depends_on_order(case))
    return None if faulty else _alternatives(case, allocations, answer.allocations)


def _alternatives(case: Case, ours: Sequence[Json], theirs: Sequence[Json]) -> Difference | None:
    """Compare which alternatives of firstAvailable were chosen.

    What is left for an alternative depends on the devices that requests before it got. Where those are the same, so is
    the alternative; where they are not, ours may be an earlier one.
    """
    same_devices = True
    for (our_choice, our_devices), (their_choice, their_devices) in zip(
        choices(case, ours), choices(case, theirs), strict=True
    ):
        if our_choice != their_choice:
            if our_choice < their_choice and not same_devices:
                return None
            details = f"{our_choice}, not {their_choice}"
            return Difference("other alternatives of firstAvailable", case, details, not same_devices)
        same_devices = same_devices and our_devices == their_devices
    return None


def _complaints(case: Case, allocations: Sequence[Json]) -> list[str]:
    try:
        return validate(case, allocations)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return [f"malformed: {type(error).__name__}: {error}"]


def _raised(case: Case, answer: Answer, details: str, faulty: bool) -> Difference | None:
    if answer.outcome == ERROR:
        return None
    if faulty:
        return None
    return Difference(f"{answer.outcome}, but we raise", case, details, _depends_on_order(case))


def _depends_on_order(case: Case) -> bool:
    """Whether an error may be one for a single order of search: of a selector, or of "all" under a constraint."""
    if Inventory(case).could_fail():
        return True
    return any(
        claim["spec"]["devices"].get("constraints")
        and any(
            spec.get("allocationMode") == "All"
            for request in claim["spec"]["devices"]["requests"]
            for spec in request.get("firstAvailable") or [request["exactly"]]
        )
        for claim in case["claims"]
    )
