"""Reads pods that recovery needs to know and the engine does not keep, with their owners."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import Client
from topo_scheduler.kube.connection.errors import KubeError, TooLarge, with_remedy
from topo_scheduler.kube.connection.fair_slots import FairSlots
from topo_scheduler.kube.reading.owner_chains import Missing
from topo_scheduler.kube.reading.owners import OwnerDirectory
from topo_scheduler.kube.reading.pods import identity_of, read_pod
from topo_scheduler.recovery.core.machine import Recovery
from topo_scheduler.scheduling.instructions import PodRef
from topo_scheduler.scheduling.scheduler_view import SchedulerControl

log = logging.getLogger(__name__)

READ_AGAIN_SECONDS: Final = 5.0
"""Seconds after which a failed read of a pod is retried."""
LARGE_AGAIN_SECONDS: Final = 60.0
"""The same for a pod that is too large, if a Migration or a failed node still waits for it."""
LARGE_PODS_OF_NAMESPACE: Final = 8
"""Pods of one namespace that were too large, of those that are read again after such a pause."""
LONGEST_REASON_CHARACTERS: Final = 512
CONCURRENT_READS: Final = 4
"""Concurrent requests, of one namespace 3 at most: each answer may have `MAX_POD_BYTES`."""
TASKS_OF_NAMESPACE: Final = 8
"""Tasks that read pods of one namespace: more than its slots, which are free while an owner is read."""


@dataclass(slots=True)
class PodReader:
    """Pods that are being read.

    Args:
        client: connection to the API server.
        control: takes the pods.
        owners: reads the owners of pods.
        clock: returns seconds, as the engine uses them.
        start: starts a task that ends by itself, as part of the term.
        machine: returns the current `Recovery`; None while recovery is off.
        wake: called after the machine got news.
    """

    client: Client
    control: SchedulerControl
    owners: OwnerDirectory
    clock: Callable[[], float]
    start: Callable[[Coroutine[Any, Any, None], str], None]
    machine: Callable[[], Recovery | None]
    wake: Callable[[], None]
    reading: dict[str, str] = field(default_factory=dict)
    """Uids of the pods that are being read, each with why its last read failed, or an empty string."""
    _large: dict[str, list[PodRef]] = field(default_factory=dict)
    """Pods that were too large when they were last read, by namespace; the next to be read first."""
    _slots: FairSlots = field(default_factory=lambda: FairSlots(CONCURRENT_READS, None, lendable=0))
    """It lends none: what a slow answer holds takes memory too."""

    def learn(self, pods: Iterable[PodRef], migration: str = "") -> None:
        """Start reading pods, one task for each namespace, unless they are being read.

        If the last read of a pod failed, ``migration`` gets the reason at once: the next read may be a minute away.
        """
        by_namespace: dict[str, list[PodRef]] = {}
        for pod in pods:
            if (reason := self.reading.get(pod.uid)) is None:
                by_namespace.setdefault(pod.namespace, []).append(pod)
            elif reason and migration:
                self._report(pod, reason, migration)
        for namespace, unread in by_namespace.items():
            self.reading.update((pod.uid, "") for pod in unread)
            self.start(self._learn(unread), f"read pods of namespace {namespace}")

    async def _learn(self, pods: Sequence[PodRef]) -> None:
        """Read pods of one namespace, and those that can't be read again later: other pods do not wait for them."""
        remaining = list(pods)
        try:
            while remaining and self.machine() is not None:
                queue, unread, large = deque(remaining), set[str](), list[PodRef]()
                await asyncio.gather(*(self._read_queued(queue, unread, large) for _ in range(TASKS_OF_NAMESPACE)))
                unread.update(pod.uid for pod in queue)  # recovery was turned off meanwhile
                uids = [pod.uid for pod in remaining if pod.uid not in unread]
                if large:
                    unread.difference_update(pod.uid for pod in large)
                    self._postpone(large)
                remaining = [pod for pod in remaining if pod.uid in unread]
                self._end_reading(uids)
                if remaining:
                    await asyncio.sleep(READ_AGAIN_SECONDS)
                    remaining = self._present(remaining)
        finally:
            self._forget(pod.uid for pod in remaining)

    def _postpone(self, large: Sequence[PodRef]) -> None:
        """Have pods of one namespace read again later that are too large."""
        namespace = large[0].namespace
        if namespace in self._large:
            self._large[namespace] += large
            return
        self._large[namespace] = list(large)
        self.start(self._learn_large(namespace), f"read large pods of {namespace}")

    async def _learn_large(self, namespace: str) -> None:
        """Read pods of a namespace again that were too large, a few after each pause, while they are awaited."""
        large = self._large[namespace]
        try:
            while large and self.machine() is not None:
                await asyncio.sleep(LARGE_AGAIN_SECONDS)
                large[:] = self._awaited(self._present(large))
                if due := large[:LARGE_PODS_OF_NAMESPACE]:
                    del large[:LARGE_PODS_OF_NAMESPACE]
                    self.start(self._learn(due), f"read large pods of {namespace} again")
        finally:
            self._forget(pod.uid for pod in large)
            del self._large[namespace]

    def _present(self, pods: Sequence[PodRef]) -> list[PodRef]:
        """Return the pods that still hold resources. The others are gone, so nothing waits for them any more."""
        machine = self.machine()
        ended = {pod.uid for pod in pods if machine is not None and not machine.holds_resources(pod.uid)}
        self._end_reading(sorted(ended))
        return [pod for pod in pods if pod.uid not in ended]

    def _awaited(self, pods: Sequence[PodRef]) -> list[PodRef]:
        """Return the pods for which a Migration or a failed node waits; the others are not read any more."""
        machine = self.machine()
        ignored = {pod.uid for pod in pods if machine is not None and not machine.awaits(pod)}
        self._forget(ignored)
        return [pod for pod in pods if pod.uid not in ignored]

    def _end_reading(self, uids: Sequence[str]) -> None:
        """Report that the engine knows these pods, or that they are gone."""
        self._forget(uids)
        if uids and (machine := self.machine()) is not None:
            machine.learned(uids)
            self.wake()

    def _forget(self, uids: Iterable[str]) -> None:
        for uid in uids:
            self.reading.pop(uid, None)

    def _report(self, pod: PodRef, reason: str, migration: str = "") -> None:
        """Report why a pod can't be read to all Migrations that wait for it, or to one of them."""
        if (machine := self.machine()) is not None:
            machine.migrations.unread(pod, reason, self.clock(), migration)
            self.wake()

    async def _read_queued(self, queue: deque[PodRef], unread: set[str], large: list[PodRef]) -> None:
        """Read pods until none is queued; add the uids of those that can't be read to ``unread``.

        Of these, those that are too large become part of ``large``.
        """
        while queue and self.machine() is not None:
            pod = queue.popleft()
            try:
                await self._read(pod)
            except KubeError as error:
                unread.add(pod.uid)
                if isinstance(error, TooLarge):
                    large.append(pod)
                where = {"namespace": pod.namespace}
                text = "pod %s/%s can't be moved, as it can't be read: %s"
                log.warning(text, pod.namespace, pod.name, with_remedy(error), extra=where)
                self.reading[pod.uid] = printable(with_remedy(error), LONGEST_REASON_CHARACTERS)
                self._report(pod, self.reading[pod.uid])

    async def _read(self, pod: PodRef) -> None:
        """Read a pod, and its owners if they are not known, and give it to the engine unless it is gone.

        A pod may be large, and requests for owners may take long. So it is read again once its owners are known.
        """
        slot = partial(self._slots.slot, pod.namespace)
        pod_object = await read_pod(self.client, pod.namespace, pod.name, pod.uid, slot)
        if pod_object is not None and isinstance(self.owners.resolve(pod_object.metadata), Missing):
            identity = identity_of(pod_object.metadata)
            del pod_object
            await self.owners.complete(identity)
            pod_object = await read_pod(self.client, pod.namespace, pod.name, pod.uid, slot)
        if pod_object is not None:
            self.control.pods_reported([pod_object], self.clock())
