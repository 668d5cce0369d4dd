"""Pauses between attempts that failed in a row."""


def doubled(first: float, times: int, maximum: float) -> float:
    """Return a pause that doubles each time, up to a limit.

    Args:
        first: pause after the first failure, in seconds.
        times: number of failures so far; 0 counts as 1.
        maximum: maximum pause, in seconds.
    """
    return float(min(maximum, first * 2 ** min(20, max(0, times - 1))))
