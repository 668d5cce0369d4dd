"""Pauses between attempts that failed in a row."""


def doubled(first: float, times: int, most: float) -> float:
    """Return a pause that doubles each time, up to a limit.

    Args:
        first: the pause after the first time, in seconds.
        times: how often it happened so far; 0 counts as once.
        most: the longest pause, in seconds.
    """
    return float(min(most, first * 2 ** min(20, max(0, times - 1))))
