"""Report to users what happened to their pods: events.k8s.io/v1, one per object and changed message.

Recording takes a few microseconds and never blocks or raises; posting has a lower priority than binds (see
`low_priority_writes`). A ``FailedScheduling`` event replaces one of the same object that was queued a moment before. If
the scheduler knows that a more complete event will follow, it holds the first one for up to two seconds. One event can
then state both what is lacking and what would help.

The recorder counts repetitions of a message about an object. It publishes them as the event's series at most every
five minutes. It counts and logs events that do not fit the queue or that the server refuses. Events are best effort
and never stop a placement.
"""

import itertools
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NoReturn

import msgspec

from topo_scheduler.api.base import Base
from topo_scheduler.api.printable import printable
from topo_scheduler.api.reasons import Reason
from topo_scheduler.kube.connection.client import MERGE_PATCH, Client
from topo_scheduler.kube.connection.errors import (
    Conflict,
    KubeError,
    NotFound,
    lacks_rights,
    namespace_terminating,
    with_remedy,
)
from topo_scheduler.kube.connection.fair_slots import reserved_of
from topo_scheduler.kube.connection.fence import UNFENCED
from topo_scheduler.kube.connection.outage import Outage
from topo_scheduler.kube.connection.resources import segment
from topo_scheduler.kube.connection.retrying import Slot, or_until_granted, retried
from topo_scheduler.kube.connection.times import micro_time
from topo_scheduler.kube.writing.fair_queue import FairQueue
from topo_scheduler.kube.writing.low_priority_writes import CONCURRENT_WRITES, WRITES_OF_NAMESPACE, LowPriorityWriter

logger = logging.getLogger(__name__)

SERIES_SECONDS = 300.0
"""Least seconds between two reports of a repetition."""

SETTLE_SECONDS = 0.5
"""Seconds before an event is posted; within them the next `REPLACED` event about the same object replaces it."""

HOLD_SECONDS = 2.0
"""Longest time that an event is held for a more complete one, in seconds. Explanations usually take less; in a large
cluster or during many binds they take longer, and then two events appear.
"""

REPLACED = Reason.FAILED_SCHEDULING
"""The reason whose queued event is replaced by the next one, as its message soon becomes more exact."""

PATIENCE_SECONDS = 8.0
"""Longest delay of events in favor of binds, in seconds. All must exist within 30 s, posting included."""

RETRY_SECONDS = 120.0
"""An API server outage shorter than this many seconds loses no event."""

TIMEOUT_SECONDS = 10.0
NOTE_BYTES = 1024
"""The API's limit for the message; reasons and actions have 128."""

QUEUED_EVENTS_OF_NAMESPACE = 10_000
"""Queued events of one namespace; the recorder drops further ones of this namespace, not those of others."""

REMEMBERED_MESSAGES = 32_768
"""Posted messages that the recorder remembers; about 300 bytes each."""


