"""Requests with retries for temporary failures."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from topo_scheduler.kube.connection.errors import KubeError, passes

R = TypeVar("R")


async def retried(
    call: Callable[[], Awaitable[R]],
    *,
    attempts: int | None = None,
    seconds: float | None = None,
    first: float = 0.2,
    longest: float = 30.0,
    passing: Callable[[BaseException], bool] = passes,
) -> R:
    """Run ``await call()`` with ``retry_policy.retrying``, without its cost if the first attempt succeeds."""
    try:
        return await call()
    except KubeError as error:
        if not passing(error):
            raise
        failures = [error]

    from topo_scheduler.kube.connection.retry_policy import retrying

    async def again() -> R:
        if failures:  # the failure above counts as the policy's first attempt, so that its delay is kept
            raise failures.pop()
        return await call()

    policy = retrying(attempts=attempts, seconds=seconds, first=first, longest=longest, passing=passing)
    return await policy(again)
