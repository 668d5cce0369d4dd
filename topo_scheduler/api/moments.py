"""Timestamps as the API server tells them."""

from datetime import datetime


def seconds_of(timestamp: str | None) -> float | None:
    """Return a timestamp in seconds since the epoch; None where there is none.

    Nor is there one where no calendar of ours has it: Kubernetes passes on what others wrote into the status of pods,
    such as the year 10000 in another time zone.
    """
    try:
        return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
    except (ValueError, OverflowError, OSError):
        return None
