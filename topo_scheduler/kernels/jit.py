"""The one way a kernel is declared."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from topo_scheduler.kernels import CACHE

if CACHE.folder is not None:
    numba.config.CACHE_DIR = str(CACHE.folder)

F = TypeVar("F", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for one signature, without the GIL, cached on disk where there is a place for it.

    No ``parallel`` and no ``fastmath``: the same input must give the same decision on every machine.
    """
    # Nobody calls kernels from C: without the wrappers for it they compile faster.
    compiled: Callable[[F], F] = numba.njit(signature, nogil=True, cache=CACHE.enabled, no_cfunc_wrapper=True)
    return compiled
