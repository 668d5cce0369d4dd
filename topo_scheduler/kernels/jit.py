"""The decorator for kernels."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

from topo_scheduler.kernels import CACHE

if CACHE.folder is not None:
    numba.config.CACHE_DIR = str(CACHE.folder)  # type: ignore[attr-defined]  # set from the environment

F = TypeVar("F", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[F], F]:
    """Compile a function for one signature, without the GIL, cached on disk if there is a writable folder.

    No ``parallel`` and no ``fastmath``: the same input must give the same decision on every machine.
    """
    # No C code calls kernels. Without wrappers for C they compile faster.
    options: dict[str, Any] = {"nogil": True, "cache": CACHE.enabled, "no_cfunc_wrapper": True}
    # Numba calls what it compiled a dispatcher; callers see the function.
    return cast("Callable[[F], F]", numba.njit(signature, **options))
