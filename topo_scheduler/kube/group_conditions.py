"""Tell on the PodGroups of Kubernetes whether their pods were placed: the condition PodGroupScheduled.

Behind the binds (see ``lane``), the newest of several messages only. What the PodGroup says is looked at right before:
what it says already is not written again, and one that was placed once is never called unplaced, as kube-scheduler
has it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import msgspec

from topo_scheduler.api.groups import PLURAL, GroupApi, PodGroupObject
from topo_scheduler.api.printable import printable
from topo_scheduler.kube.client import Client, decode
from topo_scheduler.kube.conditions import CONFLICTS, PATIENCE_SECONDS, send_status
from topo_scheduler.kube.errors import Conflict, KubeError, NotFound
from topo_scheduler.kube.fair_lines import FairLines
from topo_scheduler.kube.lane import Lane
from topo_scheduler.kube.resources import Resource
from topo_scheduler.kube.times import time as timestamp

logger = logging.getLogger(__name__)

CONDITION: Final = "PodGroupScheduled"
AT_ONCE: Final = 8
AT_ONCE_OF_NAMESPACE: Final = 4
"""Conditions that are written at once, in all and of one namespace."""
LONGEST_MESSAGE: Final = 32_768
"""Characters the API server takes in the message of a condition."""

_encode = msgspec.json.Encoder().encode
_group = msgspec.json.Decoder(PodGroupObject)


@dataclass(frozen=True, slots=True)
class GroupMark:
    """What is to be written on a PodGroup. ``version`` of its API."""

    namespace: str
    name: str
    uid: str
    version: str
    scheduled: bool
    reason: str
    message: str


class GroupConditionWriter:
    """Writes the condition; a PodGroup is asked for and patched, nothing of it is kept."""

    def __init__(
        self,
        client: Client,
        *,
        busy: Callable[[], bool] = lambda: False,
        concurrency: int = AT_ONCE,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.written = 0
        self.failed = 0
        self._client = client
        self._clock = clock
        self._wall = wall
        self._waiting: FairLines[tuple[float, GroupMark]] = FairLines(AT_ONCE_OF_NAMESPACE, lambda item: item[0])
        self._lane: Lane[GroupMark] = Lane(
            oldest=self._waiting.oldest,
            take=self._take,
            do=self._write,
            busy=busy,
            concurrency=concurrency,
            patience=PATIENCE_SECONDS,
            clock=clock,
        )

    def set(self, mark: GroupMark) -> None:
        """Write this, soon; what was to be written of the same PodGroup before is dropped."""
        since, before = self._waiting.get(mark.uid) or (self._clock(), None)
        if before is not None and before.scheduled and not mark.scheduled:
            return
        self._waiting.put(mark.namespace, mark.uid, (since, mark))
        self._lane.wake()

    async def run(self) -> NoReturn:
        """Write, until cancelled."""
        await self._lane.run()

    async def flush(self, timeout: float) -> bool:
        """Write everything that waits, binds or not; whether that was done in time."""
        return await self._lane.flush(timeout)

    def _take(self) -> GroupMark:
        return self._waiting.take()[1][1]

    async def _write(self, mark: GroupMark) -> None:
        try:
            self.written += await self._patch(mark)
        except KubeError as error:
            self.failed += 1
            logger.warning("PodGroup %s/%s is not marked: %s", mark.namespace, mark.name, error)
        finally:
            self._waiting.done(mark.uid)

    async def _patch(self, mark: GroupMark) -> bool:
        """Return whether it was written: not when the PodGroup is gone, or says as much already."""
        resource = Resource(str(GroupApi.NATIVE), mark.version, PLURAL, "PodGroup", PodGroupObject)
        path = resource.path(mark.namespace, mark.name)
        for last in (*[False] * (CONFLICTS - 1), True):
            try:
                group = decode(_group, await send_status(self._client, "GET", path))
                body = self._body(mark, group)
                if body is None:
                    return False
                await send_status(self._client, "PATCH", f"{path}/status", body)
                return True
            except NotFound:
                return False
            except Conflict:
                if last:
                    raise
        raise AssertionError("not reached")

    def _body(self, mark: GroupMark, group: PodGroupObject) -> bytes | None:
        known = _condition(group)
        status, message = str(mark.scheduled), printable(mark.message)[:LONGEST_MESSAGE]
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
    return next((one for one in conditions if isinstance(one, dict) and one.get("type") == CONDITION), {})
