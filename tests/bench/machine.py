"""The machine that was measured: what it is, how busy it is, and how fast it is at the moment."""

import hashlib
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from .objects import Json

PACKAGE: Final = Path(__file__).resolve().parents[2] / "topo_scheduler"
PYTHON_STEPS: Final = 20_000
ARRAY: Final = 65_536
"""Elements of an array that is walked through: half a MiB, which a core's own cache holds."""


def facts() -> Json:
    """What the figures depend on; two runs with the same `where` are of one machine, since it was last started."""
    return {
        "cpus": os.cpu_count(),
        "model": _model(),
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "where": _where(),
    }


@cache
def source() -> str:
    """A name for the scheduler's code as it is: another code, another name."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def commit() -> str:
    """The commit that is checked out, and whether files differ from it; empty where there is no repository."""

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "--short=12", "HEAD") + (", changed" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return ""


def load() -> float:
    """The load average of the last minute."""
    return round(os.getloadavg()[0], 2)


def _model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _where() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    except OSError:
        boot = ""
    return hashlib.sha256(f"{platform.node()} {boot}".encode()).hexdigest()[:12]


# ---------------------------------------------------------------- how fast it is


@dataclass(frozen=True, slots=True)
class Reference:
    """CPU nanoseconds of a step of two loops that never change: one of Python, one compiled by Numba."""

    python_ns: float
    compiled_ns: float

    def told(self) -> dict[str, float]:
        """As it is written down."""
        return {name: round(value, 3) for name, value in asdict(self).items()}


class _Item:
    __slots__ = ("count", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0


def python_loop(steps: int = PYTHON_STEPS) -> int:
    """What a scheduler's Python does most: look up, call, compare, add, make small objects."""
    items = {f"name-{number}": _Item(f"name-{number}") for number in range(64)}
    names, total = list(items), 0
    for step in range(steps):
        item = items[names[step & 63]]
        item.count += step & 7
        total += max(item.count, len(item.name)) + len((item.name, step))
    return total


@cache
def _compiled() -> Callable[[Any], int]:
    import numba

    @numba.njit("int64(int64[::1])")  # type: ignore[untyped-decorator,unused-ignore]
    def walk(values: Any) -> int:
        best = total = 0
        for at in range(values.size):
            total += values[at] & 7
            if total > best:
                best = total - (values[at] & 3)
        return best + total

    return walk  # type: ignore[no-any-return,unused-ignore]


def reference(repeats: int = 7) -> Reference:
    """Measure both, each the fastest of some times, in turn."""
    values = np.arange(ARRAY, dtype=np.int64) * 2_654_435_761 & 0xFFFF
    walk = _compiled()
    python: list[float] = []
    compiled: list[float] = []
    for _ in range(repeats):
        python.append(_taken(python_loop) / PYTHON_STEPS)
        compiled.append(_taken(lambda: [walk(values) for _ in range(20)]) / (20 * ARRAY))
    return Reference(1e9 * min(python), 1e9 * min(compiled))


def _taken(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def mean(references: Sequence[Reference]) -> Reference:
    """The mean of some that were measured one after the other."""
    python = sum(sample.python_ns for sample in references) / len(references)
    return Reference(python, sum(sample.compiled_ns for sample in references) / len(references))
