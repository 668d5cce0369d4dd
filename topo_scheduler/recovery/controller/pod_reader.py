"""Reads pods that recovery needs to know and the engine does not keep, with their owners."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from topo_scheduler.api.objects import Pod
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.connection.retrying import Slot
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.pods import read_pod
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerControl

log = logging.getLogger(__name__)

READ_AGAIN_SECONDS: Final = 5.0
"""Seconds after which a failed read of a pod is retried."""
LONGEST_REASON_CHARACTERS: Final = 512


@dataclass(slots=True)
class PodReader:
    """Pods that are being read.

    Args:
        client: connection to the API server.
        control: takes the pods.
        owners: reads the owners of pods.
        slots: limits the requests in flight of each namespace, whose webhooks may hang.
        clock: returns seconds, as the engine uses them.
        start: starts a task that ends by itself, as part of the term.
        machine: returns the current `Recovery`; None while recovery is off.
        wake: called after the machine got news.
    """

    client: Client
    control: SchedulerControl
    owners: OwnerDirectory
    slots: FairSlots
    clock: Callable[[], float]
    start: Callable[[Coroutine[Any, Any, None], str], None]
    machine: Callable[[], Recovery | None]
    wake: Callable[[], None]
    reading: set[str] = field(default_factory=set)
    """Uids of the pods that are being read."""

    def learn(self, pods: Iterable[PodRef]) -> None:
        """Start reading pods, one task for each namespace, unless they are being read."""
        by_namespace: dict[str, list[PodRef]] = {}
        for pod in pods:
            if pod.uid not in self.reading:
                by_namespace.setdefault(pod.namespace, []).append(pod)
        for namespace, unread in by_namespace.items():
            self.reading.update(pod.uid for pod in unread)
            self.start(self._learn(unread), f"read pods of namespace {namespace}")

    async def _learn(self, pods: Sequence[PodRef]) -> None:
        """Read pods of one namespace, and those that can't be read again later: other pods do not wait for them."""
        remaining = list(pods)
        try:
            while remaining and self.machine() is not None:
                read_pods = await asyncio.gather(*map(self._read_with_owners, remaining))
                known_pods = [read_pod for read_pod in read_pods if isinstance(read_pod, Pod)]
                unread = {read_pod.uid for read_pod in read_pods if isinstance(read_pod, PodRef)}
                uids = [pod.uid for pod in remaining if pod.uid not in unread]
                self.reading.difference_update(uids)
                remaining = [pod for pod in remaining if pod.uid in unread]
                if uids:
                    self.control.pods_told(known_pods, self.clock())
                    if (machine := self.machine()) is not None:
                        machine.learned(uids)
                        self.wake()
                if remaining:
                    await asyncio.sleep(READ_AGAIN_SECONDS)
        finally:
            self.reading.difference_update(pod.uid for pod in remaining)

    async def _read_with_owners(self, pod: PodRef) -> Pod | PodRef | None:
        """Return a pod after reading its owners; None if it is gone, and ``pod`` itself if it can't be read."""
        try:
            pod_object = await self.read(pod, partial(self.slots.slot, pod.namespace))
            if pod_object is not None:
                await self.owners.complete(pod_object.metadata)
        except KubeError as error:
            log.warning("pod %s/%s can't be moved, as it can't be read: %s", pod.namespace, pod.name, error)
            if (machine := self.machine()) is not None:
                machine.migrations.unread(pod, printable(str(error), LONGEST_REASON_CHARACTERS), self.clock())
                self.wake()
            return pod
        return pod_object

    async def read(self, pod: PodRef, slot: Slot = nullcontext) -> Pod | None:
        """Return a pod; None if it is gone, or another one has its name. See `read_pod`."""
        return await read_pod(self.client, pod.namespace, pod.name, pod.uid, slot)
