"""Mark pods that found no node: PodScheduled=False, reason Unschedulable.

Cluster autoscalers act on exactly this condition. The scheduler therefore sets it only on pods without a node, and
its message gives the reason.

Guarantees: the writer never marks a pod that has a node. Every patch carries the resourceVersion that the decision
used; after a conflict the writer reads the pod again. Of several messages for a pod it writes the newest, and it
does not rewrite an unchanged message. ``lastTransitionTime`` is when the scheduler first saw the pod pending, and it
does not change. The next leader therefore knows how long the pod has been pending.
"""

import logging
import time
from collections.abc import Callable
from typing import NoReturn

import msgspec

from topo_scheduler.api.objects import PartialObject, Pod, PodCondition
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import STRATEGIC_MERGE_PATCH, Client, decode
from topo_scheduler.kube.connection.errors import Conflict, Fenced, KubeError, NotFound, is_missing, with_remedy
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.resources import PODS
from topo_scheduler.kube.connection.retrying import or_until_granted, retried
from topo_scheduler.kube.connection.times import time as timestamp
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.kube.writing.low_priority_writes import (
    CONCURRENT_WRITES,
    WRITES_OF_NAMESPACE,
    LowPriorityWriter,
    WriteSlot,
)

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 4.0
"""Longest delay of conditions in favor of binds, in seconds."""

RETRY_SECONDS = 60.0
TIMEOUT_SECONDS = 10.0
CONFLICTS = 5
"""Conflicts per write. A pod that changes more often during the patch is marked at its next scheduling attempt."""

_encode = msgspec.json.Encoder().encode
_pod = msgspec.json.Decoder(Pod)
_partial = msgspec.json.Decoder(PartialObject)


class _PodConditions(msgspec.Struct):
    """The condition to write on a pod."""

    namespace: str
    name: str
    uid: str
    version: str
    message: str
    transition: float | None  # seconds since the epoch; None where the condition already has such a time
    forgotten: bool = False


