"""Timestamps in the API's format: UTC with an explicit Z."""

from datetime import UTC, datetime


def micro_time(seconds: float) -> str:
    """Return ``seconds`` since the epoch as ``MicroTime``, as in Leases and Events."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def time(seconds: float) -> str:
    """Return ``seconds`` since the epoch as ``Time``, as in conditions."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
