"""Timestamps of the API server."""

from datetime import datetime


def seconds_of(timestamp: str | None) -> float | None:
    """Return a timestamp in seconds since the epoch; None without a valid one.

    Timestamps that Python can't represent are invalid: clients may write any into the status of pods, such as the year
    10000 in another time zone.
    """
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError, OSError):
        return None
