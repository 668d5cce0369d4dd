"""The decorator for kernels."""

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from topo_scheduler.kernels import CACHE

if CACHE.folder is not None:
    numba.config.CACHE_DIR = str(CACHE.folder)

F = TypeVar("F", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for one signature, without the GIL, cached on disk if there is a writable folder.

    No ``parallel`` and no ``fastmath``: the same input must give the same decision on every machine.
    """
    # No C code calls kernels. Without wrappers for C they compile faster.
    compiled: Callable[[F], F] = numba.njit(signature, nogil=True, cache=CACHE.enabled, no_cfunc_wrapper=True)
    return compiled
