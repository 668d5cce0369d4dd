"""Counts calls of Python functions: a measure of work that is the same on every machine."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import topo_scheduler

PACKAGE = str(Path(topo_scheduler.__file__).parent)


def calls_of(work: Callable[[], Any]) -> Counter[str]:
    """Return how often something calls each Python function, by file and name."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            calls[f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}"] += 1

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def of_package(calls: Counter[str]) -> Counter[str]:
    """Return the calls of functions of this package, without the kernels: those may run without the compiler."""
    kernels = f"{PACKAGE}/kernels/"
    return Counter({name: n for name, n in calls.items() if name.startswith(PACKAGE) and not name.startswith(kernels)})
