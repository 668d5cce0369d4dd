"""Async tests on a virtual loop."""

import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

from tests.kube.virtual import end_all

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
        loop.run_until_complete(end_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
