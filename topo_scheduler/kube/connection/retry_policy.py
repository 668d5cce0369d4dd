"""Retry policies. Importing tenacity is slow, so a command whose requests succeed avoids this module."""

import asyncio
import logging
from collections.abc import Callable

import tenacity

from topo_scheduler.kube.connection.errors import passes, pause

logger = logging.getLogger(__name__)


class RetryWait(tenacity.wait.wait_base):
    """:func:`pause` as a wait strategy of tenacity."""

    def __init__(self, first: float, longest: float) -> None:
        self._first = first
        self._longest = longest

    def __call__(self, retry_state: tenacity.RetryCallState) -> float:
        """Return the seconds to wait after the attempt that just failed."""
        error = retry_state.outcome.exception() if retry_state.outcome else None
        return pause(retry_state.attempt_number, error, self._first, self._longest)


def retrying(
    *,
    attempts: int | None = None,
    seconds: float | None = None,
    first: float = 0.2,
    longest: float = 30.0,
    passing: Callable[[BaseException], bool] = passes,
) -> tenacity.AsyncRetrying:
    """Return a policy ``await policy(call, …)`` that retries errors for which ``passing`` returns True.

    It raises the last error itself after ``attempts``, or when the next attempt would start more than ``seconds``
    from now. At least one bound is required. Code that retries without a bound must use an explicit loop.
    """
    if attempts is None and seconds is None:
        raise ValueError("retrying() needs attempts or seconds")
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds if seconds is not None else None

    def stop(state: tenacity.RetryCallState) -> bool:
        if attempts is not None and state.attempt_number >= attempts:
            return True
        return end is not None and loop.time() + state.upcoming_sleep >= end

    return tenacity.AsyncRetrying(
        sleep=asyncio.sleep,
        wait=RetryWait(first, longest),
        stop=stop,
        retry=tenacity.retry_if_exception(passing),
        before_sleep=_log_retry,
        reraise=True,
    )


def _log_retry(state: tenacity.RetryCallState) -> None:
    error = state.outcome.exception() if state.outcome else None
    logger.debug("%s; attempt %d in %.2f s", error, state.attempt_number + 1, state.upcoming_sleep)
