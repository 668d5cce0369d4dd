"""Kubernetes' own table of allocator tests: our judges and our allocator's judge agree with what it expects."""

import json
from collections.abc import Iterator

import pytest

from tests.differential.choices import Json

from .comparison import Comparison, add
from .generator import Case
from .oracle import ERROR, FEASIBLE, INFEASIBLE, Oracle
from .upstream import (
    AGAINST_THE_DOCUMENTATION,
    LEFT_OUT,
    UpstreamCase,
    compare_upstream,
    compared_cases,
    upstream_cases,
)
from .validate import validate

CASES = 225


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as running:
        yield running


def _content(allocations: list[Json] | None) -> str:
    """Allocations as a string, with every share ID the same."""
    copied = json.loads(json.dumps(allocations))
    for allocation in copied or []:
        for result in allocation["devices"].get("results", ()):
            if "shareID" in result:
                result["shareID"] = "share"
    return json.dumps(copied, sort_keys=True)


def test_the_table_is_there() -> None:
    cases = upstream_cases()
    outcomes = [each.answer.outcome for each in cases]
    assert len({each.name for each in cases}) == len(cases) == CASES
    assert min(outcomes.count(outcome) for outcome in (FEASIBLE, INFEASIBLE, ERROR)) >= 20
    assert set(LEFT_OUT) | AGAINST_THE_DOCUMENTATION <= {each.name for each in cases}


@pytest.mark.real
@pytest.mark.timeout(600)
def test_kubernetes_by_default_answers_as_the_table_but_for_what_is_left_out(oracle: Oracle) -> None:
    differing = set()
    for each in upstream_cases():
        answer = oracle.answer(each.case)
        same = answer.outcome == each.answer.outcome and _content(answer.allocations) == _content(
            each.answer.allocations
        )
        if not same:
            differing.add(each.name)
    assert differing == set(LEFT_OUT)


def test_what_the_table_allocates_is_legal() -> None:
    illegal = {
        each.name
        for each in upstream_cases()
        if each.name not in LEFT_OUT
        and each.answer.allocations is not None
        and validate(each.case, each.answer.allocations)
    }
    assert illegal == AGAINST_THE_DOCUMENTATION


def test_an_allocator_that_answers_as_the_table_has_no_differences() -> None:
    answers = {id(each.case): each for each in compared_cases()}
    comparison = Comparison()

    def allocate(case: Case) -> list[Json] | None:
        known: UpstreamCase = answers[id(case)]
        if known.answer.error is not None:
            raise RuntimeError(known.answer.error)
        return known.answer.allocations

    for each in answers.values():
        add(comparison, each.case, each.answer, allocate)
    assert not comparison.differences
    assert comparison.cases == CASES - len(LEFT_OUT) - len(AGAINST_THE_DOCUMENTATION)


def test_an_allocator_that_finds_nothing_feasible_differs() -> None:
    comparison = compare_upstream(lambda case: None)
    kinds = {difference.kind for difference in comparison.differences}
    assert kinds == {"infeasible for us"}
    assert len(comparison.differences) == comparison.outcomes[FEASIBLE]
