"""Where others make room and all sets are too many to be tried: against an integer program. More: `python -m` `gap`."""

from tests.recovery.gap import measure
from tests.recovery.gap_together import case


def test_plans_are_possible_and_cost_little_more_than_the_least() -> None:
    for one in measure(8, 11, 16, lambda _: None):
        if one.least is None:
            assert one.found is None, one
        else:
            assert one.found is not None, one
            assert one.least - 1e-6 <= one.found <= 1.5 * one.least, one


def test_three_gangs_at_once_cost_the_least_in_larger_clusters_too() -> None:
    for seed in (2, 3, 7):
        one = case(seed, 3)
        assert one is not None
        assert one.found == one.least, one
