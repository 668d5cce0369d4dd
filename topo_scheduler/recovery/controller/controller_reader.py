"""Reads which controllers pods have. A Migration names pods by uid, as its author likes, and none may exist."""

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from topo_scheduler.api.objects import ObjectMeta
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.reading.pods import read_controller
from topo_scheduler.scheduling.instructions import PodRef

CONCURRENT_READS: Final = 4
"""Concurrent requests, of one namespace 3 at most: each answer may have `MAX_POD_BYTES`."""


@dataclass(slots=True)
class ControllerReader:
    """Reads the metadata of pods. Callers that need pods of one name at once share a request.

    Args:
        client: connection to the API server.
    """

    client: Client
    _slots: FairSlots = field(default_factory=lambda: FairSlots(CONCURRENT_READS, None, lendable=0))
    """It lends none: what a slow answer holds takes memory too."""
    _asking: dict[tuple[str, str], asyncio.Task[ObjectMeta | None]] = field(default_factory=dict)

    async def read(self, pod: PodRef) -> ObjectMeta | None:
        """Return the identity of a pod, and its controller; None if it is gone, or another one has its name.

        Raises:
            KubeError: the API server gave no answer, or refused it.
        """
        key = pod.namespace, pod.name
        asking = self._asking.get(key)
        if asking is None:
            slot = partial(self._slots.slot, pod.namespace)
            reading = read_controller(self.client, pod.namespace, pod.name, slot)
            asking = self._asking[key] = asyncio.create_task(reading, name=f"controller of pod {pod.name}")
            asking.add_done_callback(partial(self._answered, key))
        identity = await asyncio.shield(asking)
        return identity if identity is not None and identity.uid == pod.uid else None

    def _answered(self, key: tuple[str, str], asking: asyncio.Task[ObjectMeta | None]) -> None:
        self._asking.pop(key, None)
        if not asking.cancelled():
            asking.exception()  # retrieve it: all callers may have been cancelled by now
