"""A short soak: nothing that a daemon holds grows, and in the end nothing is left. The long one is `python -m`."""

import pytest

from .soak import Sample, Soak, run


@pytest.mark.timeout(900)
def test_twenty_thousand_events_leave_nothing_behind() -> None:
    result = run(20_000, 600, 1_000)
    assert not result.left
    assert not result.leaks(20_000)
    assert result.begun["nodes that failed"] > 5 and result.begun["moves asked for"] > 2


def test_a_table_that_grows_is_found_and_one_that_swings_is_not() -> None:
    tables = [{"grows": 10 * number, "swings": 50 + 40 * (number % 2), "steady": 7} for number in range(101)]
    soak = Soak([Sample(number * 1_000, 0, table) for number, table in enumerate(tables)])
    assert soak.leaks(100_000) == ["grows: at most 500 before, at least 750 at the end"]
