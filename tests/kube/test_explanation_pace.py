"""Explanations take a part of the time in the long run, and all of it for a moment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.runtime.explanation_pace import BURST_SECONDS, SHARE, TURN_SECONDS, ExplanationPace


def taken_within(seconds: float, slice_seconds: float) -> float:
    """Return the time that explanations take in a span if there is always one to work on."""
    pace, now, taken = ExplanationPace(), 0.0, 0.0
    while now < seconds:
        due = pace.due(now)
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
    most = BURST_SECONDS + SHARE * seconds + slice_seconds + TURN_SECONDS
    assert 0.9 * SHARE * seconds < taken_within(seconds, slice_seconds) <= most


def test_after_a_pause_they_have_a_burst_again() -> None:
    pace = ExplanationPace()
    pace.spent(BURST_SECONDS, 0.0)
    assert pace.due(0.0) > 0.0
    later = 2 * BURST_SECONDS / SHARE
    assert pace.due(later) == later
    pace.spent(BURST_SECONDS - 0.1, later)
    assert pace.due(later) == later