class ConditionWriter:
    """Writes the condition at a lower priority than binds (see `low_priority_writes`).

    Only the newest message per pod.
    """

    def __init__(
        self,
        client: Client,
        *,
        busy: Callable[[], bool] = lambda: False,
        concurrency: int = CONCURRENT_WRITES,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._clock = clock
        self._wall = wall
        self._waiting: FairQueue[str, _PodConditions] = FairQueue(WRITES_OF_NAMESPACE, reserved_of(concurrency))
        """By uid of the pod; the writer sends one condition per pod at a time."""
        self._done: dict[str, tuple[int, str]] = {}  # uid: hash of the message, resourceVersion after the write
        self._writer: LowPriorityWriter[str, _PodConditions] = LowPriorityWriter(
            queue=self._waiting,
            do=self._write,
            busy=busy,
            concurrency=concurrency,
            patience=PATIENCE_SECONDS,
            clock=clock,
        )

    def __len__(self) -> int:
        """Pods that the writer keeps state about."""
        return len(self._waiting.keys() | self._done.keys())

    def set_unschedulable(self, pod: Pod, message: str, waits_since: float | None = None) -> None:
        """Mark the pod soon, unless it already has this message. Cheap: call it for every failed attempt.

        ``waits_since``, in seconds since the epoch, becomes the transition time if the condition changes status;
        default: now.
        """
        uid, message = pod.metadata.uid, printable(message)
        observed = next((condition for condition in pod.status.conditions if condition.type == "PodScheduled"), None)
        waiting = self._waiting.get(uid)
        if waiting is not None:
            waiting.message, waiting.version = message, pod.metadata.resource_version
            return
        doing = self._waiting.under_way(uid)
        if doing.message == message if doing else self._says(pod, observed, message):
            return
        namespace = pod.metadata.namespace
        since = waits_since or self._wall() if _turns(observed) else None
        mark = _PodConditions(namespace, pod.metadata.name, uid, pod.metadata.resource_version, message, since)
        self._waiting.put(uid, namespace, self._clock(), mark)
        self._writer.wake()

    def forget(self, uid: str) -> None:
        """Drop all state of a pod that is gone or has a node, and write nothing more for it."""
        self._waiting.pop(uid)
        self._done.pop(uid, None)
        if (doing := self._waiting.under_way(uid)) is not None:
            doing.forgotten = True
        self._writer.wake()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        await self._writer.run()

    async def flush(self, timeout: float) -> bool:
        """Write all pending conditions even while binds are in flight; return whether that finished in time.

        ``timeout`` is in seconds.
        """
        return await self._writer.flush(timeout)

    def _says(self, pod: Pod, observed: PodCondition | None, message: str) -> bool:
        """Return whether the pod already has this message, by our last write or by a later observation."""
        seen = observed is not None and observed.reason == "Unschedulable" and observed.message == message
        written, version = self._done.get(pod.metadata.uid, (None, ""))
        return seen or (written == hash(message) and not _after(pod.metadata.resource_version, version))

    async def _write(self, mark: _PodConditions, slot: WriteSlot) -> None:
        try:
            version = await self._patch(mark, slot)
        except KubeError as error:
            self.failed += 1
            level = logging.DEBUG if isinstance(error, Fenced) else logging.WARNING  # the end of a lease is logged once
            where = {"namespace": mark.namespace}
            text = "pod %s/%s is not marked as unschedulable: %s"
            logger.log(level, text, mark.namespace, mark.name, with_remedy(error), extra=where)
        else:
            if not version:
                self.forget(mark.uid)
                return
            self.written += 1
            if not mark.forgotten:
                self._done[mark.uid] = (hash(mark.message), version)

    async def _patch(self, mark: _PodConditions, slot: WriteSlot) -> str:
        """Return the pod's resourceVersion with the condition; empty if it is gone, or has a node after all."""
        path = PODS.path(mark.namespace, mark.name)
        for _ in range(CONFLICTS):
            try:
                answer = await send_status(self._client, "PATCH", f"{path}/status", slot, self._body(mark))
                return decode(_partial, answer).metadata.resource_version
            except (Conflict, NotFound) as error:
                failure = error
            try:
                pod = decode(_pod, await send_status(self._client, "GET", path, slot))
            except NotFound as error:
                if is_missing(error, mark.name):
                    return ""
                raise
            lacks_node = not pod.spec.node_name and pod.metadata.deletion_timestamp is None
            if mark.forgotten or pod.metadata.uid != mark.uid or not lacks_node:
                return ""
            if isinstance(failure, NotFound):
                break  # a webhook answered so
            mark.version = pod.metadata.resource_version
        raise failure

    def _body(self, mark: _PodConditions) -> bytes:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": mark.message}
        if mark.transition is not None:
            condition["lastTransitionTime"] = timestamp(mark.transition)
        metadata = {"uid": mark.uid, "resourceVersion": mark.version}
        return _encode({"metadata": metadata, "status": {"conditions": [condition]}})


async def send_status(client: Client, method: str, path: str, slot: WriteSlot, body: bytes | None = None) -> bytes:
    """Read an object or patch its status; retries for a minute while the server is busy or unreachable.

    Each attempt holds a ``slot``, which counts the bytes of the answer.
    """

    async def send() -> bytes:
        return await client.request(
            method, path, body=body, content_type=STRATEGIC_MERGE_PATCH, timeout=TIMEOUT_SECONDS
        )

    answer = await retried(send, seconds=RETRY_SECONDS, passing=or_until_granted(), slot=slot)
    slot.received += len(answer)
    return answer


def _turns(observed: PodCondition | None) -> bool:
    """Return whether the condition changes status. The API server gives gated pods a condition without a time."""
    return observed is None or observed.status != "False" or not observed.last_transition_time


def _after(observed: str, written: str) -> bool:
    return observed.isdecimal() and written.isdecimal() and int(observed) > int(written)
