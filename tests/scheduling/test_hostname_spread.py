"""Gangs with a spread constraint over hostnames are placed wherever any way exists, as near as can be."""

from tests.scheduling.driver import Driver
from tests.scheduling.hostname_spread import PREFERRED, REQUIRED, Case, Place, drawn

CASES = 250
MIXED_SEEDS = range(90, 270)
"""Of 1,200; in some of these a member of one kind must be seated between two of the other."""


def decided(case: Case, driver: Driver) -> Place | None:
    where = case.decided(driver)
    assert len(where) in (0, case.small + case.big)
    return case.place(list(where.values())) if where else None


def test_alike_members_are_placed_as_near_as_any_way_allows() -> None:
    placed = 0
    for seed in range(CASES):
        case = drawn(seed, 12, 8)
        best = case.best() if case.best(empty=True) is not None else None
        assert decided(case, Driver(config=PREFERRED)) == best, seed
        placed += best is not None
    assert placed >= CASES / 4


def test_where_the_size_rule_is_required_they_wait_for_what_an_empty_cluster_allows() -> None:
    for seed in range(CASES, 2 * CASES):
        case = drawn(seed, 12, 8)
        best, rule = case.best(), case.best(empty=True)
        wanted = best if best is not None and rule is not None and best <= rule else None
        assert decided(case, Driver(config=REQUIRED)) == wanted, seed


def test_different_members_are_placed_as_near_as_any_way_allows() -> None:
    for seed in MIXED_SEEDS:
        case = drawn(seed, 8, 6, mixed=True)
        best = case.best() if case.best(empty=True) is not None else None
        assert decided(case, Driver(config=PREFERRED)) == best, seed
