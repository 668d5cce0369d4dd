"""Computes tables of GPUs in a thread: those of 16 GPUs take 0.1 s, and their kernels seconds to compile."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from topo_scheduler.scheduling.devices.shape_tables import TableRequest, compute
from topo_scheduler.scheduling.engine import Engine

log = logging.getLogger(__name__)


class GpuTableWork:
    """Computes the tables that an engine wants, one after the other."""

    def __init__(
        self, engine: Engine, start: Callable[[Coroutine[Any, Any, None], str], None], changed: Callable[[], None]
    ) -> None:
        """Let the engine want tables instead of computing them.

        Args:
            engine: the engine.
            start: starts a task of the term that ends by itself.
            changed: called after the engine got tables.
        """
        self._engine = engine
        self._start = start
        self._changed = changed
        self._requests: deque[TableRequest] = deque()
        self._working = False
        engine.defer_gpu_tables()

    def look(self) -> None:
        """Start to compute the tables that the engine wants by now."""
        sets = self._engine.world.around.gpu_sets
        if sets is None:
            return
        self._requests += sets.tables.take_wanted()
        if self._requests and not self._working:
            self._working = True
            self._start(self._work(), "tables of GPUs")

    async def _work(self) -> None:
        try:
            while self._requests:
                await self._compute(self._requests.popleft())
        finally:
            self._working = False

    async def _compute(self, request: TableRequest) -> None:
        sets = self._engine.world.around.gpu_sets
        hardware = sets.tables.hardware_of(request) if sets is not None else None
        if sets is None or hardware is None:
            return
        started = time.perf_counter()
        try:
            tables = await asyncio.to_thread(compute, hardware, request.weights)
        except Exception:
            # Without a table, the approximate choice goes on. The same computation would fail again.
            log.exception("tables of a node with %d GPUs could not be computed", len(hardware.gpus))
            return
        seconds = round(time.perf_counter() - started, 3)
        log.info("tables of GPUs ready", extra={"gpus": tables.size, "seconds": seconds})
        sets.tables.computed(request, tables)
        self._engine.gpu_tables_ready(request.kind, request.weights)
        self._changed()
