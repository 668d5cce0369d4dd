"""Numba functions: arrays in, arrays out. No objects, no strings, no clock.

Rules: int64 everywhere, explicit tie-breaks, results written into arrays that were handed in, one signature each, so
that a wrong dtype or a strided array is refused at the door instead of compiled in the hot path. With
``NUMBA_DISABLE_JIT=1`` the same functions run as plain Python: they are their own oracle.

Importing this package chooses the folder for compiled code, which must happen before Numba is imported.
"""

from topo_scheduler.kernels.cache import CacheState, prepare

CACHE: CacheState = prepare()
"""Where compiled kernels are kept in this process."""
