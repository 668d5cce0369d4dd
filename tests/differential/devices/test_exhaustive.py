"""An allocator that tries everything agrees with kube-scheduler's, so the comparison accepts another allocator."""

import pytest

from tests.differential.choices import Json

from .comparison import Comparison, add
from .exhaustive import GivenUpError, allocate
from .generator import Case, random_case
from .oracle import FEASIBLE, INFEASIBLE, Oracle
from .upstream import compared_cases

CASES = 1_500
FIRST_SEED = 3_000_000


class Patient:
    """The allocator that tries everything, but for cases that it gives up: those get the other one's answer."""

    def __init__(self) -> None:
        self.given_up = 0
        self.theirs: list[Json] | None = None

    def allocate(self, case: Case) -> list[Json] | None:
        try:
            return allocate(case)
        except GivenUpError:
            self.given_up += 1
            return self.theirs


@pytest.mark.real
@pytest.mark.timeout(600)
def test_it_agrees_on_random_cases() -> None:
    comparison, patient = Comparison(), Patient()
    with Oracle() as oracle:
        for case in map(random_case, range(FIRST_SEED, FIRST_SEED + CASES)):
            answer = oracle.answer(case)
            patient.theirs = answer.allocations
            add(comparison, case, answer, patient.allocate)
    assert not comparison.differences, comparison.differences[0]
    assert patient.given_up < CASES / 100
    assert comparison.agreements[f"{FEASIBLE} / {FEASIBLE}"] > CASES / 4
    assert comparison.agreements[f"{INFEASIBLE} / {INFEASIBLE}"] > CASES / 4
    assert len(comparison.order_dependent) < CASES / 50


def test_it_agrees_on_the_table_of_kubernetes() -> None:
    comparison, patient = Comparison(), Patient()
    for each in compared_cases():
        patient.theirs = each.answer.allocations
        add(comparison, each.case, each.answer, patient.allocate)
    assert not comparison.differences, comparison.differences[0]
    assert patient.given_up < 10
