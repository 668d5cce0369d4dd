"""Compile every kernel, or fill a folder with compiled kernels for an image.

``python -m topo_scheduler.kernels.warm DIR`` fills DIR. ``--check`` compiles all kernels and prints the cache folder.
``--only MODULE...`` compiles some modules, for another process that waits for them.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from subprocess import DEVNULL
from typing import Final

from topo_scheduler import kernels
from topo_scheduler.kernels.cache import OWN_VARIABLE, prepare, whole_mark

MODULES: Final = ("fit", "windows", "nodes", "small_pods")
"""Modules that every decision needs: compiled before the first decision."""
OF_PREEMPTION: Final = ("victims",)
"""Modules for preemption: compiled before the first preemption, if they are not cached."""
OF_SOME_GANGS: Final = ("sets", "links", "filling")
"""Modules for gangs with full leaves between theirs, with bandwidth, or of several classes: compiled when needed."""
OF_DEVICES: Final = ("gpu_sets",)
"""Modules for the choice of GPUs on a node."""
ALL: Final = MODULES + OF_PREEMPTION + OF_SOME_GANGS + OF_DEVICES


@dataclass(frozen=True, slots=True)
class Warmth:
    """Seconds to load or compile the kernels, and whether they came from a cache."""

    seconds: float
    cached: bool
    folder: str


BESIDE: Final = ("nodes", "small_pods")
"""Modules that another process compiles in parallel, if there are two CPUs and the cache is empty."""
MAX_WAIT_SECONDS: Final = 60
"""Seconds to wait for that process."""
_beside: list[subprocess.Popen[bytes]] = []


def warm_beside() -> None:
    """Start another process that compiles some modules for every decision, while this process imports the others.

    If that is not useful, or fails, `warm` compiles these modules.
    """
    cache, jit_enabled = kernels.CACHE, os.environ.get("NUMBA_DISABLE_JIT") != "1"
    if cache.folder is None or cache.whole or not jit_enabled or _beside or _cpus() < 2:
        return
    try:
        environment = compilation_environment()
        _beside.append(subprocess.Popen(compilation(BESIDE), env=environment, stdout=DEVNULL, stderr=DEVNULL))
    except OSError:
        return


def compilation(modules: Sequence[str]) -> list[str]:
    """Return the command of a process that compiles some modules. It needs `compilation_environment`."""
    return [sys.executable, "-m", __name__, "--only", *modules]


def compilation_environment() -> dict[str, str]:
    """Return the environment of a process that compiles into the cache of this one."""
    folder = kernels.CACHE.folder
    return dict(os.environ) if folder is None else os.environ | {OWN_VARIABLE: str(folder.parent)}


def interpret_unless_compiled() -> bool:
    """Run kernels as plain Python in this process if they are not cached; return whether they run that way.

    The decisions are the same, but thousands of times slower. For a process that ends after a few decisions on a small
    cluster, this is faster than compilation. The function has no effect once Numba is imported.
    """
    if kernels.CACHE.whole or "numba" in sys.modules:
        return False
    import numba

    numba.config.DISABLE_JIT = True  # type: ignore[attr-defined]  # set by Numba from the environment
    return True


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _wait_beside() -> None:
    while _beside:
        process = _beside.pop()
        try:
            process.wait(MAX_WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def uncached(modules: tuple[str, ...]) -> list[str]:
    """Return those of some modules that are not cached and could be; none if kernels are not compiled."""
    folder = kernels.CACHE.folder
    if folder is None or os.environ.get("NUMBA_DISABLE_JIT") == "1":
        return []
    return [module for module in modules if not any(folder.rglob(f"{module}.*.nbi"))]


def warm(modules: tuple[str, ...] = MODULES) -> Warmth:
    """Import kernel modules. The import compiles their kernels, or loads them from the cache."""
    started = time.perf_counter()
    for module in modules:
        if module in BESIDE:
            _wait_beside()
        import_module(f"topo_scheduler.kernels.{module}")
    if set(MODULES) <= set(modules):
        _note_whole()
    return Warmth(time.perf_counter() - started, kernels.CACHE.warm, str(kernels.CACHE.folder or ""))


def _note_whole() -> None:
    """Create the marker file: later processes need no compilation before the first decision."""
    import numba

    folder = kernels.CACHE.folder
    if folder is not None and not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        with contextlib.suppress(OSError):
            (folder / whole_mark()).touch()


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["--check"]:
            pass
        case ["--only", *modules] if modules and set(modules) <= set(ALL):
            warm(tuple(modules))
            return 0
        case [folder] if not folder.startswith("-"):
            # The package chose a folder at import. No kernel module is imported yet, so choose again.
            os.environ[OWN_VARIABLE] = folder
            kernels.CACHE = prepare()
        case _:
            sys.stderr.write("usage: python -m topo_scheduler.kernels.warm DIR | --check | --only MODULE...\n")
            return 2
    result = warm(ALL)
    where = result.folder or "nowhere (no writable folder)"
    how = "loaded from" if result.cached else "compiled, kept in"
    sys.stdout.write(f"kernels ready in {result.seconds:.2f} s, {how} {where}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
