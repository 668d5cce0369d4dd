"""Async tests on a virtual loop."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from .loop import VirtualLoop

P = ParamSpec("P")


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test in virtual time, on a loop of its own."""

    @functools.wraps(test)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return wrapper


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run something in virtual time; the current loop of the thread is let alone."""
    loop = VirtualLoop()
    try:
        loop.run_until_complete(work)
    finally:
        loop.run_until_complete(_end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


async def _end_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
