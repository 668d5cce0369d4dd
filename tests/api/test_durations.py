"""Durations as Go writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topo_scheduler.api.durations import (
    MAX_SECONDS,
    DurationError,
    format_duration,
    parse_duration,
    written_duration,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("1h30m15s", 5415),
        ("90s", 90),
        ("1.5h", 5400),
        (".5h", 1800),
        ("1.s", 1),
        ("500ms", 0.5),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("30m1h", 5400),
        (" 10m ", 600),
        ("+10m", 600),
    ],
)
def test_what_go_reads(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 m", "10d", "1h 30m", "ten", "1e3s", "١m", "h1", ".s", "1m" * 40])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(DurationError, match="is not a duration such as 90s, 10m or 1h30m"):
        parse_duration(text)


def test_negative_zero_and_absurd_durations_say_what_is_wrong() -> None:
    with pytest.raises(DurationError, match="'-10m' is negative"):
        parse_duration("-10m")
    for text in ("0s", "0h0m", "100000000h"):
        with pytest.raises(DurationError, match="is not between 1ns and 87600h"):
            parse_duration(text)


@given(st.integers(0, 80_000), st.integers(0, 59), st.integers(1, 59))
def test_hours_minutes_and_seconds_add_up(hours: int, minutes: int, seconds: int) -> None:
    whole = 3600 * hours + 60 * minutes + seconds
    assert whole <= MAX_SECONDS
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == whole


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (45, "45s"), (60, "1m"), (754, "12m 34s"), (12_000, "3h 20m"), (187_200, "2d 4h"), (-5, "0s")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(1e-9, MAX_SECONDS, allow_nan=False))
def test_what_is_written_is_read_again(seconds: float) -> None:
    assert parse_duration(written_duration(seconds)) == pytest.approx(seconds, abs=1e-9)
