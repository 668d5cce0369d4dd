"""Explanations take a part of the time in the long run, and all of it for a moment; steps rest at slow answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.runtime.cpu_pace import (
    BURST_SECONDS,
    LONGEST_REST_SECONDS,
    SHARE,
    SHARE_WHILE_SLOW,
    SLOW_ANSWER_SECONDS,
    SLOW_SECONDS,
    TURN_SECONDS,
    CpuPace,
)


def taken_within(seconds: float, slice_seconds: float, bind_seconds: float = 0.0) -> float:
    """Return the time that explanations take in a span if there is always one to work on.

    ``bind_seconds``: binds end all the time, each after so long.
    """
    pace, now, taken = CpuPace(), 0.0, 0.0
    while now < seconds:
        pace.answered(bind_seconds, now)
        due = min(pace.due(now), now + SLOW_SECONDS / 2)
        if due > now:
            now = due
            continue
        now, taken = now + slice_seconds, taken + slice_seconds
        pace.spent(slice_seconds, now)
    return taken


def test_the_first_seconds_have_no_rest() -> None:
    assert taken_within(BURST_SECONDS, 0.002) == pytest.approx(BURST_SECONDS, abs=0.01)


@given(st.floats(0.001, 0.5))
def test_in_the_long_run_they_take_their_share(slice_seconds: float) -> None:
    seconds = 1_000.0
    limit = BURST_SECONDS + SHARE * seconds + slice_seconds + TURN_SECONDS
    assert 0.9 * SHARE * seconds < taken_within(seconds, slice_seconds) <= limit


def test_after_a_pause_they_have_a_burst_again() -> None:
    pace = CpuPace()
    pace.spent(BURST_SECONDS, 0.0)
    assert pace.due(0.0) > 0.0
    later = 2 * BURST_SECONDS / SHARE
    assert pace.due(later) == later
    pace.spent(BURST_SECONDS - 0.1, later)
    assert pace.due(later) == later


@given(st.floats(0.001, 0.5))
def test_while_binds_take_long_they_take_next_to_nothing(slice_seconds: float) -> None:
    seconds = 1_000.0
    taken = taken_within(seconds, slice_seconds, 2 * SLOW_ANSWER_SECONDS)
    assert 0.5 * SHARE_WHILE_SLOW * seconds < taken <= SHARE_WHILE_SLOW * seconds + slice_seconds + TURN_SECONDS


def test_after_slow_binds_they_go_on_as_before() -> None:
    pace = CpuPace()
    pace.answered(2 * SLOW_ANSWER_SECONDS, 0.0)
    assert pace.due(0.0) > 0.0
    later = SLOW_SECONDS + 2 * BURST_SECONDS / SHARE
    pace.due(SLOW_SECONDS)
    assert pace.due(later) == later
    pace.spent(BURST_SECONDS - 0.1, later)
    assert pace.due(later) == later


def test_steps_that_place_nothing_rest_while_the_api_server_answers_slowly() -> None:
    pace = CpuPace()
    assert pace.rest(0.005, 0.0) == 0.0
    pace.answered(2 * SLOW_ANSWER_SECONDS, 0.0)
    assert pace.rest(0.005, SLOW_SECONDS - 0.1) == pytest.approx(0.015)
    assert pace.rest(1.0, SLOW_SECONDS - 0.1) == LONGEST_REST_SECONDS
    assert pace.rest(0.005, SLOW_SECONDS + 0.1) == 0.0
