"""Numba functions: arrays in, arrays out. No objects, no strings, no clock.

Rules: int64 everywhere; explicit tie-breaking; results go into arrays of the caller; one signature per function. So a
call with a wrong dtype or a strided array fails at once, instead of a compilation in the hot path. With
``NUMBA_DISABLE_JIT=1`` the same functions run as plain Python, which serves as the test oracle.

The import of this package chooses the folder for compiled code. That must happen before the import of Numba.

Imported by: `cli`, `daemon`, `runtime`, `scheduling`, `simulation`.
"""

from topo_scheduler.kernels.cache import CacheState, prepare

CACHE: CacheState = prepare()
"""The cache folder of compiled kernels in this process."""
