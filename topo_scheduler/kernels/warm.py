"""Compile every kernel, or fill a folder with compiled ones for an image.

``python -m topo_scheduler.kernels.warm DIR`` fills DIR; ``--check`` tells where kernels would be kept and whether
they work; ``--only MODULE...`` compiles some, for another process that waits for them.
"""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from topo_scheduler import kernels
from topo_scheduler.kernels.cache import OWN_VARIABLE, prepare, whole_mark

MODULES: Final = ("fit", "windows", "nodes", "alone", "small_pods")
"""What every decision needs: ready before the first."""
OF_PREEMPTION: Final = ("victims",)
"""What only preemption needs: compiled when the first workload would preempt, where no cache has it."""
OF_WIDE: Final = ("sets",)
"""What only gangs of three leaves and more need, where leaves between them are full."""
OF_PLUGINS: Final = ("added",)
"""What only plugins with scores need: compiled with them."""
OF_LINKS: Final = ("links",)
"""What only gangs that ask for bandwidth need."""
OF_MIXED: Final = ("filling",)
"""What only gangs of different pods need."""
OF_FGD: Final = ("fragmentation",)
"""What only the published score of pods alone needs, which ours is compared with."""
ALL: Final = MODULES + OF_PREEMPTION + OF_WIDE + OF_LINKS + OF_MIXED + OF_FGD + OF_PLUGINS


@dataclass(frozen=True, slots=True)
class Warmth:
    """Seconds it took to have every kernel ready, and whether they came from a cache."""

    seconds: float
    cached: bool
    folder: str


BESIDE: Final = ("nodes", "alone", "small_pods")
"""What another process compiles meanwhile, where there are two CPUs and nothing is in the cache."""
_MOST_BESIDE: Final = 60
"""Seconds that are waited for it."""
_beside: list[subprocess.Popen[bytes]] = []


def warm_beside() -> None:
    """Have another process compile a part of what every decision needs, while this one imports the rest.

    Where that is no use, or fails, `warm` compiles it.
    """
    cache, jit = kernels.CACHE, os.environ.get("NUMBA_DISABLE_JIT") != "1"
    if cache.folder is None or cache.whole or not jit or _beside or _cpus() < 2:
        return
    command = [sys.executable, "-m", __name__, "--only", *BESIDE]
    env = os.environ | {OWN_VARIABLE: str(cache.folder.parent)}
    try:
        _beside.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    except OSError:
        return


def interpret_unless_compiled() -> bool:
    """Run kernels as plain Python in this process where no cache has them; return whether it is so.

    They decide the same, thousands of times slower: enough for a process that ends after a few decisions on a small
    cluster, and sooner than they would be compiled. Without effect once Numba is imported.
    """
    if kernels.CACHE.whole or "numba" in sys.modules:
        return False
    import numba

    numba.config.DISABLE_JIT = True
    return True


def _cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _wait_beside() -> None:
    while _beside:
        other = _beside.pop()
        try:
            other.wait(_MOST_BESIDE)
        except subprocess.TimeoutExpired:
            other.kill()
            other.wait()


def warm(modules: tuple[str, ...] = MODULES) -> Warmth:
    """Import modules of kernels, which compiles their kernels or loads them from the cache."""
    started = time.perf_counter()
    for module in modules:
        if module in BESIDE:
            _wait_beside()
        import_module(f"topo_scheduler.kernels.{module}")
    if set(MODULES) <= set(modules):
        _note_whole()
    return Warmth(time.perf_counter() - started, kernels.CACHE.warm, str(kernels.CACHE.folder or ""))


def _note_whole() -> None:
    """Note for later processes that nothing needs to be compiled before the first decision."""
    import numba

    folder = kernels.CACHE.folder
    if folder is not None and not numba.config.DISABLE_JIT:
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
            # The package chose a folder when it was imported; no kernel is declared yet, so choose again.
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
