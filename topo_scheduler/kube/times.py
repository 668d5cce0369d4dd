"""Timestamps as the API writes them: UTC, and saying so."""

from datetime import UTC, datetime


def micro_time(seconds: float) -> str:
    """``MicroTime``, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time(seconds: float) -> str:
    """``Time``, as in conditions."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
