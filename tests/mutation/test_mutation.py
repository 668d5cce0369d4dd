"""The tests that mutants are tried with exist, and a share is told with the interval that its number allows."""

import pytest

from tests.mutation.score import Mutant, interval, table
from tests.mutation.targets import ROOT, TARGETS


def test_modules_and_tests_of_all_parts_exist() -> None:
    for target in TARGETS:
        assert target.files(), target.name
        assert [test for test in target.tests if not (ROOT / test).exists()] == []


@pytest.mark.parametrize(
    ("noticed", "tried", "low", "high"), [(0, 0, 0.0, 1.0), (8, 10, 0.490, 0.943), (0, 20, 0.0, 0.161)]
)
def test_the_interval_is_that_of_wilson(noticed: int, tried: int, low: float, high: float) -> None:
    assert interval(noticed, tried) == pytest.approx((low, high), abs=0.001)


def test_a_timeout_counts_as_noticed() -> None:
    outcomes = ("killed", "timeout", "survived", "killed")
    rows = table([Mutant("state", "f", 1, "core/AddNot", outcome, "") for outcome in outcomes])
    assert rows[2].startswith("| state | 4 | 3 | 1 | 75% | ")
    assert rows[3].startswith("| all | 4 | 3 | 1 | 75% | ")
