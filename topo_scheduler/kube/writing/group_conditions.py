"""Report on the PodGroups of Kubernetes whether their pods were placed: the condition PodGroupScheduled.

The writes have a lower priority than binds (see `low_priority_writes`), and only the newest of several messages is
written. The writer reads the PodGroup right before each write and does not rewrite an unchanged condition. As in
kube-scheduler, a PodGroup that was placed once is never marked as unplaced.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from topo_scheduler.api.groups import PLURAL, GroupApi, PodGroupObject
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.connection.client import Client, decode
from topo_scheduler.kube.connection.errors import Conflict, Fenced, KubeError, NotFound, is_missing, with_remedy
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.resources import Resource
from topo_scheduler.kube.connection.times import time as timestamp
from topo_scheduler.kube.writing.conditions import CONFLICTS, PATIENCE_SECONDS, send_status
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.kube.writing.low_priority_writes import (
    CONCURRENT_WRITES,
    WRITES_OF_NAMESPACE,
    LowPriorityWriter,
    WriteSlot,
)

logger = logging.getLogger(__name__)

CONDITION: Final = "PodGroupScheduled"
LONGEST_MESSAGE_CHARACTERS: Final = 32_768
"""Characters the API server accepts in the message of a condition."""

_encode = msgspec.json.Encoder().encode
_group = msgspec.json.Decoder(PodGroupObject)


@dataclass(frozen=True, slots=True)
class GroupMark:
    """The condition to write on a PodGroup. ``version`` is that of its API."""

    namespace: str
    name: str
    uid: str
    version: str
    scheduled: bool
    reason: str
    message: str


class GroupConditionWriter:
    """Writes the condition; reads and patches a PodGroup and keeps no copy of it."""

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
        self._waiting: FairQueue[str, tuple[float, GroupMark]] = FairQueue(
            WRITES_OF_NAMESPACE, reserved_of(concurrency)
        )
        """By uid; the writer sends one condition per PodGroup at a time."""
        self._writer: LowPriorityWriter[str, tuple[float, GroupMark]] = LowPriorityWriter(
            queue=self._waiting,
            do=self._write,
            busy=busy,
            concurrency=concurrency,
            patience=PATIENCE_SECONDS,
            clock=clock,
        )

    def set(self, mark: GroupMark) -> None:
        """Write this condition soon, in place of the queued one; but unscheduled never replaces scheduled."""
        since, before = self._waiting.get(mark.uid) or (self._clock(), None)
        if before is not None and before.scheduled and not mark.scheduled:
            return
        self._waiting.put(mark.uid, mark.namespace, since, (since, mark))
        self._writer.wake()

    async def run(self) -> NoReturn:
        """Write until cancelled."""
        await self._writer.run()

    async def flush(self, timeout: float) -> bool:
        """Write all pending conditions even while binds are in flight; return whether that finished in time.

        ``timeout`` is in seconds.
        """
        return await self._writer.flush(timeout)

    async def _write(self, item: tuple[float, GroupMark], slot: WriteSlot) -> None:
        _, mark = item
        try:
            self.written += await self._patch(mark, slot)
        except KubeError as error:
            self.failed += 1
            level = logging.DEBUG if isinstance(error, Fenced) else logging.WARNING  # the end of a lease is logged once
            where = {"namespace": mark.namespace}
            logger.log(
                level, "PodGroup %s/%s is not marked: %s", mark.namespace, mark.name, with_remedy(error), extra=where
            )

    async def _patch(self, mark: GroupMark, slot: WriteSlot) -> bool:
        """Return whether the condition was written; False if the PodGroup is gone or already has it."""
        resource = Resource(str(GroupApi.NATIVE), mark.version, PLURAL, "PodGroup", PodGroupObject)
        path = resource.path(mark.namespace, mark.name)
        for last in (*[False] * (CONFLICTS - 1), True):
            try:
                group = decode(_group, await send_status(self._client, "GET", path, slot))
                body = self._body(mark, group)
                if body is None:
                    return False
                await send_status(self._client, "PATCH", f"{path}/status", slot, body)
                return True
            except NotFound as error:
                if is_missing(error, mark.name):
                    return False
                raise
            except Conflict:
                if last:
                    raise
        raise AssertionError("not reached")

    def _body(self, mark: GroupMark, group: PodGroupObject) -> bytes | None:
        known = _condition(group)
        status, message = str(mark.scheduled), printable(mark.message)[:LONGEST_MESSAGE_CHARACTERS]
        if group.metadata.uid != mark.uid or (known.get("status") == "True" and not mark.scheduled):
            return None
        if (known.get("status"), known.get("reason"), known.get("message")) == (status, mark.reason, message):
            return None
        turned = known.get("status") != status
        condition = {
            "type": CONDITION,
            "status": status,
            "reason": mark.reason,
            "message": message,
            "observedGeneration": group.metadata.generation,
            "lastTransitionTime": timestamp(self._wall()) if turned else known.get("lastTransitionTime"),
        }
        metadata = {"uid": mark.uid, "resourceVersion": group.metadata.resource_version}
        return _encode({"metadata": metadata, "status": {"conditions": [condition]}})


def _condition(group: PodGroupObject) -> dict[str, Any]:
    conditions = group.status.get("conditions") or []
    return next(
        (condition for condition in conditions if isinstance(condition, dict) and condition.get("type") == CONDITION),
        {},
    )