@dataclass(frozen=True, slots=True)
class ObjectReference:
    """The object an event is about."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class _Name(Base):
    name: str
    namespace: str


class _Regarding(Base):
    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str


class _EventBody(Base, omit_defaults=False):
    metadata: _Name
    event_time: str
    reporting_controller: str
    reporting_instance: str
    action: str
    reason: str
    regarding: _Regarding
    note: str
    type: str
    kind: str = "Event"
    api_version: str = "events.k8s.io/v1"


class _Occurrence(msgspec.Struct, gc=False):
    """The content of an event."""

    regarding: ObjectReference
    type: str
    reason: str
    message: str
    action: str
    when: float


class _EventSeries(msgspec.Struct, gc=False):
    """An event that was posted or is queued: one event object on the server."""

    key: tuple[str, str, int]
    occurrence: _Occurrence | None
    queued: float
    reported: float
    name: str = ""
    count: int = 1
    held: bool = False


_encode = msgspec.json.Encoder().encode


class EventRecorder:
    """Records events. ``busy`` returns whether binds are in flight, which delays events."""

    def __init__(
        self,
        client: Client,
        reporting_controller: str,
        instance: str,
        *,
        busy: Callable[[], bool] = lambda: False,
        concurrency: int = CONCURRENT_WRITES,
        capacity: int = 30_000,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.posted = 0
        self.dropped = 0
        self.failed = 0
        self._client = client.fenced(UNFENCED)
        self._controller = reporting_controller
        self._instance = _clipped(instance, 128)
        self._capacity = capacity
        self._clock = clock
        self._wall = wall
        self._without_right = Outage()
        self._lost = 0
        """Events that RBAC refused since the last line about that."""
        self._numbers = itertools.count(time.time_ns())
        self._queue: FairQueue[tuple[str, str, int], _EventSeries] = FairQueue(
            WRITES_OF_NAMESPACE, reserved_of(concurrency)
        )
        self._replaceable: dict[str, _EventSeries] = {}
        """Queued events with the reason `REPLACED`, by uid of the object."""
        self._known: OrderedDict[tuple[str, str, int], _EventSeries] = OrderedDict()
        self._writer: LowPriorityWriter[tuple[str, str, int], _EventSeries] = LowPriorityWriter(
            queue=self._queue,
            do=self._write,
            busy=busy,
            concurrency=concurrency,
            patience=PATIENCE_SECONDS,
            settle=SETTLE_SECONDS,
            clock=clock,
        )

    def __len__(self) -> int:
        return len(self._queue)

    def record(
        self,
        regarding: ObjectReference,
        type: Literal["Normal", "Warning"],
        reason: str,
        message: str,
        action: str,
        *,
        follow_up: bool = False,
    ) -> None:
        """Queue this event about the object, unless it was just posted.

        ``follow_up``: a more complete `REPLACED` event will follow.
        """
        message = _clipped(printable(message), NOTE_BYTES)
        key = (regarding.uid, reason, hash(message))
        now = self._clock()
        series = self._known.get(key)
        if series is None:
            series = self._known[key] = _EventSeries(key, None, now, now)
            if len(self._known) > REMEMBERED_MESSAGES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
            series.count += 1
            if series.occurrence is not None or now - series.reported < SERIES_SECONDS:
                return
        series.occurrence = _Occurrence(regarding, type, reason, message, action, self._wall())
        series.queued = self._replace(regarding.uid, now) if reason == REPLACED else now
        if self._queue.count(regarding.namespace) >= QUEUED_EVENTS_OF_NAMESPACE:
            self._drop(series)
            return
        if len(self) >= self._capacity and (oldest := self._queue.pop_of_most()) is not None:
            self._left(oldest)
            self._drop(oldest)
        series.held = follow_up
        since = series.queued + (HOLD_SECONDS - SETTLE_SECONDS if follow_up else 0.0)
        self._queue.put(series.key, regarding.namespace, since, series)
        if reason == REPLACED:
            self._replaceable[regarding.uid] = series
        self._writer.wake()

    async def run(self) -> NoReturn:
        """Post recorded events until cancelled."""
        await self._writer.run()

    async def flush(self, timeout: float) -> bool:
        """Post all recorded events now, even while binds are in flight; return whether that finished in time.

        ``timeout`` is in seconds.
        """
        return await self._writer.flush(timeout)

    def _left(self, series: _EventSeries) -> None:
        """Note that an event has left the queue."""
        assert series.occurrence is not None
        uid = series.occurrence.regarding.uid
        if self._replaceable.get(uid) is series:
            del self._replaceable[uid]

    def _replace(self, uid: str, now: float) -> float:
        """Remove the queued event of an object; return since when its replacement counts as queued."""
        series = self._replaceable.get(uid)
        if series is None or series.name or self._queue.get(series.key) is not series:
            return now  # no such event is queued, or it is being posted
        if now - series.queued >= (HOLD_SECONDS if series.held else SETTLE_SECONDS):
            return now
        self._queue.pop(series.key)
        self._left(series)
        self._forget(series)
        return series.queued

    def _drop(self, series: _EventSeries) -> None:
        self._forget(series)
        self.dropped += 1
        if self.dropped & (self.dropped - 1) == 0:  # 1, 2, 4, 8, …: visible, but no flood of log lines
            logger.warning(
                "%d events dropped so far: more than %d are queued, or %d of one namespace",
                self.dropped,
                self._capacity,
                QUEUED_EVENTS_OF_NAMESPACE,
            )

    def _forget(self, series: _EventSeries) -> None:
        """Forget the series, so that the next repetition is posted as a new event."""
        series.occurrence = None
        if self._known.get(series.key) is series:
            del self._known[series.key]

    async def _write(self, series: _EventSeries, slot: Slot) -> None:
        self._left(series)
        occurrence = series.occurrence
        assert occurrence is not None
        try:
            if not (series.name and await self._repeat(series, occurrence, slot)):
                await self._post(series, occurrence, slot)
        except KubeError as error:
            self._forget(series)
            self.failed += 1
            if lacks_rights(error):
                self._lost_without_right(error)
                return
            about = f"{occurrence.regarding.kind} {occurrence.regarding.namespace}/{occurrence.regarding.name}"
            level = logging.DEBUG if namespace_terminating(error) else logging.WARNING
            where = {"namespace": occurrence.regarding.namespace}
            logger.log(
                level, "event %s about %s is lost: %s", occurrence.reason, about, with_remedy(error), extra=where
            )
        else:
            self._report_right()
            self.posted += 1
            series.occurrence = None
            series.reported = self._clock()

    def _lost_without_right(self, error: KubeError) -> None:
        """Count an event that RBAC refused: without the right to write events, one line counts all that are lost."""
        self._lost += 1
        if self._without_right.failed(self._clock()):
            text = "event is" if self._lost == 1 else "events are"
            logger.warning("%d %s lost since the last such line: %s", self._lost, text, with_remedy(error))
            self._lost = 0

    def _report_right(self) -> None:
        if self._without_right.over(self._clock()) is not None:
            logger.info("events are written again; %d more were lost", self._lost)
            self._lost = 0

    async def _post(self, series: _EventSeries, occurrence: _Occurrence, slot: Slot) -> None:
        regarding = occurrence.regarding
        namespace = regarding.namespace or "default"
        series.name = f"{regarding.name[:230].rstrip('-.')}.{next(self._numbers):x}"
        body = _encode(
            _EventBody(
                metadata=_Name(series.name, namespace),
                event_time=micro_time(occurrence.when),
                reporting_controller=self._controller,
                reporting_instance=self._instance,
                action=_clipped(occurrence.action, 128),
                reason=_clipped(occurrence.reason, 128),
                regarding=_Regarding(
                    regarding.api_version, regarding.kind, regarding.namespace, regarding.name, regarding.uid
                ),
                note=occurrence.message,
                type=occurrence.type,
            )
        )
        try:
            await retried(
                lambda: self._client.request("POST", _path(namespace), body=body, timeout=TIMEOUT_SECONDS),
                seconds=RETRY_SECONDS,
                longest=10.0,
                passing=or_until_granted(),
                slot=slot,
            )
        except Conflict:
            logger.debug("event %s exists: an attempt without an answer had succeeded", series.name)

    async def _repeat(self, series: _EventSeries, occurrence: _Occurrence, slot: Slot) -> bool:
        """Publish the count of repetitions; False if the event has expired on the server."""
        path = f"{_path(occurrence.regarding.namespace or 'default')}/{segment(series.name)}"
        change = {"series": {"count": series.count, "lastObservedTime": micro_time(occurrence.when)}}
        body = _encode(change)
        try:
            await retried(
                lambda: self._client.request(
                    "PATCH", path, body=body, content_type=MERGE_PATCH, timeout=TIMEOUT_SECONDS
                ),
                seconds=RETRY_SECONDS,
                longest=10.0,
                passing=or_until_granted(),
                slot=slot,
            )
        except NotFound:
            series.count = 1
            return False
        return True


def _path(namespace: str) -> str:
    return f"/apis/events.k8s.io/v1/namespaces/{segment(namespace)}/events"


def _clipped(text: str, limit: int) -> str:
    """Return ``text`` in at most ``limit`` bytes of UTF-8, with an ellipsis where it was cut."""
    data = text.encode()
    return text if len(data) <= limit else data[: limit - 3].decode(errors="ignore") + "…"
