"""Compile every kernel, or fill a folder with compiled ones for an image.

``python -m topo_scheduler.kernels.warm DIR`` fills DIR; ``--check`` tells where kernels would be kept and whether
they work.
"""

import os
import sys
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Final

from topo_scheduler import kernels
from topo_scheduler.kernels.cache import OWN_VARIABLE, prepare

MODULES: Final = ("fit", "windows", "nodes", "links", "fragmentation", "small_pods")
"""What every decision needs: ready before the first."""
OF_PREEMPTION: Final = ("victims",)
"""What only preemption needs: compiled when the first workload would preempt, where no cache has it."""
OF_WIDE: Final = ("sets",)
"""What only gangs of three leaves and more need, where leaves between them are full."""
OF_PLUGINS: Final = ("added",)
"""What only plugins with scores need: compiled with them."""
ALL: Final = MODULES + OF_PREEMPTION + OF_WIDE + OF_PLUGINS


@dataclass(frozen=True, slots=True)
class Warmth:
    """Seconds it took to have every kernel ready, and whether they came from a cache."""

    seconds: float
    cached: bool
    folder: str


def warm(modules: tuple[str, ...] = MODULES) -> Warmth:
    """Import modules of kernels, which compiles their kernels or loads them from the cache."""
    started = time.perf_counter()
    for module in modules:
        import_module(f"topo_scheduler.kernels.{module}")
    return Warmth(time.perf_counter() - started, kernels.CACHE.warm, str(kernels.CACHE.folder or ""))


def main(arguments: list[str]) -> int:
    """Run the command line."""
    match arguments:
        case ["--check"]:
            pass
        case [folder] if not folder.startswith("-"):
            # The package chose a folder when it was imported; no kernel is declared yet, so choose again.
            os.environ[OWN_VARIABLE] = folder
            kernels.CACHE = prepare()
        case _:
            sys.stderr.write("usage: python -m topo_scheduler.kernels.warm DIR | --check\n")
            return 2
    result = warm(ALL)
    where = result.folder or "nowhere (no writable folder)"
    how = "loaded from" if result.cached else "compiled, kept in"
    sys.stdout.write(f"kernels ready in {result.seconds:.2f} s, {how} {where}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
