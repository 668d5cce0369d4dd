"""Kernels that are compiled while this process decides, by another process."""

import asyncio
from subprocess import DEVNULL

from topo_scheduler.kernels.warm import MAX_WAIT_SECONDS, compilation, compilation_environment, uncached


async def compile_apart(modules: tuple[str, ...]) -> None:
    """Compile those of some modules that are not cached in another process, so that `warm` only loads them.

    Numba compiles under a lock. A thread that compiles for seconds would stop an event loop that needs the lock. If the
    other process fails, `warm` compiles the modules.
    """
    missing = uncached(modules)
    if not missing:
        return
    try:
        process = await asyncio.create_subprocess_exec(
            *compilation(missing), env=compilation_environment(), stdout=DEVNULL, stderr=DEVNULL
        )
    except OSError:
        return
    try:
        async with asyncio.timeout(MAX_WAIT_SECONDS):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
