"""Requests with retries for temporary failures."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from math import inf
from typing import Final, TypeVar

from topo_scheduler.kube.connection.errors import KubeError, lacks_rights, passes

RIGHTS_SECONDS: Final = 10.0
"""Seconds for which refusals by RBAC are retried, from the first: a server that has just started has no roles yet."""

R = TypeVar("R")

Slot = Callable[[], AbstractAsyncContextManager[None]]
"""Holds a slot for one attempt at a request. The slot is free during the pauses between attempts."""


def or_until_granted(
    passing: Callable[[BaseException], bool] = passes, seconds: float = RIGHTS_SECONDS
) -> Callable[[BaseException], bool]:
    """Return which errors of one request are temporary: those that pass, and for ``seconds`` refusals by RBAC."""
    refused_at = inf

    def is_temporary(error: BaseException) -> bool:
        nonlocal refused_at
        if not lacks_rights(error):
            return passing(error)
        now = asyncio.get_running_loop().time()
        refused_at = min(refused_at, now)
        return now < refused_at + seconds

    return is_temporary


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
