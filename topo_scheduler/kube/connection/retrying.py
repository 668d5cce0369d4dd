"""Requests with retries for temporary failures."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from topo_scheduler.kube.connection.errors import KubeError, passes

R = TypeVar("R")

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Holds a slot for one attempt at a request. The slot is free during the pauses between attempts."""


async def retried(
    call: Callable[[], Awaitable[R]],
    *,
    attempts: int | None = None,
    seconds: float | None = None,
    first: float = 0.2,
    longest: float = 30.0,
    passing: Callable[[BaseException], bool] = passes,
    slot: Slot = nullcontext,
) -> R:
    """Run ``await call()`` with ``retry_policy.retrying``, without its cost if the first attempt succeeds.

    Each attempt holds a ``slot``.
    """

    async def attempt() -> R:
        async with slot():
            return await call()

    try:
        return await attempt()
    except KubeError as error:
        if not passing(error):
            raise
        failures = [error]

    from topo_scheduler.kube.connection.retry_policy import retrying

    async def again() -> R:
        if failures:  # the failure above counts as the policy's first attempt, so that its delay is kept
            raise failures.pop()
        return await attempt()

    policy = retrying(attempts=attempts, seconds=seconds, first=first, longest=longest, passing=passing)
    return await policy(again)
