"""Reads pending pods of which the engine kept a reference only, because their namespace has too many large ones."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError, TooLarge, with_remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.reading.pods import read_pod
from topo_scheduler.scheduling.engine import Engine
from topo_scheduler.scheduling.instructions import PodRef

log = logging.getLogger(__name__)

READS_IN_FLIGHT: Final = 8
READS_OF_NAMESPACE: Final = 4
READ_AGAIN_SECONDS: Final = 5.0
"""Seconds after which a failed read of a pod is retried."""
LARGE_AGAIN_SECONDS: Final = 60.0
"""Seconds for which a pod that is too large keeps its turn, before the other pods of its namespace go first."""
ATTEMPTS: Final = 3
"""Attempts to read a pod before the other pods of its namespace go first."""


class PendingPodReader:
    """Reads each pod, unless the engine needs it no more; a pod that can't be read has its turn again later.

    Args:
        engine: takes the pods.
        client: connection to the API server.
        clock: seconds, on the clock of the engine.
        start: starts a task of the term that ends by itself.
        changed: called after the engine got a pod.
    """

    def __init__(
        self,
        engine: Engine,
        client: Client,
        clock: Callable[[], float],
        start: Callable[[Coroutine[Any, Any, None], str], None],
        changed: Callable[[], None],
    ) -> None:
        self._engine = engine
        self._client = client
        self._clock = clock
        self._start = start
        self._changed = changed
        # It lends none: what a slow answer holds takes memory too.
        self._slots = FairSlots(READS_IN_FLIGHT, READS_OF_NAMESPACE, lendable=0)

    def read(self, pod: PodRef) -> None:
        """Start reading a pod."""
        self._start(self._read(pod), f"read pending pod {pod.uid}")

    async def _read(self, pod: PodRef) -> None:
        outside = self._engine.arrivals.outside
        try:
            await self._attempt(pod)
        finally:
            if outside.is_being_read(pod.uid):
                outside.read_later(pod.uid)
                self._changed()

    async def _attempt(self, pod: PodRef) -> None:
        outside, slot = self._engine.arrivals.outside, partial(self._slots.slot, pod.namespace)
        for _ in range(ATTEMPTS):
            if not outside.is_being_read(pod.uid):
                return
            try:
                read = await read_pod(self._client, pod.namespace, pod.name, pod.uid, slot)
            except KubeError as error:
                where = {"namespace": pod.namespace}
                log.warning(
                    "pod %s/%s can't be read again: %s", pod.namespace, pod.name, with_remedy(error), extra=where
                )
                if isinstance(error, TooLarge):
                    await asyncio.sleep(LARGE_AGAIN_SECONDS)
                    return
                await asyncio.sleep(READ_AGAIN_SECONDS)
                continue
            # While the answer was on its way, the watch may have reported a newer version, or the deletion.
            if read is not None and outside.is_being_read(pod.uid):
                self._engine.pods_applied([read], self._clock())
                self._changed()
            elif read is None:
                await asyncio.sleep(READ_AGAIN_SECONDS)  # it is gone: the watch reports its deletion
            return
