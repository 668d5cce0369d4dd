"""Where others make room and all sets are too many to be tried: against an integer program. More: `python -m` `gap`."""

from tests.recovery.gap import measure
from tests.recovery.gap_together import case


def test_plans_are_possible_and_cost_little_more_than_the_least() -> None:
    for result in measure(8, 11, 16, lambda _: None):
        if result.least is None:
            assert result.planned is None, result
        else:
            assert result.planned is not None, result
            assert result.least - 1e-6 <= result.planned <= 1.5 * result.least, result


def test_three_gangs_at_once_cost_the_least_in_larger_clusters_too() -> None:
    for seed in (2, 3, 7):
        result = case(seed, 3)
        assert result is not None
        assert result.planned == result.least, result
