"""The comparison of allocators: the oracle agrees with itself, and each wrong allocator is case out."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.differential.choices import Json

from .comparison import Allocate, Comparison, add
from .generator import Case, random_case
from .oracle import FEASIBLE, INFEASIBLE, Answer, Oracle
from .validate import validate

CASES = 400
FIRST_SEED = 1_000_000


@pytest.fixture(scope="module")
def answers() -> Iterator[list[tuple[Case, Answer]]]:
    with Oracle() as oracle:
        yield [(case, oracle.answer(case)) for case in map(random_case, range(FIRST_SEED, FIRST_SEED + CASES))]


def _compared(answers: list[tuple[Case, Answer]], allocate: Allocate) -> Comparison:
    comparison = Comparison()
    for case, answer in answers:
        add(comparison, case, answer, allocate)
    return comparison


def _from(answers: list[tuple[Case, Answer]]) -> Allocate:
    """The oracle's own answers, but for those that are known to be illegal."""
    known = {id(case): answer for case, answer in answers}

    def allocate(case: Case) -> list[Json] | None:
        answer = known[id(case)]
        if answer.error is not None:
            raise RuntimeError(answer.error)
        return None if answer.allocations is None or validate(case, answer.allocations) else answer.allocations

    return allocate


@pytest.mark.real
@pytest.mark.timeout(600)
def test_the_oracle_agrees_with_itself(answers: list[tuple[Case, Answer]]) -> None:
    comparison = _compared(answers, _from(answers))
    assert not comparison.differences
    assert not comparison.order_dependent
    assert comparison.cases == CASES
    assert comparison.agreements["feasible / feasible"] > CASES / 4
    assert comparison.agreements["infeasible / infeasible"] > CASES / 4
    assert comparison.known_faults < CASES / 100


@pytest.mark.real
@pytest.mark.timeout(600)
def test_an_allocator_that_finds_nothing_feasible_differs(answers: list[tuple[Case, Answer]]) -> None:
    comparison = _compared(answers, lambda case: None)
    assert {difference.kind for difference in comparison.differences} == {"infeasible for us"}
    assert len(comparison.differences) + comparison.known_faults == comparison.outcomes[FEASIBLE]


@pytest.mark.real
@pytest.mark.timeout(600)
def test_an_allocator_that_gives_no_devices_differs(answers: list[tuple[Case, Answer]]) -> None:
    comparison = _compared(answers, lambda case: [{"devices": {"results": []}} for _ in case["claims"]])
    assert len(comparison.differences) == CASES


@pytest.mark.real
@pytest.mark.timeout(600)
def test_an_allocator_that_raises_differs_but_for_errors(answers: list[tuple[Case, Answer]]) -> None:
    def allocate(case: Case) -> list[Json] | None:
        raise NotImplementedError

    comparison = _compared(answers, allocate)
    differing = len(comparison.differences) + len(comparison.order_dependent) + comparison.known_faults
    assert differing == comparison.outcomes[FEASIBLE] + comparison.outcomes[INFEASIBLE]
    assert len(comparison.order_dependent) < len(comparison.differences) / 4
    assert comparison.errors["NotImplementedError"] == CASES


def _without(case: Case, field: str, instead: object = None) -> Case:
    """The case without a field, or with one value of it everywhere."""

    def cleaned(value: object) -> object:
        if isinstance(value, dict):
            kept = {key: cleaned(each) for key, each in value.items() if key != field}
            return {**kept, field: instead} if field in value and instead is not None else kept
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    result: Case = cleaned(case)  # type: ignore[assignment]
    return result


def _reversed_alternatives(case: Case) -> Case:
    changed = copy.deepcopy(case)
    for claim in changed["claims"]:
        for request in claim["spec"]["devices"]["requests"]:
            request.get("firstAvailable", []).reverse()
    return changed


def _counted(case: Case) -> Case:
    """The case with as many slices in every pool as its slices say."""
    changed = copy.deepcopy(case)
    pools = [json.dumps([each["spec"]["driver"], each["spec"]["pool"]["name"]]) for each in changed["slices"]]
    for each, name in zip(changed["slices"], pools, strict=True):
        each["spec"]["pool"]["resourceSliceCount"] = pools.count(name)
    return changed


WRONG: Final[dict[str, Callable[[Case], Case]]] = {
    "devices in use": lambda case: {**case, "allocated": []},
    "taints": lambda case: _without(case, "taints"),
    "counters": lambda case: _without(case, "consumesCounters"),
    "constraints": lambda case: _without(case, "constraints"),
    "selectors": lambda case: _without(case, "selectors"),
    "counts": lambda case: _without(case, "allocationMode", "ExactCount"),
    "shares": lambda case: _without(case, "allowMultipleAllocations"),
    "request policies": lambda case: _without(case, "requestPolicy"),
    "alternatives": _reversed_alternatives,
    "nodes": lambda case: _without(case, "nodeName", "node-1"),
    "binding conditions": lambda case: _without(case, "bindingConditions"),
    "tolerations": lambda case: _without(case, "tolerations"),
    "configuration": lambda case: _without(case, "config"),
    "administrators": lambda case: _without(case, "adminAccess"),
    "generations": lambda case: _without(case, "generation", 1),
    "slice counts": _counted,
}
"""Allocators that overlook something: the oracle, asked about a case without that."""


@pytest.mark.real
@pytest.mark.timeout(600)
@pytest.mark.parametrize("overlooked", WRONG)
def test_an_allocator_that_overlooks_something_differs(answers: list[tuple[Case, Answer]], overlooked: str) -> None:
    with Oracle() as oracle:

        def allocate(case: Case) -> list[Json] | None:
            answer = oracle.answer(WRONG[overlooked](case))
            if answer.error is not None:
                raise RuntimeError(answer.error)
            return answer.allocations

        comparison = _compared(answers, allocate)
    assert len(comparison.differences) >= 3, comparison.summary()
